"""The installed `holdfast` command as a person runs it: a process of its own, in a home of its own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from . import warm

CAN_FORK = sys.platform == "linux"
PATIENCE = 90.0
"""How long to wait for what a busy machine may take long for."""


def installed() -> list[str]:
    """The command beside this interpreter, or this interpreter with the package."""
    script = Path(sys.executable).with_name("holdfast")
    return [str(script)] if script.exists() else [sys.executable, "-m", "holdfast"]


class Home:
    """A HOLDFAST_HOME, and the command in it; `forked` from a warm process (`warm.py`), or started anew."""

    def __init__(self, path: Path, environment: Mapping[str, str] = {}, *, forked: bool = False) -> None:
        self.path = path
        self._forked = forked
        self.store = path / "holdfast.db"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.environment = {
            **kept,
            "HOLDFAST_HOME": str(path),
            "HOLDFAST_MODEL__KIND": "scripted",
            "COLUMNS": "120",
            **environment,
        }

    def run(
        self,
        *arguments: str,
        said: str | bytes = b"",
        env: Mapping[str, str] = {},
        patience: float = PATIENCE,
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        text = said.encode() if isinstance(said, str) else said
        if self._forked:
            running = warm.start(arguments, {**self.environment, **env}, self.path.parent, text)
            try:
                out, err = running.communicate(timeout=patience)
            finally:
                running.kill()
            code = running.wait()
            return subprocess.CompletedProcess(running.args, code, out.decode(), err.decode())
        done = subprocess.run(
            [*installed(), *arguments],
            input=text,
            capture_output=True,
            env={**self.environment, **env},
            cwd=self.path.parent,
            timeout=patience,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def ok(self, *arguments: str, said: str | bytes = b"", env: Mapping[str, str] = {}) -> str:
        """What it prints, when all goes well."""
        done = self.run(*arguments, said=said, env=env)
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """The one document on stdout."""
        return json.loads(self.ok(*arguments, "--json"))

    def sessions(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("sessions", *arguments)["data"]
        return found

    def start(self, *arguments: str, env: Mapping[str, str] = {}) -> Running:
        """Run it beside us."""
        if self._forked:
            return Running(warm.start(arguments, {**self.environment, **env}, self.path.parent))
        return Running(
            subprocess.Popen(
                [*installed(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self.environment, **env},
                cwd=self.path.parent,
            )
        )


class Running:
    """A command under way."""

    def __init__(self, process: subprocess.Popen[bytes] | warm.Forked) -> None:
        self.process = process
        self.printed = b""

    def wait_for(self, text: str) -> None:
        """Until it has printed this."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.printed:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert piece, f"{text!r} never came; it printed {self.printed!r}"
            self.printed += piece

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Its exit code, all it printed, and what it said on stderr."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.wait(PATIENCE), (self.printed + out).decode(), err.decode()


def until(condition: Any, what: str) -> None:
    """Wait until something has become true in another process."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it never came to pass that {what}"
        time.sleep(0.02)


def drafts(home: Home) -> int:
    """How many checkpoints of replies under way are on disk: what a kill from now on keeps."""
    store = apsw.Connection(str(home.store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return len(store.execute("SELECT 1 FROM drafts").fetchall())
    finally:
        store.close()


@contextmanager
def write_lock_held(database: Path) -> Iterator[None]:
    """Another process holds the database's write lock, so that whoever writes has to wait for it."""
    holding = (
        "import apsw, sys\n"
        "connection = apsw.Connection(sys.argv[1])\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", holding, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
    finally:
        holder.kill()
        holder.communicate()
