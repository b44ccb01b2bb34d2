"""`/demo`, the page with the red button: kills the server while a reply streams, and shows that none of it is
lost.

It exists only in a server that was started with HOLDFAST_DEMO=1 and listens on loopback; elsewhere its paths
are 404. What `holdfast demo` does for it:

- makes its own home, sets HOLDFAST_HOME to it and HOLDFAST_DEMO to 1, and runs `holdfast serve` as a child on
  a fixed port; if SIGKILL ended the child, it starts another on the same port at once;
- uses a slow model (about twenty seconds a reply), so that there is a reply to interrupt;
- prints `browser_sessions.login_link(url, home, "/demo")` once the first child answers. The login is a row of
  the store, so it survives the kills.

GET /demo            the page
POST /demo/ask       requests a long reply in the conversation with the session key `demo:page`; the page's
                     script does so itself if the conversation is empty
POST /demo/kill      appends to `<home>/demo.kills` what had been acknowledged so far (one line of JSON for
                     each kill, with fsync), then sends SIGKILL to its own process

The page says that the server was killed, and retries until a server answers. That server finishes the reply
by itself (`[turns] recover = "all"`); the partial one is folded above it. The page's counter shows how often
the server was killed and how much of what had been acknowledged is missing now. It is computed from
`demo.kills` and the store each time, so it is true.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from ..app import Holdfast
from ..domain.conversations import Address
from ..domain.ids import new_id
from ..domain.messages import text_of
from ..domain.pages import Resolved
from ..errors import NotFound
from ..server.http import RequestContext
from ..server.response_writer import HttpResponse, JsonResponse
from ..settings import home
from .conversation import MOST_TURNS, MessageView, draft_of, kept_of, shown, speak
from .endpoint import PageRoute
from .pages import go, html
from .request import PageRequest

log = logging.getLogger(__name__)

KEY = "demo:page"
FILE_NAME = "demo.kills"
SHOWN = 6
MOST_CHECKED = 100
QUESTION = "Tell me a long story about a seaweed that never lets go of its rock, whatever the sea does."


class Kill(msgspec.Struct):
    """What had been acknowledged when the server was killed."""

    conversation: str
    last_seq: int
    turn: str | None = None
    kept: int = 0
    """The number of characters of the running reply that were on disk."""
    hash: str = ""
    """SHA-256 of these characters."""


@dataclass(frozen=True, slots=True)
class Score:
    killed: int
    lost: int


class KillBook:
    """The file of kills in the demo's home, one line each."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def add(self, kill: Kill) -> None:
        """Append a kill; it is on disk (fsync) when this returns."""
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, msgspec.json.encode(kill) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)

    def all(self) -> list[Kill]:
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [msgspec.json.decode(line, type=Kill) for line in lines]


async def score_of(hf: Holdfast, kills: list[Kill]) -> Score:
    """The number of kills, and how much of what was acknowledged before the newest of them is missing now."""
    lost, highest = 0, dict[str, int]()
    for kill in kills[-MOST_CHECKED:]:
        highest[kill.conversation] = max(kill.last_seq, highest.get(kill.conversation, 0))
        if kill.turn is not None and kill.kept and not await _is_kept(hf, kill):
            lost += 1
    for conversation_id, last in highest.items():
        found = await hf.messages(None, conversation_id, last=last)
        lost += last - len(found.items)
    return Score(len(kills), lost)


async def _is_kept(hf: Holdfast, kill: Kill) -> bool:
    """True: the partial reply still exists, with every character that was on disk."""
    assert kill.turn is not None
    texts = [text_of(each.content().get("content")) for each in await hf.turn_messages(kill.turn)]
    texts.append(await kept_of(hf, kill.turn))  # the turn may not be marked interrupted yet
    return any(_hash(text[: kill.kept]) == kill.hash for text in texts)


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


async def _place(visit: PageRequest) -> Resolved | None:
    try:
        return await visit.hf.resolve(visit.caller.owner, Address(key=KEY, create=False))
    except NotFound:
        return None


async def page(visit: PageRequest) -> HttpResponse:
    hf, place = visit.hf, await _place(visit)
    kills = KillBook(home()).all()
    if place is None:
        return html(visit, "demo.html", messages=[], running=None, tip=None, score=Score(len(kills), 0))
    found = await hf.messages(place.tip.owner, place.conversation.id, limit=SHOWN, newest_first=True)
    turns = await hf.turns(place.tip.owner, place.conversation.id, limit=MOST_TURNS)
    running = place.tip.running_turn
    return html(
        visit,
        "demo.html",
        messages=_one_half_each(shown(list(reversed(found.items)), turns, [place.tip])),
        tip=place.tip,
        running=running,
        draft=await draft_of(visit.services, running) if running else "",
        speaks=True,
        score=await score_of(hf, kills),
    )


def _one_half_each(views: list[MessageView]) -> list[MessageView]:
    """Without the partial replies of a turn but its last: a reply killed twice is not shown twice."""
    last = {view.message.turn_id: view for view in views if view.replaced}
    return [view for view in views if not view.replaced or last[view.message.turn_id] is view]


async def ask(visit: PageRequest) -> HttpResponse:
    await speak(visit, {"x-holdfast-session-key": KEY}, QUESTION, once=new_id("req"))
    return go("/demo")


async def kill(visit: PageRequest) -> HttpResponse:
    place = await _place(visit)
    if place is not None:
        running = place.tip.running_turn
        kept = await kept_of(visit.hf, running) if running else ""
        KillBook(home()).add(Kill(place.conversation.id, place.tip.last_seq, running, len(kept), _hash(kept)))
    return LastWords(html(visit, "killed.html"))


@dataclass(frozen=True, slots=True)
class LastWords:
    """Sends a response, then kills this process with SIGKILL."""

    reply: JsonResponse

    async def send(self, call: RequestContext) -> None:
        await self.reply.send(call)
        await asyncio.sleep(0.02)  # so that the response has left the process
        log.warning("killed by the red button")
        os.kill(os.getpid(), signal.SIGKILL)


PAGES: tuple[PageRoute, ...] = (
    PageRoute("GET", "/demo", page, "The page with the kill button; only in `holdfast demo`."),
    PageRoute("POST", "/demo/ask", ask, "Ask for a long reply; only in `holdfast demo`."),
    PageRoute("POST", "/demo/kill", kill, "SIGKILL to the server itself; only in `holdfast demo`."),
)
