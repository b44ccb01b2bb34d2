"""A terminal that tests type into: one bash, one command after another, each with what it printed.

Whatever it has started ends with it.
"""

from __future__ import annotations

import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 90.0
DONE = "this-command-has-ended"
REPORT = re.compile(r"^bash: line \d+: +\d+ Killed .*\n", re.MULTILINE)
"""What bash says, as soon as it notices, of a process in the background that was killed."""
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Shell:
    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=place,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._complaints = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 - it lives as long as the shell
        self.printed = ""

    def type(self, command: str) -> None:
        """Type a command, and do not wait for it."""
        assert self._bash.stdin is not None
        self._bash.stdin.write(command.encode() + b"\n")
        self._bash.stdin.flush()

    def run(self, command: str) -> str:
        """Run a command to its end; what it printed on stdout. It must succeed."""
        self.printed = ""
        self.type(f"{{ {command}\n}} 2>{self._complaints.name}; printf '\\n{DONE} %s.\\n' $?")
        self.wait_for(f"{DONE} ")
        self.wait_for(".\n", behind=f"{DONE} ")
        said, _, status = self.printed.partition(f"\n{DONE} ")
        status = status.partition("\n")[0]  # a report may follow it
        assert status == "0.", f"{command}: {status}\n{said}\n{self._complaints.read()}"
        return REPORT.sub("", said)

    def run_until(self, text: str, command: str) -> str:
        """Run a command, press Ctrl-C when this has been printed, and wait until it has ended; what it
        printed on both outputs."""
        self.printed = ""
        self.type(f"trap : INT; {command}\nprintf '{DONE}\\n'; trap - INT")
        self.wait_for(text)
        os.killpg(self._bash.pid, signal.SIGINT)
        self.wait_for(DONE, behind=text)
        return self.printed.partition(DONE)[0]

    def wait_for(self, text: str, *, behind: str = "") -> None:
        """Until this has been printed, somewhere behind the other."""
        assert self._bash.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while text not in self.printed[self.printed.find(behind) :]:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._bash.stdout], [], [], left)
            piece = os.read(self._bash.stdout.fileno(), 65536) if ready else b""
            assert piece, f"{text!r} never came; it printed {self.printed!r}\n{self._complaints.read()}"
            self.printed += piece.decode()

    def close(self) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()


@contextmanager
def shell(place: Path, environment: Mapping[str, str]) -> Iterator[Shell]:
    opened = Shell(place, environment)
    try:
        yield opened
    finally:
        opened.close()


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, str]]:
    """The fenced blocks of a page in these languages, in order: language and text."""
    for language, text in FENCE.findall(page.read_text("utf-8")):
        if language in languages:
            yield language, text


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, which may go on over lines, each with the output printed below it."""
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = step.split("\n")
        end = next(at for at, line in enumerate(lines) if not line.endswith(("\\", "|"))) + 1
        yield "\n".join(lines[:end]).strip(), "\n".join(lines[end:])


def environment(home: Path, **own: str) -> dict[str, str]:
    """That of a newcomer: a new home, and the commands of this environment on the path."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "OPENAI_"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "HOLDFAST_HOME": str(home), "PYTHONUTF8": "1", "COLUMNS": "120", **own}


def free_port() -> int:
    """A port that nobody uses, below the range from which outgoing connections get theirs: between the end of
    a server and its next start nobody else takes it."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
