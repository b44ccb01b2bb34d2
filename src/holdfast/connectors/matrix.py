"""The Matrix connector: an account on a homeserver, by matrix-nio and its long-polled sync.

A room whose only members are the bot and one person is a direct chat; any other room is one owner. In such a
room only messages that mention the bot or reply to it are taken. Replies are edited while they grow. Every
send has a transaction id that is derived from the delivery, so the homeserver stores it once: delivery is
exactly once. Files are named in the text, and fetched to be stored as attachments. End-to-end encrypted
messages cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from ..domain.attachments import FileRef
from ..domain.connectors import EVERYONE, Incoming, IncomingKind, PlatformLimits, command_in
from ..domain.ids import check_name
from ..domain.installation import install_command
from ..errors import BadInput, BadSetting
from ..os_support import installation
from ..settings import MatrixSettings
from .base import (
    ConnectorDown,
    MessageGone,
    SendFailed,
    SendRefused,
    Sink,
    WrongSignature,
    download,
    secret_of,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

log = logging.getLogger(__name__)

LONGEST_MESSAGE = 7_000
"""An edit has the text twice, and an event at most 65,536 bytes: fits even if every character has four."""
LARGEST_CONTENT = 60_000
REQUEST_SECONDS = 30.0
TYPING_MILLISECONDS = 6_000
PAGE = 100
MOST_GONE = 10_000
MOST_JOINING = 100
JOIN_SECONDS = 5.0
"""How long a poll waits for rooms to be joined: it may take for ever if their homeserver is down."""
JOIN_ATTEMPTS = 12
FIRST_JOIN_PAUSE, LONGEST_JOIN_PAUSE = 2.0, 600.0
REACTIONS = {"🛑": "/stop", "⏹": "/stop", "🔁": "/retry", "🔄": "/retry"}
"""A reaction to one of the bot's messages that is a command."""
SYNC_FILTER = {
    "presence": {"types": []},
    "account_data": {"types": []},
    "room": {
        "timeline": {"limit": PAGE},
        "state": {"lazy_load_members": True},
        "ephemeral": {"types": []},
        "account_data": {"types": []},
    },
}
_MEDIA = {
    "m.image": "image",
    "m.file": "file",
    "m.audio": "audio",
    "m.video": "video",
    "m.location": "location",
}

_MXC = re.compile(r"mxc://([A-Za-z0-9.:\[\]-]+)/([A-Za-z0-9_-]+)")

Event = Mapping[str, Any]


class MatrixError(Exception):
    """A request that the homeserver did not carry out, or whose answer is unknown (status 0)."""

    def __init__(self, status: int, why: str, code: str = "", retry_after: timedelta | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.code = code
        self.retry_after = retry_after

    def as_failure(self) -> SendFailed | SendRefused:
        """For the worker: 401, 429, 5xx and lost answers are tried again, other statuses are final."""
        if self.status in (0, 401, 408, 429) or self.status >= 500 or self.code == "M_LIMIT_EXCEEDED":
            return SendFailed(str(self), self.retry_after)
        return SendRefused(str(self))


def without_call(text: str, own_id: str, names: Sequence[str]) -> str:
    """The text without a call of the bot at its beginning: `@bot:server`, `bot:`, `@Bot, `."""
    text = text.lstrip()
    for called in (own_id, *(f"@{name}" for name in names), *names):
        rest = text.removeprefix(called)
        if rest == text or (called != own_id and (rest[:1].isalnum() or rest[:1] in ("_", "-")) and rest):
            continue
        rest = rest.lstrip()
        return rest[1:] if rest[:1] in (":", ",") else rest
    return text


class MatrixConnector:
    kind = "matrix"
    limits = PlatformLimits(
        characters=LONGEST_MESSAGE,
        can_edit=True,
        edit_seconds=1.5,
        can_type=True,
        deduplicates=True,
    )

    def __init__(self, name: str, settings: MatrixSettings, token: str | None = None) -> None:
        try:
            from nio import AsyncClient, AsyncClientConfig
        except ImportError:
            command = install_command(installation(), "matrix-nio")
            raise BadSetting(
                f"connectors.{name}: Matrix needs one more package (the extra `matrix`): {command}"
            ) from None

        where = f"connectors.{name}"
        if not settings.homeserver:
            raise BadSetting(f"{where}.homeserver is empty; give the address, such as https://matrix.org")
        self._poll_seconds = settings.poll_seconds
        self._allow = settings.allow
        # nio's own retries are switched off: the worker retries, and records that it does.
        self._client: Any = AsyncClient(
            settings.homeserver.rstrip("/"),
            config=AsyncClientConfig(
                max_limit_exceeded=0,
                max_timeouts=0,
                request_timeout=REQUEST_SECONDS,
                encryption_enabled=False,
                store_sync_tokens=False,
            ),
        )
        self._client.access_token = token or secret_of(settings.token_env, f"{where}.token_env")
        self._me = ""
        self._members: dict[str, dict[str, str]] = {}
        """The members of a room and their names, as far as they were needed."""
        self._gone: dict[str, None] = {}
        """Events that were redacted since this connector runs."""
        self._unreadable: set[str] = set()
        self._left: dict[str, None] = {}
        """Invitations that were not accepted."""
        self._joining: dict[str, asyncio.Task[Any]] = {}
        """Rooms that are being joined."""

    # --- receiving ------------------------------------------------------------------------------------

    async def run(self, sink: Sink) -> None:
        try:
            await self._who_am_i()
            self._client.next_batch = ""
            if sink.cursor is None:  # what was said before the first start is not answered
                first = await self._sync(None)
                await self._accept_invitations(first)
                await sink.receive((), first.next_batch)
            await sink.up()
            while True:
                await self._poll(sink)
        except MatrixError as error:
            raise ConnectorDown(str(error)) from None

    async def _poll(self, sink: Sink) -> None:
        """One sync. Its messages are on disk before the next one asks for what follows."""
        since = sink.cursor
        found = await self._sync(since)
        events: list[Incoming] = []
        read: dict[str, str] = {}
        for room, joined in found.rooms.join.items():
            timeline = [each.source for each in joined.timeline.events]
            if joined.timeline.limited:
                self._members.pop(room, None)
                timeline = await self._missed(room, joined.timeline.prev_batch, since, timeline)
            taken = await self._taken(room, timeline)
            events += taken
            if taken:
                read[room] = timeline[-1]["event_id"]
        await self._accept_invitations(found)
        if not events and found.next_batch == since:
            await sink.up()
            return
        await sink.receive(events, found.next_batch)
        for room, event_id in read.items():
            try:
                await self._call(self._client.room_read_markers(room, event_id, event_id))
            except MatrixError as error:
                log.debug("matrix: the read marker was not set: %s", error)

    async def _sync(self, since: str | None) -> Any:
        wait = int(self._poll_seconds * 1000) if since else 0
        return await self._call(self._client.sync(wait, SYNC_FILTER, since, set_presence="online"))

    async def _missed(
        self, room: str, before: str | None, since: str | None, timeline: list[Event]
    ) -> list[Event]:
        """The timeline with what a sync has left out between `since` and its first event."""
        known = {each["event_id"] for each in timeline}
        while before and not any(self._is_own_entry(each) for each in timeline):
            page = await self._call(self._client.room_messages(room, before, since, limit=PAGE))
            older = [each.source for each in page.chunk if each.source["event_id"] not in known]
            if not older:
                break
            known.update(each["event_id"] for each in older)
            timeline = [*reversed(older), *timeline]
            before = page.end
        return timeline

    def _is_own_entry(self, event: Event) -> bool:
        """True: with this event the bot was invited or joined."""
        if event["type"] != "m.room.member" or event.get("state_key") != self._me:
            return False
        before = (event.get("unsigned") or {}).get("prev_content") or {}
        membership = event["content"].get("membership")
        return membership == "invite" or (membership == "join" and before.get("membership") != "join")

    async def _taken(self, room: str, timeline: Sequence[Event]) -> list[Incoming]:
        """The messages for the bot, in order. What was said before it was invited is not."""
        first, invited = 0, False
        for at, event in enumerate(timeline):
            if self._is_own_entry(event) and not (invited and event["content"]["membership"] == "join"):
                first, invited = at + 1, event["content"]["membership"] == "invite"
        events = []
        for event in timeline[first:]:
            try:
                found = await self._event(room, event)
            except (BadInput, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                log.warning("matrix: event %s cannot be read: %r", event.get("event_id"), error)
                continue
            if found is not None:
                events.append(found)
        return events

    async def _event(self, room: str, event: Event) -> Incoming | None:
        sender, content = str(event["sender"]), event["content"]
        match event["type"]:
            case "m.room.member":
                self._note_member(room, event)
            case "m.room.redaction":
                target = str(event.get("redacts") or content["redacts"])
                _add(self._gone, target)
                return Incoming(target, room, f"matrix:{room}", sender, "", kind=IncomingKind.DELETE)
            case "m.room.encrypted" if room not in self._unreadable:
                self._unreadable.add(room)
                log.warning("matrix: room %s is encrypted; its messages cannot be read", room)
            case "m.reaction" if sender != self._me:
                return await self._reaction(room, event)
            case "m.room.message" if sender != self._me and content.get("msgtype") != "m.notice":
                return await self._message(room, event)
        return None

    async def _reaction(self, room: str, event: Event) -> Incoming | None:
        """A reaction to a message of the bot as the command it is."""
        relation = event["content"]["m.relates_to"]
        text = REACTIONS.get(str(relation["key"]).rstrip("\ufe0f"))
        if text is None:
            return None
        original = await self._get_event(room, relation["event_id"])
        if original is None or original["sender"] != self._me:
            return None
        return await self._incoming(room, event, text, thread=_thread_of(original))

    async def _message(self, room: str, event: Event) -> Incoming | None:
        content = event["content"]
        relation = content.get("m.relates_to") or {}
        original, kind = event, IncomingKind.MESSAGE
        if relation.get("rel_type") == "m.replace":
            found = await self._get_event(room, relation["event_id"])
            if found is None or found["sender"] != event["sender"]:
                return None  # homeservers accept an edit of another person's message; readers must not
            original, kind, content = found, IncomingKind.EDIT, content["m.new_content"]
        text = _said(content)
        if not await self._is_direct(room, str(event["sender"])):
            meant = await self._meant(room, content, original, text)
            if meant is None:
                return None
            text = meant
        if text.startswith("!") and command_in(f"/{text[1:]}"):
            text = f"/{text[1:]}"  # many Matrix programs keep `/` for commands of their own
        if not text:
            return None
        incoming = await self._incoming(room, original, text, thread=_thread_of(original), kind=kind)
        return replace(incoming, files=_files(content))

    async def _incoming(
        self, room: str, event: Event, text: str, *, thread: str, kind: IncomingKind = IncomingKind.MESSAGE
    ) -> Incoming:
        person = str(event["sender"])
        direct = await self._is_direct(room, person)
        # A direct chat's address names the person: if another person remains alone with the bot, that is
        # another place.
        address = " ".join(filter(None, (room, person if direct else "", thread)))
        return Incoming(
            platform_id=event["event_id"],
            address=check_name("the place's address", address),
            key=check_name("the session key", f"matrix:{room}" + (f":thread:{thread}" if thread else "")),
            person=person,
            text=text,
            room="" if direct else room,
            name=(await self._names(room)).get(person) or person,
            sent_at=datetime.fromtimestamp(event["origin_server_ts"] / 1000, UTC),
            kind=kind,
        )

    async def _meant(self, room: str, content: Event, original: Event, text: str) -> str | None:
        """The text of a room's message without the mention of the bot; None: it is not for the bot."""
        mentioned = self._me in ((content.get("m.mentions") or {}).get("user_ids") or ()) or self._me in text
        if not mentioned:
            relation = original["content"].get("m.relates_to") or {}
            replied = (relation.get("m.in_reply_to") or {}).get("event_id")
            if not replied or relation.get("is_falling_back"):
                return None
            answered = await self._get_event(room, replied)
            if answered is None or answered["sender"] != self._me:
                return None
        names = ((await self._names(room)).get(self._me), self._me[1:].partition(":")[0])
        return without_call(text, self._me, [each for each in names if each]).replace(self._me, "").strip()

    # --- rooms ----------------------------------------------------------------------------------------

    async def _accept_invitations(self, found: Any) -> None:
        """Join direct chats, and rooms if `allow` has the room or who invites. One that cannot be joined now
        is tried again in the background: messages of other rooms do not wait for it."""
        from nio import InviteMemberEvent

        began: list[asyncio.Task[bool]] = []
        for room, invited in found.rooms.invite.items():
            own = [
                each
                for each in invited.invite_state
                if isinstance(each, InviteMemberEvent) and each.state_key == self._me
            ]
            direct = any(each.content.get("is_direct") for each in own)
            by = frozenset(str(each.sender) for each in own)
            allowed = bool({room, EVERYONE, *by} & set(self._allow))
            if room in self._joining:
                continue
            if (not direct and not allowed) or len(self._joining) >= MOST_JOINING:
                if room not in self._left:
                    log.warning("matrix: not joining %s: allow has neither it nor %s", room, " ".join(by))
                _add(self._left, room)
                continue
            alone_with = None if allowed else by
            began.append(asyncio.create_task(self._join(room, alone_with)))
            self._joining[room] = asyncio.create_task(self._join_later(room, alone_with, began[-1]))
        if began:
            await asyncio.wait(began, timeout=JOIN_SECONDS)

    async def _join(self, room: str, alone_with: frozenset[str] | None) -> bool:
        """Join a room; False: it may succeed later. `alone_with`: a room that has other members than these
        is left again: who invites can call any room a direct chat."""
        try:
            await self._call(self._client.join(room))
            if alone_with is not None and (await self._names(room)).keys() - {self._me, *alone_with}:
                log.warning("matrix: leaving %s: it is not a direct chat, and allow does not have it", room)
                await self._call(self._client.room_leave(room))
                self._members.pop(room, None)
        except MatrixError as error:
            if isinstance(error.as_failure(), SendFailed):
                return False
            log.warning("matrix: room %s cannot be joined: %s", room, error)
        return True

    async def _join_later(
        self, room: str, alone_with: frozenset[str] | None, first: asyncio.Task[bool]
    ) -> None:
        try:
            done = await first
            for attempt in range(JOIN_ATTEMPTS):
                if done:
                    return
                await asyncio.sleep(min(FIRST_JOIN_PAUSE * 2**attempt, LONGEST_JOIN_PAUSE))
                done = await self._join(room, alone_with)
            log.warning("matrix: room %s could not be joined in %d attempts", room, JOIN_ATTEMPTS)
        except Exception:
            log.exception("matrix: room %s could not be joined", room)
        finally:
            del self._joining[room]

    async def _names(self, room: str) -> dict[str, str]:
        """The room's members and their display names."""
        members = self._members.get(room)
        if members is None:
            found = await self._call(self._client.joined_members(room))
            members = {each.user_id: each.display_name or "" for each in found.members}
            self._members[room] = members
        return members

    def _note_member(self, room: str, event: Event) -> None:
        members = self._members.get(room)
        if members is None:
            return
        if event["content"].get("membership") == "join":
            members[event["state_key"]] = event["content"].get("displayname") or ""
        else:
            members.pop(event["state_key"], None)

    async def _is_direct(self, room: str, person: str) -> bool:
        return not (await self._names(room)).keys() - {self._me, person}

    async def _get_event(self, room: str, event_id: str) -> Event | None:
        try:
            found = await self._call(self._client.room_get_event(room, event_id))
        except MatrixError as error:
            if isinstance(error.as_failure(), SendFailed):
                raise
            return None
        event: Event = found.event.source
        return event

    async def accept(self, headers: Mapping[str, str], body: bytes) -> Sequence[Incoming]:
        raise WrongSignature("Matrix does not push to this server")

    async def fetch(self, ref: str, most: int) -> bytes:
        import aiohttp

        found = _MXC.fullmatch(ref)
        if found is None:
            raise SendRefused("its address is not one of Matrix")
        url = f"{self._client.homeserver}/_matrix/client/v1/media/download/{found[1]}/{found[2]}"
        headers = {"authorization": f"Bearer {self._client.access_token}"}
        async with aiohttp.ClientSession() as http:
            return await download(http, url, most, "the homeserver", headers)

    # --- sending --------------------------------------------------------------------------------------

    async def send(self, address: str, text: str, *, key: str, reply_to: str | None = None) -> str:
        room, direct, thread = _parts_of(address)
        content = content_of(text)
        if thread:
            replied = {"event_id": reply_to or thread}
            content["m.relates_to"] = {
                "rel_type": "m.thread",
                "event_id": thread,
                "is_falling_back": True,
                "m.in_reply_to": replied,
            }
        elif reply_to is not None and not direct:
            content["m.relates_to"] = {"m.in_reply_to": {"event_id": reply_to}}
        return await self._put(room, "m.room.message", content, key)

    async def edit(self, address: str, message_id: str, text: str, *, key: str) -> None:
        if message_id in self._gone:
            raise MessageGone(f"{message_id} was redacted")
        new = content_of(text)
        content = {
            **new,
            "body": f"* {text}",
            "m.new_content": new,
            "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
        }
        if len(msgspec.json.encode(content)) > LARGEST_CONTENT:
            for each in (content, new):
                each.pop("format", None)
                each.pop("formatted_body", None)
        await self._put(_parts_of(address)[0], "m.room.message", content, key)

    async def typing(self, address: str) -> None:
        await self._sending(
            self._client.room_typing(_parts_of(address)[0], True, timeout=TYPING_MILLISECONDS)
        )

    async def react(self, address: str, message_id: str, reaction: str) -> None:
        relation = {"rel_type": "m.annotation", "event_id": message_id, "key": reaction}
        key = f"react-{message_id}-{reaction}"
        await self._put(_parts_of(address)[0], "m.reaction", {"m.relates_to": relation}, key)

    async def close(self) -> None:
        joining = [*self._joining.values()]
        for task in joining:
            task.cancel()
        await asyncio.gather(*joining, return_exceptions=True)
        await self._client.close()

    async def _put(self, room: str, kind: str, content: Mapping[str, Any], key: str) -> str:
        """Send an event; the homeserver stores it once for each key. Returns its id."""
        sent = await self._sending(self._client.room_send(room, kind, content, tx_id=f"holdfast-{key}"))
        return str(sent.event_id)

    async def _sending(self, request: Awaitable[Any]) -> Any:
        try:
            return await self._call(request)
        except MatrixError as error:
            raise error.as_failure() from None

    # --- the homeserver -------------------------------------------------------------------------------

    async def _who_am_i(self) -> None:
        if not self._me:
            found = await self._call(self._client.whoami())
            self._me = self._client.user_id = found.user_id

    async def _call(self, request: Awaitable[Any]) -> Any:
        """The response to a request of nio's client. Raises MatrixError."""
        import aiohttp
        from nio import ErrorResponse

        try:
            answer = await request
        except TimeoutError:
            raise MatrixError(0, "the homeserver did not answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise MatrixError(0, f"the homeserver cannot be reached: {type(error).__name__}") from None
        if not isinstance(answer, ErrorResponse):
            return answer
        status = answer.transport_response.status if answer.transport_response else 0
        wait = answer.retry_after_ms
        raise MatrixError(
            status if status >= 400 else 0,  # a 200 that cannot be read: whether it was done is unknown
            f"the homeserver answered {status}: {answer.status_code or ''} {answer.message}",
            answer.status_code or "",
            timedelta(milliseconds=wait) if isinstance(wait, int) else None,
        )


def _add(known: dict[str, None], name: str) -> None:
    """Add a name to those that are known, of which the oldest are forgotten."""
    known[name] = None
    if len(known) > MOST_GONE:
        del known[next(iter(known))]


def _parts_of(address: str) -> tuple[str, bool, str]:
    """The room, whether it is a direct chat, and the thread's first event; empty: none."""
    room, *more = address.split(" ")
    thread = more[-1] if more and more[-1].startswith("$") else ""
    return room, bool(more) and more[0].startswith("@"), thread


def _thread_of(event: Event) -> str:
    relation = event["content"].get("m.relates_to") or {}
    return str(relation["event_id"]) if relation.get("rel_type") == "m.thread" else ""


def _said(content: Event) -> str:
    """The text of a message, without the quotation that a reply may begin with; a file by its name."""
    text = str(content.get("body") or "")
    if (content.get("m.relates_to") or {}).get("m.in_reply_to") and text.startswith("> <"):
        text = re.sub(r"\A(?:>[^\n]*\n)+\n?", "", text)
    media = _MEDIA.get(str(content.get("msgtype")))
    if media is not None:
        named = str(content.get("filename") or text)
        details = filter(None, (media, named, (content.get("info") or {}).get("mimetype")))
        text = "\n".join(filter(None, (text if text != named else "", f"[{', '.join(details)}]")))
    return text.strip()


def _files(content: Event) -> tuple[FileRef, ...]:
    """The file of a message, if it has one that is not encrypted."""
    url, info = content.get("url"), content.get("info") or {}
    if _MEDIA.get(str(content.get("msgtype"))) is None or not isinstance(url, str):
        return ()
    size = info.get("size")
    name = str(content.get("filename") or content.get("body") or "")
    mime = str(info.get("mimetype") or "application/octet-stream")
    return (FileRef(url, name, mime, size if isinstance(size, int) else 0),)


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])


def content_of(text: str) -> dict[str, Any]:
    """A message's content: the text, and its Markdown as HTML if it has any. It mentions no one."""
    content: dict[str, Any] = {"msgtype": "m.text", "body": text, "m.mentions": {}}
    html = str(_markdown().render(text)).strip()
    if re.search(r"<(?!/?p>|br)", html):
        content |= {"format": "org.matrix.custom.html", "formatted_body": html}
    if len(msgspec.json.encode(content)) > LARGEST_CONTENT:
        content.pop("format", None)
        content.pop("formatted_body", None)
    return content
