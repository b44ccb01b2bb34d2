"""The steps of the demo, each with its check, and the page that stays open at the end.

A step announces what it does, does it on the real processes of `stage.py`, and raises `WentWrong` if the
expected result does not follow.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from ..cli.format import Styled, console, count, harmless, on_terminal, say, write
from ..dashboard.browser_sessions import login_link
from .stage import Stage, WentWrong, kill, until, within
from .storyteller import Storyteller

PATH = "/demo"


async def keep_page(stage: Stage) -> None:
    """Run until Ctrl-C. Restarts a server that was killed; raises WentWrong if it exited otherwise."""
    link = login_link(stage.url, stage.home, PATH)
    if link is None:
        raise WentWrong("the server has made no local key")
    say()
    say(Styled("Now you: ", "bold"), "a reply is streaming, and there is a red button that kills the server.")
    say("  ", Styled(link, "bold underline"))
    say(Styled("  Ctrl-C here ends the demo and removes everything it made.", "dim"))
    if on_desktop():
        import webbrowser

        webbrowser.open(link)
    killed = 0
    while True:
        assert stage.server is not None
        code = await stage.server.wait()
        if code != -signal.SIGKILL:
            raise WentWrong(f"the server exited with code {code}")
        pid, killed = await stage.serve(), killed + 1
        say(Styled(f"  killed {count(killed, 'time')}; the server is process {pid} now", "dim"))


def on_desktop() -> bool:
    """True if a browser would open a window, not take over this terminal."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    windows = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in windows)


KEY = "cli:ada"
RECOVERED = "cli:eve"
TELEGRAM = "telegram:dm:42"
REPLY_INDENT = 5
WORDS = 25
"""Words of the story that are received before the server is killed."""
PREVIEW = f"{shlex.quote(sys.executable)} -m http.server --bind 127.0.0.1 0"


class Tour:
    def __init__(self, stage: Stage, teller: Storyteller) -> None:
        self._stage = stage
        self._teller = teller
        self._number = 0
        self._column = 0
        self._width = console().width if on_terminal() else 0
        self._first_session = ""
        self._conversation = ""
        self._ended = ""
        """The session that was reset."""

    async def run(self) -> None:
        """Run every step in order. Raises WentWrong at the first that did not have the announced result."""
        steps: tuple[Callable[[], Awaitable[None]], ...] = (
            self._talks,
            self._is_killed,
            self._comes_back,
            self._finishes_by_itself,
            self._leaves_nothing_open,
            self._compacts,
            self._resets,
            self._remembers_once,
            self._is_examined,
        )
        for step in steps:
            await step()

    # --- nothing said is lost --------------------------------------------------------------------------

    async def _talks(self) -> None:
        self._promise("Nothing said is lost")
        self._title("It talks", "A server of its own, and a message. It is on disk before it is answered.")
        began = time.monotonic()
        pid = await self._stage.serve()
        self._did(f"holdfast serve is process {pid}, ready after {time.monotonic() - began:.1f} s")
        reply, ids, _ = await self._say("My name is Ada.", KEY)
        self._first_session, self._conversation = ids["session_id"], ids["conversation_id"]
        kept = await self._messages()
        self._check(len(kept) == 2 and reply == kept[1]["content"], "both lines are on disk")
        self._proof(f"{count(len(kept), 'message')} in {self._conversation}, session {self._first_session}")

    async def _is_killed(self) -> None:
        self._title(
            "It is killed in the middle of a reply", "kill -9: no handler runs, nothing is cleaned up."
        )
        await self._hear_until_killed("Tell me a story.", **self._story())

    async def _hear_until_killed(self, text: str, **headers: str) -> None:
        """Ask for a story, and kill the server after some words of it."""
        self._spoken(text)
        heard, pid = "", 0
        async for word in self._stage.stream(text, **headers):
            self._word(word)
            heard += word
            if len(heard.split()) >= WORDS:
                assert self._stage.server is not None
                pid = self._stage.server.pid
                await self._stage.kill_server()
                break
        self._line(Styled(" ✂", "bold red"))
        self._check(len(heard.split()) >= WORDS, "the story had begun")
        self._did(f"kill -9 {pid}: the server is gone, and so is the connection")

    async def _comes_back(self) -> None:
        self._title(
            "It comes back, and nothing stored is lost",
            "Another server on the same file, and the same request again.",
        )
        began = time.monotonic()
        pid = await self._stage.serve()
        self._did(f"process {pid} answers after {time.monotonic() - began:.1f} s")
        half = (await self._messages())[-1]
        self._check(
            half["role"] == "assistant" and half["status"] == "interrupted", "the half reply is marked"
        )
        self._proof(
            f"kept up to the last half second, and marked {half['status']}: “…{_end(half['content'])}”"
        )
        self._did("the client sends its request again, with the same Idempotency-Key")
        self._begin_reply()
        async for word in self._stage.stream("Tell me a story.", **self._story()):
            self._word(word)
        self._line()
        turns = await self._stage.data(f"/api/sessions/{self._first_session}/turns")
        visible = [each["content"] for each in await self._messages() if each["status"] == "completed"]
        self._check([turn["status"] for turn in turns] == ["completed"] * 2, "the retry is one turn")
        self._check(visible.count("Tell me a story.") == 1, "the question is there once")
        self._proof(f"{count(len(turns), 'turn')}, all completed; the question is stored once")

    def _story(self) -> dict[str, str]:
        return {"X_Holdfast_Session_Key": KEY, "Idempotency_Key": "story-1", "X_Holdfast_Recover": "no"}

    async def _finishes_by_itself(self) -> None:
        self._title(
            "A reply finishes by itself",
            "Killed once more. This time the client sends nothing again: the next server finishes the turn.",
        )
        await self._hear_until_killed("Tell me a story.", X_Holdfast_Session_Key=RECOVERED)
        pid = await self._stage.serve()

        async def completed() -> dict[str, Any] | None:
            turns = await self._stage.data(f"/api/sessions/{RECOVERED}/turns")
            return turns[0] if len(turns) == 1 and turns[0]["status"] == "completed" else None

        turn = await until(completed, "the turn is completed")
        assert turn is not None
        self._check(turn["attempt"] == 2, "the second attempt completed the turn")
        path = f"/api/sessions/{RECOVERED}/messages?scope=conversation"
        reply = (await self._stage.data(path))[-1]
        self._check(reply["status"] == "completed", "the reply is whole")
        self._proof(f"process {pid} has completed attempt {turn['attempt']}: “…{_end(reply['content'])}”")

    # --- nothing stays open by accident ----------------------------------------------------------------

    async def _leaves_nothing_open(self) -> None:
        self._promise("Nothing stays open by accident")
        self._title(
            "A killed program leaves nothing open",
            "A `holdfast chat` in a process of its own says hello, and is killed.",
        )
        chat = await self._stage.start("chat", "--key", "cli:bob", stdin=asyncio.subprocess.PIPE)
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write(b"hello\n")
        self._spoken("hello")
        reply = await within(chat.stdout.readline(), "the chat answers")
        self._line(harmless(reply.decode().strip()))
        self._check(bool(reply), "the chat answers")
        (session,) = await self._stage.data("/api/sessions?key=cli:bob")
        self._did(
            f"{session['id']} is {session['state']}, attached to process {chat.pid}; kill -9 {chat.pid}"
        )
        await kill(chat)
        began = time.monotonic()

        async def reaped() -> bool:
            found, _ = await self._stage.ask("GET", f"/api/sessions/{session['id']}")
            return bool(found["end_reason"] == "reaped")

        await until(reaped, "the killed chat's session is reaped")
        took = time.monotonic() - began
        statistics = msgspec.json.decode(await self._stage.run("sessions", "stats", "--json"))
        self._check(statistics["leaked"] == 0, "no session is leaked")
        self._proof(
            f"reaped {took:.1f} s later; {statistics['leaked']} of {statistics['total']} sessions leaked"
        )

    # --- an id keeps working ---------------------------------------------------------------------------

    async def _compacts(self) -> None:
        self._promise("An id keeps working")
        self._title(
            "It compacts, and the first id still works",
            "Older messages become a summary in a new session. The client does not notice.",
        )
        await self._say("Thank you.", KEY)
        compacted, _ = await self._stage.ask("POST", f"/api/sessions/{self._first_session}/compact")
        newest = compacted["id"]
        self._did(f"{self._first_session} continues in {newest}")
        reply, ids, headers = await self._say("What is my name?", session_id=self._first_session)
        self._check(
            ids["session_id"] == newest and "Ada" in reply, "the first id leads to the newest session"
        )
        everything = await self._messages()
        self._check(everything[0]["content"] == "My name is Ada.", "the first message is still there")
        self._proof(f"asked by the first id; X-Holdfast-Session-Id names {headers['X-Holdfast-Session-Id']}")
        self._proof(
            f"all {len(everything)} messages stay readable, from the first: “{everything[0]['content']}”"
        )

    # --- resets happen when they should, and say why ---------------------------------------------------

    async def _resets(self) -> None:
        self._promise("Resets happen when they should, and say why")
        self._title(
            "It resets past a forgotten preview server",
            "This source is reset after six idle seconds. An agent has left a web server running.",
        )
        await self._say("My name is Ada, and I like seaweed.", TELEGRAM)
        _, ids, _ = await self._say("What is my name?", TELEGRAM)
        self._ended = ids["session_id"]
        path = f"/api/sessions/{self._ended}"
        process, _ = await self._stage.ask("POST", f"{path}/processes", {"command": PREVIEW})
        self._did(f"{process['id']} runs: {PREVIEW}")
        self._teller.keeps_flushes_waiting = True

        async def reset() -> bool:
            found, _ = await self._stage.ask("GET", path)
            return bool(found["end_reason"] == "idle")

        async def is_idle() -> bool:
            found, _ = await self._stage.ask("GET", f"/api/processes/{process['id']}")
            return not found["active"] or await reset()

        async def stopped() -> str:
            found, _ = await self._stage.ask("GET", f"/api/processes/{process['id']}")
            return found["state"] if found["state"] not in ("starting", "running") else ""

        await until(is_idle, "the preview server is idle")
        why, _ = await self._stage.ask("GET", f"{path}/why")
        self._quote("holdfast why", why["sentence"])
        await until(reset, "the session is reset")
        state = await until(stopped, "the preview server is stopped")
        why, _ = await self._stage.ask("GET", f"{path}/why")
        self._quote("holdfast why", why["sentence"])
        notices = await self._stage.data("/api/notices?undelivered=1")
        told = next((notice["text"] for notice in notices if notice["kind"] == "reset"), None)
        self._check(told is not None, "there is a notice of the reset")
        self._quote("the notice for the person", str(told))
        self._proof(f"ended as idle; {process['id']} is {state}")

    # --- memory is flushed once ------------------------------------------------------------------------

    async def _remembers_once(self) -> None:
        self._promise("Memory is flushed once")
        self._title(
            "It remembers once, whatever happens",
            "The model is asked what to remember of the reset session; the server is killed meanwhile.",
        )
        await within(self._teller.silent.wait(), "the model is asked what to remember")
        assert self._stage.server is not None
        self._did(f"the model is being asked; kill -9 {self._stage.server.pid}")
        await self._stage.kill_server()
        self._teller.keeps_flushes_waiting = False
        await self._stage.serve()

        async def remembered() -> list[dict[str, Any]]:
            return [
                each for each in await self._stage.data("/api/memories") if each["session_id"] == self._ended
            ]

        await until(remembered, "the session is remembered")
        await self._stage.kill_server()
        pid = await self._stage.serve()
        self._did(f"killed once more, and started: process {pid}")
        memories = await remembered()
        asked = self._teller.asked["flush"]
        self._check(len(memories) == 1, "there is one memory")
        self._check(asked == 2, "the model is asked once, and once more for the call that was cut")
        self._proof(f"one memory: “{memories[0]['text']}”")
        self._proof(f"3 servers, {asked} model calls: the one that was cut, and the one that counted")
        reply, _, headers = await self._say("What is my name?", TELEGRAM)
        self._check("Ada" in reply, "the next session knows")
        self._proof(
            f"a fresh session (X-Holdfast-Reset: {headers.get('X-Holdfast-Reset')}), with that memory"
        )

    async def _is_examined(self) -> None:
        say()
        self._title("It is examined", "`holdfast doctor` checks every invariant.")
        found = msgspec.json.decode(await self._stage.run("doctor", "--json"))
        self._check(found["ok"], "every invariant holds")
        self._proof(f"{len(found['data'])} of {len(found['data'])} hold")

    # --- output ----------------------------------------------------------------------------------------

    async def _say(
        self, text: str, key: str | None = None, session_id: str | None = None
    ) -> tuple[str, dict[str, Any], Mapping[str, str]]:
        self._spoken(text)
        named = {"X_Holdfast_Session_Key": key} if key else {"X_Holdfast_Session_Id": session_id or ""}
        reply, ids, headers = await self._stage.say(text, **named)
        self._line(harmless(reply))
        return reply, ids, headers

    async def _messages(self) -> list[dict[str, Any]]:
        return await self._stage.data(f"/api/sessions/{self._conversation}/messages?scope=conversation")

    def _promise(self, name: str) -> None:
        say()
        say(Styled(name.upper(), "bold cyan"))

    def _title(self, title: str, sentence: str) -> None:
        self._number += 1
        say(Styled(f"{self._number}. {title}", "bold"))
        say(Styled(sentence, "dim"), indent=3)

    def _spoken(self, text: str) -> None:
        say(Styled("   > ", "bold cyan"), text)
        self._begin_reply()

    def _begin_reply(self, before: str = "") -> None:
        write(f"{before}{' ' * REPLY_INDENT}")
        sys.stdout.flush()
        self._column = REPLY_INDENT

    def _word(self, word: str) -> None:
        """Print a word of a reply, on the next line if this one is full."""
        if on_terminal() and self._column + len(word.rstrip()) > self._width:
            self._begin_reply("\n")
            word = word.lstrip()
        write(harmless(word))
        sys.stdout.flush()
        self._column += len(word)

    def _line(self, text: str | Styled = "") -> None:
        say(text)

    def _did(self, sentence: str) -> None:
        say(sentence, indent=3)

    def _quote(self, whose: str, words: str) -> None:
        say(Styled(f"{whose}: ", "dim"), words, indent=3)

    def _proof(self, sentence: str) -> None:
        say(Styled("✓ ", "bold green"), sentence, indent=3)

    def _check(self, holds: bool, what: str) -> None:
        """Raise WentWrong unless it holds: every proof is verified, not only shown."""
        if not holds:
            raise WentWrong(f"it is not true that {what}")


def _end(text: str) -> str:
    return " ".join(text.split()[-6:])
