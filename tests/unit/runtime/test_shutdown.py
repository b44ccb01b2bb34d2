"""What signals do to a program of ours, in a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

PROGRAM = """
import os, signal, sys
from contextlib import contextmanager
from holdfast.runtime.shutdown import SuspendSignal

@contextmanager
def paused():  # in a signal handler, where the interrupted code may be in the middle of a print
    os.write(1, b"paused\\n")
    yield
    os.write(1, b"goes on\\n")

suspend = SuspendSignal(paused)
suspend.catch()
print("ready", flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
suspend.release()
print(signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL, flush=True)
"""


def test_ctrl_z_pauses_the_store_stops_the_process_and_continues_twice() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # else it may be in an orphaned group, which Ctrl-Z does not stop
    )
    assert program.stdin is not None and program.stdout is not None
    try:
        assert program.stdout.readline() == "ready\n"
        for _ in range(2):
            program.send_signal(signal.SIGTSTP)
            _, status = os.waitpid(program.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            assert program.stdout.readline() == "paused\n"
            program.send_signal(signal.SIGCONT)
            assert program.stdout.readline() == "goes on\n"
        print("alive", file=program.stdin, flush=True)
        assert program.stdout.readline() == "alive\n"
        program.stdin.close()
        assert program.stdout.readline() == "True\n"
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.stdout.close()
