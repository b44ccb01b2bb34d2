"""Progress, a sentence after Ctrl-C, tables on a narrow terminal, completion."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from rich.console import Console

from holdfast.cli import format, signals
from holdfast.cli.format import Column, table, width_of
from holdfast.cli.signals import Stopped, bar
from holdfast.domain.ids import short
from holdfast.errors import StoreError
from holdfast.store.sqlite.engine import SQLiteStore, open_store


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """After a signal a command ends, and leaves the handlers as they are; this process goes on."""
    before = {number: signal.getsignal(number) for number in signals.POLITE}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is remarked on stderr."""
    remarked: list[str] = []
    monkeypatch.setattr(format, "remark", lambda *pieces: remarked.append(" ".join(pieces)))
    return remarked


async def test_a_signal_stops_the_work_and_says_how_far_it_got(said: list[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        with bar("No file was left.") as shows:
            shows("copying", 20, 100)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
    assert (ended.value.exit_code, said) == (130, ["Interrupted at 20 % No file was left."])


async def test_work_in_a_thread_is_stopped_at_its_next_step(said: list[str]) -> None:
    stepped = threading.Event()
    ended: list[bool] = []

    def work() -> None:
        try:
            while True:
                shows("copying", 1, 2)
                stepped.set()
        except Stopped:
            ended.append(True)
            raise

    with pytest.raises(typer.Exit):
        with bar("Nothing is left.") as shows:
            running = asyncio.get_running_loop().run_in_executor(None, work)
            await asyncio.to_thread(stepped.wait)
            os.kill(os.getpid(), signal.SIGTERM)
            await running
    await asyncio.gather(running, return_exceptions=True)
    while not ended:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert said == ["Interrupted at 50 % Nothing is left."]


async def test_an_error_of_the_work_is_not_taken_for_a_signal(said: list[str]) -> None:
    with pytest.raises(StoreError), bar("No file was left."):
        raise StoreError("the disk is full")
    assert said == []


def test_work_that_needs_no_cleaning_up_ends_by_the_signal() -> None:
    program = """
import os, signal
from holdfast.cli.signals import bar
with bar("Nothing was changed.", at_once=True) as shows:
    shows("checking", 3, 4)
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert "Interrupted at 75 %. Nothing was changed." in done.stderr


def test_without_a_terminal_the_percentage_is_told_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with bar() as shows:
        shows("copying", 1, 10)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(signals, "TELL_SECONDS", 0.0)
    with bar() as shows:
        shows("copying", 1, 10)
    assert "copying: 10 %" in capsys.readouterr().err


async def test_a_backup_and_a_check_report_their_progress(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "store.db")
    seen: list[tuple[int, int]] = []
    await store.backup(tmp_path / "copy.db", lambda done, whole: seen.append((done, whole)))
    assert seen[-1][0] == seen[-1][1] > 0
    seen.clear()
    assert await store.check(lambda done, whole: seen.append((done, whole))) == []
    assert seen == [(n, len(store.invariants())) for n in range(len(store.invariants()) - 1)]
    await store.close()


async def test_a_backup_that_is_given_up_leaves_no_file(tmp_path: Path) -> None:
    store: SQLiteStore = await open_store(tmp_path / "store.db")

    def stop(done: int, whole: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        await store.backup(tmp_path / "copies.db", stop)
    assert list(tmp_path.glob("copies.db*")) == []
    await store.close()


# --- tables ----------------------------------------------------------------------------------------------

COLUMNS = (
    Column("process", whole=True),
    Column("state"),
    Column("session", whole=True),
    Column("command"),
)
ROW = (
    "proc_12345678" + "0" * 24,
    "running",
    "sess_abcdef01" + "1" * 24,
    "python3 -m http.server 8765 --bind 127.0.0.1",
)


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_a_table_fits_the_terminal_and_shortens_ids_where_it_must(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setattr(format, "on_terminal", lambda: True)
    monkeypatch.setattr(format, "console", lambda stderr=False: Console(width=columns, no_color=True))
    table(COLUMNS, [ROW, ROW])
    shown = capsys.readouterr().out
    assert max(width_of(line) for line in shown.splitlines()) <= columns
    assert (
        shown.count(ROW[0] if columns >= 200 else short(ROW[0]))
        == shown.count(short(ROW[2]))
        == shown.count("running")
        == 2
    )
    assert shown.count(ROW[0]) == (2 if columns >= 200 else 0)
    assert ("PROCESS" in shown) is (columns >= 60), "as a table where it fits"


def test_ids_that_begin_the_same_stay_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(format, "on_terminal", lambda: True)
    monkeypatch.setattr(format, "console", lambda stderr=False: Console(width=60, no_color=True))
    other = ("proc_12345678" + "2" * 24, *ROW[1:])
    table(COLUMNS, [ROW, other])
    shown = capsys.readouterr().out
    assert shown.count(ROW[0]) == shown.count(other[0]) == 1


# --- completion ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("holdfast not", {"notices"}),
        ("holdfast notices ", {"list", "delivered"}),
        ("holdfast config ", {"show", "trust", "untrust"}),
        ("holdfast run --mod", {"--model"}),
    ],
)
def test_the_shell_is_offered_commands_and_options(typed: str, offered: set[str]) -> None:
    words = typed.split(" ")
    environment = {
        **os.environ,
        "_HOLDFAST_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    program = "from holdfast.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert set(done.stdout.split()) == offered, done.stderr
