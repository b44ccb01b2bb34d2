"""Moving in from Hermes by the installed command: homes of the real thing, a server, a kill, damage."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import openai
import pytest

from tests.hermes.homes import KEY, VERSIONS, in_memory, print_of, write

from .command import Home, until
from .serving import serving
from .talker import Talker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with in_memory() as directory:
        yield directory


def session(home: Home, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = home.json("sessions", "show", name)
    return shown


@pytest.mark.parametrize("version", VERSIONS)
def test_old_ids_of_parent_and_child_go_on_in_the_newest_session(
    talking: Home, talker: Talker, scratch: Path, version: str
) -> None:
    """With the official SDK and only its address, its key and the header that bridges of Hermes send."""
    write(version, "whole", scratch / version)
    told = talking.ok("import", "hermes", str(scratch / version))
    assert f"{6 if version == '0.14.0' else 7} conversations imported." in told
    newest = session(talking, "third")
    with serving(talking) as server:
        client = openai.OpenAI(
            base_url=f"{server.url}/v1", api_key=server.client_environment["OPENAI_API_KEY"], max_retries=0
        )
        reached = []
        for name in ("first", "second", "third"):
            talker.answer(f"heard you, {name}")
            raw = client.chat.completions.with_raw_response.create(
                model="talker",
                messages=[{"role": "user", "content": f"by {name}"}],
                extra_headers={"X-Hermes-Session-Id": name},
            )
            extra = raw.parse().model_extra
            assert extra is not None
            assert extra["holdfast"]["conversation_id"] == newest["conversation_id"]
            assert raw.headers["X-Hermes-Session-Id"] == extra["holdfast"]["session_id"]
            assert extra["holdfast"]["compacted"] is True
            reached.append(extra["holdfast"]["session_id"])
        client.close()
        assert len(set(reached)) == 1
        said = [str(each["content"]) for each in talker.heard]
        assert said[-5:] == ["by first", "heard you, first", "by second", "heard you, second", "by third"]
        assert "where?" in said
        assert "my name is Ada" not in said  # it was compacted away
        sent = {name for each in talker.heard for name in each}
        assert sent <= {"role", "content", "tool_calls", "tool_call_id"}

        talker.answer("by the key")
        body = {"messages": [{"role": "user", "content": "by key"}]}
        status, answer = server.ask("POST", "/v1/chat/completions", body, x_hermes_session_key=KEY)
        assert (status, answer["holdfast"]["session_id"]) == (200, reached[0])
        status, whole = server.ask("GET", "/api/sessions/first/messages?scope=conversation&limit=100")
        assert status == 200
        assert [each["seq"] for each in whole["data"]] == list(range(1, 7 + 3 + 2 + 8 + 1))
        status, very = server.ask("GET", "/api/sessions/first")
        assert (very["end_reason"], very["tip_id"]) == ("hermes:compression", reached[0])
    line = talking.json("sessions", "lineage", KEY)["data"]
    assert [each["edge"] for each in line] == [None, "compaction", "compaction", "resume"]


def test_an_import_killed_midway_goes_on_where_it_stopped(home: Home, scratch: Path) -> None:
    there = scratch / "large"
    write("0.19.0", "large", there)
    before = print_of(there)
    running = home.start("import", "hermes", str(there))
    until(lambda: messages_in(home.store) > 2000, "a part of it has come")
    running.send(signal.SIGKILL)
    code, _, _ = running.end()
    assert code == -signal.SIGKILL
    part = messages_in(home.store)
    assert 2000 < part < 12_000 + 27 * 5
    done = home.json("import", "hermes", str(there))
    assert (done["messages"], done["problems"]) == (12_135 - part, [])
    assert print_of(there) == before
    assert home.json("doctor")["ok"]
    assert messages_in(home.store) == 12_135
    stored = apsw.Connection(str(home.store), flags=apsw.SQLITE_OPEN_READONLY)
    rows: list[Any] = stored.execute(
        "SELECT a.alias, s.last_seq, c.last_seq FROM aliases a JOIN sessions s ON s.id = a.session "
        "JOIN conversations c ON c.id = a.conversation"
    ).fetchall()
    stored.close()
    counts = {f"large{n}": 4000 if n % 10 == 0 else 5 for n in range(30)}
    assert {name: (own, whole) for name, own, whole in rows} == {n: (c, c) for n, c in counts.items()}


def messages_in(store: Path) -> int:
    try:
        connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.CantOpenError:
        return 0
    try:
        number = connection.execute("SELECT count(*) FROM messages").get
    except (apsw.SQLError, apsw.BusyError):
        return 0  # it is being made
    finally:
        connection.close()
    assert isinstance(number, int)
    return number


def test_the_dry_run_prints_the_field_reports_own_table(home: Home, scratch: Path) -> None:
    there = scratch / "reported"
    write("0.14.0", "reported", there)
    before = print_of(there)
    began = time.monotonic()
    told = home.ok("import", "hermes", str(there), "--dry-run")
    print(f"3,049 sessions were looked at in {time.monotonic() - began:.1f} s")
    assert print_of(there) == before
    assert not home.path.exists()
    assert [" ".join(line.split()) for line in told.splitlines()[1:8]] == [
        "ENDED AS SESSIONS SHARE",
        "cron_complete 1,275 41.8 %",
        "(never ended) 887 29.1 %",
        "recovered 640 21.0 %",
        "cli_close 229 7.5 %",
        "session_reset 17 0.6 %",
        "compression 1 0.0 %",
    ]
    assert told.endswith("Nothing was changed.\n")


def test_a_damaged_home_is_refused_in_words_and_nothing_of_it_is_imported(
    home: Home, scratch: Path, tmp_path: Path
) -> None:
    there = tmp_path / "hermes"
    write("0.19.0", "whole", there)
    file = there / "state.db"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    before = print_of(there)
    for options in ((), ("--dry-run",)):
        done = home.run("import", "hermes", str(there), *options)
        assert done.returncode == 1, done.stdout
        assert "state.db was cut off" in done.stderr
        assert "Nothing was imported" in done.stderr
        assert "Traceback" not in done.stderr
        assert print_of(there) == before
    assert not home.store.exists()


def test_wrong_usage_is_told(home: Home, tmp_path: Path) -> None:
    done = home.run("import", "hermes", str(tmp_path / "nowhere"))
    assert (done.returncode, "there is no" in done.stderr) == (1, True)
    assert home.run("import", "hermes", str(tmp_path), "--owner", "*").returncode == 2
    assert home.run("import", "hermes", str(tmp_path), "--timezone", "Atlantis").returncode == 2
