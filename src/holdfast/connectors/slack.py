"""The Slack connector: an app in socket mode, by Slack's Web API and WebSocket.

Direct messages are direct places; a channel is one owner, and a thread in it a conversation of its own. In a
channel only messages that mention the app are taken. A message is acknowledged to Slack once it is on disk;
Slack repeats what was not acknowledged. Replies are edited while they grow. Slack does not deduplicate what
an app sends, so a crash between sending and recording repeats at most that one message. Files are named in
the text, and fetched with the bot token from Slack's own host, and from no other, to be stored as
attachments.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from ..domain.attachments import FileRef
from ..domain.connectors import Incoming, IncomingKind, PlatformLimits, command_in, split
from ..domain.ids import check_name
from ..errors import BadInput, BadSetting
from ..settings import SlackSettings
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
    import aiohttp

log = logging.getLogger(__name__)

LONGEST_MESSAGE = 6_000
"""Slack allows 50 sections in a message: fits even if every character is escaped."""
LONGEST_SECTION = 3_000
"""Characters of a section block, after escaping."""
SHORT_SECTION = 590
"""Characters that fit in a section even if each is `&`, which is five after escaping."""
REQUEST_SECONDS = 30.0
HEARTBEAT_SECONDS = 20.0
PASSES = frozenset({"ratelimited", "internal_error", "fatal_error", "service_unavailable", "request_timeout"})
"""Errors that end by themselves; so does a token that the operator replaces."""
TOKEN_ERRORS = frozenset({"invalid_auth", "not_authed", "token_expired", "token_revoked", "account_inactive"})
GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
_MARKUP = re.compile(
    r"^(?P<fence>`{3,})[^\n`]*\n(?P<code>.*?)(?:\n(?P=fence)[ \t]*$|\Z)"
    r"|(?P<inline>`[^`\n]+`)"
    r"|\*\*(?P<bold>[^*\n]+)\*\*"
    r"|~~(?P<struck>[^~\n]+)~~"
    r"|\[(?P<label>[^\[\]\n]+)\]\((?P<link>https?://[^\s()\[\]<>|]+)\)"
    r"|^\#{1,6}[ \t]+(?P<heading>[^\n]+)$",
    re.DOTALL | re.MULTILINE,
)
ENVELOPE = msgspec.json.Decoder(dict[str, Any])
_MENTION = re.compile(r"<@(?P<user>[A-Z0-9]+)(?:\|[^<>]*)?>[ \t]?")
_REFERENCE = re.compile(r"<(?P<link>[^<>|]+)(?:\|(?P<label>[^<>]*))?>")


class SlackError(Exception):
    """A method that Slack did not carry out, or whose answer is unknown."""

    def __init__(self, code: str, why: str, retry_after: timedelta | None = None, *, passes: bool) -> None:
        super().__init__(why)
        self.code = code
        self.retry_after = retry_after
        self.passes = passes

    def as_failure(self) -> SendFailed | SendRefused:
        return SendFailed(str(self), self.retry_after) if self.passes else SendRefused(str(self))


class SlackConnector:
    kind = "slack"
    # chat.update may be called about 50 times a minute in a workspace.
    limits = PlatformLimits(characters=LONGEST_MESSAGE, can_edit=True, edit_seconds=3.0)

    def __init__(
        self, name: str, settings: SlackSettings, token: str | None = None, app_token: str | None = None
    ) -> None:
        where = f"connectors.{name}"
        self._token = token or secret_of(settings.token_env, f"{where}.token_env")
        self._app_token = app_token or secret_of(settings.app_token_env, f"{where}.app_token_env")
        if not self._token.startswith("xoxb-"):
            raise BadSetting(f"{where}.token_env must name a variable with a bot token (xoxb-…)")
        if not self._app_token.startswith("xapp-"):
            raise BadSetting(f"{where}.app_token_env must name a variable with an app-level token (xapp-…)")
        self._base = settings.api_url.rstrip("/")
        self._files = f"{settings.files_url.rstrip('/')}/"
        self._session: aiohttp.ClientSession | None = None
        self._me = ""
        self._names: dict[str, str] = {}

    # --- receiving ------------------------------------------------------------------------------------

    async def run(self, sink: Sink) -> None:
        import aiohttp

        try:
            if not self._me:
                self._me = str((await self._call("auth.test"))["user_id"])
            while True:  # Slack closes each connection after some hours and asks for a new one
                await self._connection(sink)
        except SlackError as error:
            raise ConnectorDown(str(error)) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectorDown(f"Slack's socket failed: {type(error).__name__}") from None

    async def _connection(self, sink: Sink) -> None:
        """One WebSocket, until Slack asks for another. Raises ConnectorDown if it breaks."""
        import aiohttp

        opened = await self._call("apps.connections.open", token=self._app_token)
        async with self._http().ws_connect(str(opened["url"]), heartbeat=HEARTBEAT_SECONDS) as socket:
            async for frame in socket:
                if frame.type is not aiohttp.WSMsgType.TEXT:
                    break
                try:
                    envelope = ENVELOPE.decode(frame.data)
                except msgspec.DecodeError:
                    raise ConnectorDown("Slack sent a frame that cannot be read") from None
                match envelope.get("type"):
                    case "hello":
                        await sink.up()
                    case "disconnect" if envelope.get("reason") == "link_disabled":
                        raise ConnectorDown("socket mode is switched off in the app's settings")
                    case "disconnect":
                        return
                    case "events_api":
                        await sink.receive(await self._events(envelope.get("payload")))
                if "envelope_id" in envelope:  # only now: what it carries is on disk
                    await socket.send_str(
                        msgspec.json.encode({"envelope_id": envelope["envelope_id"]}).decode()
                    )
        raise ConnectorDown("Slack closed the socket")

    async def accept(self, headers: Mapping[str, str], body: bytes) -> Sequence[Incoming]:
        raise WrongSignature("Slack does not push to this server: it is in socket mode")

    async def _events(self, payload: Any) -> list[Incoming]:
        """The messages in an event. One that cannot be read is dropped, so that it does not block others."""
        try:
            event = payload["event"]
            found = await self._event(event) if event["type"] in ("message", "app_mention") else None
        except (BadInput, KeyError, TypeError, ValueError, AttributeError) as error:
            named = payload.get("event_id") if isinstance(payload, dict) else None
            log.warning("slack: event %s cannot be read: %r", named, error)
            return []
        return [found] if found is not None else []

    async def _event(self, event: Mapping[str, Any]) -> Incoming | None:
        channel, kind, message = str(event["channel"]), IncomingKind.MESSAGE, event
        match event.get("subtype"):
            case "message_changed":
                message, kind = event["message"], IncomingKind.EDIT
                if message.get("text") == (event.get("previous_message") or {}).get("text"):
                    return None  # Slack has added a preview of a link
            case "message_deleted":
                gone = f"{channel}:{event['deleted_ts']}"
                return Incoming(gone, channel, f"slack:{channel}", "", "", kind=IncomingKind.DELETE)
            case None | "file_share" | "thread_broadcast":
                pass
            case _:
                return None  # a member joined, a topic was changed, a bot wrote
        person = message.get("user")
        if not person or message.get("bot_id") or person == self._me:
            return None
        text, direct = str(message.get("text") or ""), channel.startswith("D")
        said = without_mention(text, self._me)
        if not direct and said == text:
            return None
        named = [
            "[" + ", ".join(filter(None, ("file", each.get("name"), each.get("mimetype")))) + "]"
            for each in message.get("files") or ()
        ]
        text = "\n".join(filter(None, (plain_text(said), *named)))
        if not text:
            return None
        if text.startswith("!") and command_in(f"/{text[1:]}"):
            text = f"/{text[1:]}"  # Slack keeps `/` for commands of its own
        ts, thread = str(message["ts"]), message.get("thread_ts")
        address = f"{channel}:thread:{thread}" if thread and thread != ts else channel
        return Incoming(
            platform_id=check_name("the message's id", f"{channel}:{ts}"),
            address=check_name("the place's address", address),
            key=check_name("the session key", f"slack:{address}"),
            person=str(person),
            text=text,
            room="" if direct else channel,
            name=await self._name(str(person)),
            ordinal=int(ts.replace(".", "")),
            sent_at=datetime.fromtimestamp(float(ts), UTC),
            kind=kind,
            files=_files(message),
        )

    async def _name(self, person: str) -> str:
        """The person's name, if the app may read it; else empty. Asked once, and again after an outage."""
        if person not in self._names:
            try:
                user = (await self._call("users.info", user=person))["user"]
                name = (user.get("profile") or {}).get("display_name") or user.get("real_name") or ""
            except SlackError as error:
                log.debug("slack: the name of %s is unknown: %s", person, error)
                if error.passes:
                    return ""
                name = ""
            self._names[person] = name
        return self._names[person]

    # --- sending --------------------------------------------------------------------------------------

    async def send(self, address: str, text: str, *, key: str, reply_to: str | None = None) -> str:
        channel, _, thread = address.partition(":thread:")
        fields = {"channel": channel, **_shown(text), "unfurl_links": False}
        if thread:
            fields["thread_ts"] = thread
        return str((await self._sending("chat.postMessage", **fields))["ts"])

    async def edit(self, address: str, message_id: str, text: str, *, key: str) -> None:
        channel = address.partition(":thread:")[0]
        try:
            await self._call("chat.update", channel=channel, ts=message_id, **_shown(text))
        except SlackError as error:
            if error.code in GONE:
                raise MessageGone(str(error)) from None
            raise error.as_failure() from None

    async def typing(self, address: str) -> None:
        return None

    async def react(self, address: str, message_id: str, reaction: str) -> None:
        """React by the name that Slack gives the emoji, such as `eyes`."""
        channel, ts = address.partition(":thread:")[0], message_id.rpartition(":")[2]
        try:
            await self._call("reactions.add", channel=channel, timestamp=ts, name=reaction)
        except SlackError as error:
            if error.code != "already_reacted":
                raise error.as_failure() from None

    async def fetch(self, ref: str, most: int) -> bytes:
        if not ref.startswith(self._files):  # the token goes to no other host
            raise SendRefused("it is not stored by Slack")
        headers = {"authorization": f"Bearer {self._token}"}
        return await download(self._http(), ref, most, "Slack", headers)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _sending(self, method: str, **fields: Any) -> Mapping[str, Any]:
        try:
            return await self._call(method, **fields)
        except SlackError as error:
            raise error.as_failure() from None

    # --- the Web API ----------------------------------------------------------------------------------

    def _http(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def _call(self, method: str, *, token: str = "", **fields: Any) -> Mapping[str, Any]:
        """The answer of a method. Raises SlackError."""
        import aiohttp

        reads = method == "users.info"  # a method that reads takes no JSON
        headers = {"authorization": f"Bearer {token or self._token}"}
        if not reads:
            headers["content-type"] = "application/json; charset=utf-8"
        try:
            async with self._http().post(
                f"{self._base}/{method}",
                data=fields if reads else msgspec.json.encode(fields),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
                allow_redirects=False,
            ) as answer:
                status, content = answer.status, await answer.read()
                wait = answer.headers.get("Retry-After", "")
        except TimeoutError:
            why = f"Slack did not answer {method} within {REQUEST_SECONDS:g} s"
            raise SlackError("", why, passes=True) from None
        except (aiohttp.ClientError, OSError) as error:
            why = f"Slack cannot be reached: {type(error).__name__}"
            raise SlackError("", why, passes=True) from None
        try:
            found = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = {}
        if isinstance(found, dict) and found.get("ok") is True:
            return found
        code = str(found.get("error") or "") if isinstance(found, dict) else ""
        passes = status == 429 or status >= 500 or not code or code in PASSES | TOKEN_ERRORS
        retry_after = timedelta(seconds=min(int(wait), 86_400)) if wait.isdecimal() else None
        raise SlackError(code, f"Slack answered {method}: {code or status}", retry_after, passes=passes)


def _files(message: Mapping[str, Any]) -> tuple[FileRef, ...]:
    """The files of a message that can be fetched."""
    found = []
    for each in message.get("files") or ():
        url, size = each.get("url_private_download") or each.get("url_private"), each.get("size")
        if isinstance(url, str):
            mime = str(each.get("mimetype") or "application/octet-stream")
            name = str(each.get("name") or "file")
            found.append(FileRef(url, name, mime, size if isinstance(size, int) else 0))
    return tuple(found)


def _shown(text: str) -> dict[str, Any]:
    """The fields that show a text: sections of mrkdwn, and the text for notifications."""
    pieces = [mrkdwn(each) for each in split(text, LONGEST_SECTION)]
    if any(len(each) > LONGEST_SECTION for each in pieces):
        pieces = [mrkdwn(each) for each in split(text, SHORT_SECTION)]
    sections = [{"type": "section", "text": {"type": "mrkdwn", "text": each}} for each in pieces]
    return {"text": escaped(text[:SHORT_SECTION]), "blocks": sections}


def escaped(text: str) -> str:
    """The text so that Slack shows it as it is: no mention, no link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def mrkdwn(text: str) -> str:
    """Markdown as Slack's mrkdwn. What looks like a mention is only text."""
    shown, at = "", 0
    for found in _MARKUP.finditer(text):
        shown += escaped(text[at : found.start()])
        at = found.end()
        if found["fence"]:
            shown += f"```\n{escaped(found['code'])}\n```"
        elif found["inline"]:
            shown += escaped(found["inline"])
        elif found["struck"]:
            shown += f"~{escaped(found['struck'])}~"
        elif found["link"]:
            shown += f"<{escaped(found['link'])}|{escaped(found['label'])}>"
        else:
            shown += f"*{escaped((found['bold'] or found['heading']).replace('**', ''))}*"
    return shown + escaped(text[at:])


def without_mention(text: str, me: str) -> str:
    """The text without the mentions of this user."""
    return _MENTION.sub(lambda found: "" if found["user"] == me else found[0], text)


def plain_text(text: str) -> str:
    """What a person wrote, without Slack's escapes; links and mentions by their names."""

    def named(found: re.Match[str]) -> str:
        target, label = found["link"], found["label"]
        if target.startswith(("@", "#", "!")):
            return f"{target[0].replace('!', '@')}{label or target[1:]}"
        return target if not label or label == target else f"{label} ({target})"

    text = _REFERENCE.sub(named, text).strip()
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
