"""Programs that use the library as an agent would, for suites that kill, stop and signal them.

    python agents.py nursery STORE            forks talkers on demand (reads numbers, prints pids)
    python agents.py stopped STORE            drafts in a turn until it loses its lease, then goes on
    python agents.py blocked STORE SECONDS    a sync program that blocks inside a turn
    python agents.py waiting STORE HOW        waits in a turn for a signal (or its own end)

Each prints what it did, one line at a time, for the test to read.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
import traceback

import holdfast

QUICK_BEATS = {"lease": {"heartbeat_seconds": 0.1, "stale_seconds": 0.6, "sweep_seconds": 0.1}}


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def talk_until_killed(url: str, number: int) -> None:
    """A conversation that never ends by itself: turns, drafts, pauses."""
    chance = random.Random(number)
    with holdfast.open_sync(url, sweep=False) as hf:
        session = hf.session(f"cli:{number}")
        tell("session", number, session.id)
        while True:
            with session.turn("tell me more") as turn:
                text = ""
                for word in ("Once", " upon", " a", " time"):
                    text += word
                    turn.draft(text)
                    time.sleep(chance.random() * 0.03)
                turn.append(text)
            time.sleep(chance.random() * 0.03)


def nursery(url: str) -> None:
    """Forks before anything is opened, which costs a hundredth of a new interpreter."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    import holdfast.store.sqlite.engine  # noqa: F401 - imported once, for all children

    for line in sys.stdin:
        number = int(line)
        pid = os.fork()
        if pid == 0:
            sys.stdin.close()
            try:
                talk_until_killed(url, number)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # never by itself: it talks until it is killed
        tell("born", number, pid)


async def stopped(url: str) -> None:
    async with holdfast.open(url, settings=QUICK_BEATS, sweep=False) as hf:
        session = await hf.session(key="cli:stopped")
        tell("session", session.id)
        try:
            async with session.turn("write a poem") as turn:
                text = ""
                while True:
                    text += "line "
                    await turn.draft(text)
                    tell("drafted", len(text))
                    await asyncio.sleep(0.05)
        except holdfast.LeaseLost:
            tell("lost")
        async with session.turn("go on") as turn:
            tell("context", len(await turn.context()))
            await turn.append("Here I am again")
        tell("continued", session.id)


def blocked(url: str, seconds: float) -> None:
    with holdfast.open_sync(url, settings=QUICK_BEATS, sweep=False) as hf:
        session = hf.session("cli:blocked")
        with session.turn("think hard") as turn:
            tell("thinking")
            time.sleep(seconds)
            turn.append("the answer")
        tell("committed", session.id)


async def waiting(url: str, how: str) -> None:
    async with holdfast.open(url, sweep=False) as hf:
        session = await hf.session(key="cli:waiting")
        async with session.turn("hello") as turn:
            await turn.draft("I was say")
            tell("session", session.id)
            if how == "exit":
                sys.exit(3)
            await asyncio.sleep(60)


def waiting_sync(url: str, how: str) -> None:
    hf = holdfast.open_sync(url, sweep=False)
    session = hf.session("cli:waiting")
    turn = session.turn("hello")
    turn.__enter__()
    turn.draft("I was say")
    tell("session", session.id)
    if how == "forget":
        return  # neither the turn nor the store is closed: the interpreter's exit does it
    time.sleep(60)


if __name__ == "__main__":
    what, url, *more = sys.argv[1:]
    if what == "nursery":
        nursery(url)
    elif what == "stopped":
        asyncio.run(stopped(url))
    elif what == "blocked":
        blocked(url, float(more[0]))
    elif what == "waiting":
        asyncio.run(waiting(url, more[0]))
    elif what == "waiting_sync":
        waiting_sync(url, more[0])
