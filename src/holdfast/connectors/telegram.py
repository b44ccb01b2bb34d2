"""The Telegram connector: a bot of the Bot API, by long polling or by Telegram's webhook with its secret.

Private chats are direct places; groups, and topics of groups, are one owner each. In a group only messages
that mention the bot or reply to it are taken. Replies are edited while they grow. Telegram does not
deduplicate what a bot sends, so a crash between sending and recording repeats at most that one message.
Photos, files and voice notes are named in the text, and fetched to be stored as attachments.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from ..domain.attachments import FileRef
from ..domain.connectors import Incoming, IncomingKind, PlatformLimits, utf16_units
from ..errors import BadInput, BadSetting
from ..settings import TelegramSettings
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

LONGEST_MESSAGE = 4096
"""In UTF-16 units: a character outside the basic plane counts twice."""
REQUEST_SECONDS = 30.0
FILES = {
    "photo": "image/jpeg",
    "document": "application/octet-stream",
    "voice": "audio/ogg",
    "audio": "audio/mpeg",
    "video": "video/mp4",
    "video_note": "video/mp4",
}
"""What is fetched, and its type if Telegram does not say."""
KINDS = {
    **{kind: kind.replace("_", " ") for kind in FILES},
    "voice": "voice note",
    **{kind: kind for kind in ("sticker", "location", "contact")},
}
"""What a message may have besides its text, and the words for it."""
_FILE_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
UPDATES = ("message", "edited_message")
SECRET_HEADER = "x-telegram-bot-api-secret-token"
_MARKUP = re.compile(
    r"^(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)(?:\n(?P=fence)[ \t]*$|\Z)"
    r"|`(?P<inline>[^`\n]+)`|\*\*(?P<bold>[^*\n]+)\*\*",
    re.DOTALL | re.MULTILINE,
)


class BotError(Exception):
    """An answer of the Bot API that is not ok."""

    def __init__(self, status: int, description: str, retry_after: int | None) -> None:
        super().__init__(f"Telegram answered {status}: {description}")
        self.status = status
        self.description = description.lower()
        self.retry_after = timedelta(seconds=retry_after) if retry_after is not None else None


class TelegramConnector:
    kind = "telegram"
    limits = PlatformLimits(
        characters=LONGEST_MESSAGE, utf16=True, can_edit=True, edit_seconds=1.5, can_type=True
    )

    def __init__(
        self, name: str, settings: TelegramSettings, token: str | None = None, secret: str | None = None
    ) -> None:
        where = f"connectors.{name}"
        token = token or secret_of(settings.token_env, f"{where}.token_env")
        if not re.fullmatch(r"[A-Za-z0-9:_-]+", token):
            raise BadSetting(f"{where}.token_env names a variable whose value is not a bot token")
        self._base = f"{settings.api_url.rstrip('/')}/bot{token}"
        self._files = f"{settings.api_url.rstrip('/')}/file/bot{token}"
        self._token = token
        self._polls = settings.mode == "polling"
        self._poll_seconds = settings.poll_seconds
        self._secret = secret
        if not self._polls and secret is None:
            self._secret = secret_of(settings.secret_env, f"{where}.secret_env")
        self._session: aiohttp.ClientSession | None = None
        self._me: Mapping[str, Any] | None = None

    # --- receiving ------------------------------------------------------------------------------------

    async def run(self, sink: Sink) -> None:
        try:
            await self._who_am_i()
            if self._polls:
                await self._call("deleteWebhook")  # else getUpdates is refused
                await sink.up()
                while True:
                    await self._poll(sink)
            while True:  # Telegram posts to us: only see that the bot still works
                await sink.up()
                await asyncio.sleep(60)
                await self._call("getMe")
        except BotError as error:
            raise ConnectorDown(str(error)) from None

    async def _poll(self, sink: Sink) -> None:
        """One poll. Its updates are acknowledged by the next one, after they are on disk."""
        offset = int(sink.cursor or 0)
        found = await self._call(
            "getUpdates",
            seconds=self._poll_seconds + REQUEST_SECONDS,
            offset=offset,
            timeout=int(self._poll_seconds),
            allowed_updates=UPDATES,
        )
        updates = sorted(
            (each for each in found if isinstance(each, dict) and isinstance(each.get("update_id"), int)),
            key=lambda each: each["update_id"],
        )
        if not updates:
            await sink.up()
            return
        events = [event for each in updates for event in self._events(each)]
        await sink.receive(events, cursor=str(max(offset, updates[-1]["update_id"] + 1)))

    async def accept(self, headers: Mapping[str, str], body: bytes) -> Sequence[Incoming]:
        given = headers.get(SECRET_HEADER, "")
        if not self._secret or not hmac.compare_digest(given.encode(), self._secret.encode()):
            raise WrongSignature("the secret token does not match")
        try:
            update = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"the body is not an update: {error}") from None
        try:
            await self._who_am_i()
        except BotError as error:
            raise ConnectorDown(str(error)) from None
        return self._events(update) if isinstance(update, dict) else ()

    def _events(self, update: Mapping[str, Any]) -> list[Incoming]:
        """The messages in an update. One that cannot be read is dropped, so that it does not block the
        others."""
        try:
            for name, kind in (("message", IncomingKind.MESSAGE), ("edited_message", IncomingKind.EDIT)):
                if isinstance(message := update.get(name), dict):
                    event = self._event(message, kind)
                    return [event] if event is not None else []
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("telegram: update %s cannot be read: %r", update.get("update_id"), error)
        return []

    def _event(self, message: Mapping[str, Any], kind: IncomingKind) -> Incoming | None:
        sender, chat = message.get("from"), message["chat"]
        if not isinstance(sender, dict) or sender.get("is_bot"):
            return None
        text = message.get("text") or message.get("caption") or ""
        if chat["type"] == "private":
            address, room = f"dm:{chat['id']}", ""
        elif chat["type"] in ("group", "supergroup"):
            meant = self._meant(message, text)
            if meant is None:
                return None
            text, room = meant, str(chat["id"])
            address = f"group:{room}"
            if message.get("is_topic_message") and "message_thread_id" in message:
                address += f":topic:{message['message_thread_id']}"
        else:
            return None
        text = "\n".join(filter(None, (text.strip(), *_attached(message))))
        if not text:
            return None  # a service message: a join, a changed title
        return Incoming(
            platform_id=f"{chat['id']}:{message['message_id']}",
            address=address,
            key=f"telegram:{address}",
            person=str(sender["id"]),
            text=text,
            room=room,
            name=" ".join(filter(None, (sender.get("first_name"), sender.get("last_name")))),
            ordinal=int(message["message_id"]),
            sent_at=datetime.fromtimestamp(message["date"], UTC),
            kind=kind,
            files=_files(message),
        )

    def _meant(self, message: Mapping[str, Any], text: str) -> str | None:
        """The text of a group's message without the mention of this bot; None: it is not meant for the
        bot."""
        assert self._me is not None
        replied = message.get("reply_to_message")
        is_reply = isinstance(replied, dict) and (replied.get("from") or {}).get("id") == self._me["id"]
        handle = f"@{self._me['username']}".lower()
        wide = text.encode("utf-16-le")
        mentioned = False
        for entity in reversed(message.get("entities") or message.get("caption_entities") or ()):
            start, end = 2 * entity["offset"], 2 * (entity["offset"] + entity["length"])
            part = wide[start:end].decode("utf-16-le", "replace").lower()
            if entity["type"] == "mention" and part == handle:
                mentioned, wide = True, wide[:start] + wide[end:]
            elif entity["type"] == "bot_command" and part.endswith(handle):
                mentioned = True  # `/new@bot`: a command is recognised with its handle
            elif entity["type"] == "text_mention" and (entity.get("user") or {}).get("id") == self._me["id"]:
                mentioned, wide = True, wide[:start] + wide[end:]
        if not mentioned and not is_reply:
            return None
        return re.sub(r"[ \t]{2,}", " ", wide.decode("utf-16-le", "replace")).strip()

    # --- sending --------------------------------------------------------------------------------------

    async def send(self, address: str, text: str, *, key: str, reply_to: str | None = None) -> str:
        chat, thread = _chat_of(address)
        plain, entities = with_entities(text)
        fields: dict[str, Any] = {"chat_id": chat, "text": plain, **thread}
        if entities:
            fields["entities"] = entities
        if reply_to is not None and not address.startswith("dm:"):
            message_id = int(reply_to.rpartition(":")[2])
            fields["reply_parameters"] = {"message_id": message_id, "allow_sending_without_reply": True}
        try:
            sent = await self._call("sendMessage", **fields)
        except BotError as error:
            raise _failure(error) from None
        return str(sent["message_id"])

    async def edit(self, address: str, message_id: str, text: str, *, key: str) -> None:
        chat, _ = _chat_of(address)
        plain, entities = with_entities(text)
        fields: dict[str, Any] = {"entities": entities} if entities else {}
        try:
            await self._call(
                "editMessageText", chat_id=chat, message_id=int(message_id), text=plain, **fields
            )
        except BotError as error:
            if "not modified" in error.description:
                return
            if error.status == 400 and (
                "message to edit not found" in error.description or "can't be edited" in error.description
            ):
                raise MessageGone(str(error)) from None
            raise _failure(error) from None

    async def typing(self, address: str) -> None:
        chat, thread = _chat_of(address)
        try:
            await self._call("sendChatAction", chat_id=chat, action="typing", **thread)
        except BotError as error:
            raise _failure(error) from None

    async def react(self, address: str, message_id: str, reaction: str) -> None:
        chat, _ = _chat_of(address)
        wanted = [{"type": "emoji", "emoji": reaction}] if reaction else []
        try:
            await self._call("setMessageReaction", chat_id=chat, message_id=int(message_id), reaction=wanted)
        except BotError as error:
            raise _failure(error) from None

    async def fetch(self, ref: str, most: int) -> bytes:
        try:
            found = await self._call("getFile", file_id=ref)
        except BotError as error:
            raise _failure(error) from None
        path = str(found.get("file_path") or "")
        if not _FILE_PATH.fullmatch(path) or ".." in path:
            raise SendRefused("Telegram did not say where it is")
        return await download(self._http(), f"{self._files}/{path}", most, "Telegram")

    def _http(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # --- the Bot API ----------------------------------------------------------------------------------

    async def _who_am_i(self) -> None:
        if self._me is None:
            self._me = await self._call("getMe")

    async def _call(self, method: str, *, seconds: float = REQUEST_SECONDS, **fields: Any) -> Any:
        """The `result` of a method. Raises BotError, or SendFailed if Telegram cannot be reached. No error
        names the address: it contains the token."""
        import aiohttp

        try:
            async with self._http().post(
                f"{self._base}/{method}",
                data=msgspec.json.encode(fields),
                headers={"content-type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as answer:
                status, body = answer.status, await answer.read()
        except TimeoutError:
            raise SendFailed(f"Telegram did not answer {method} within {seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SendFailed(f"Telegram cannot be reached: {type(error).__name__}") from None
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = {}
        if isinstance(found, dict) and found.get("ok") is True:
            return found.get("result")
        facts = found if isinstance(found, dict) else {}
        description = str(facts.get("description") or "no description").replace(self._token, "…")
        retry_after = (facts.get("parameters") or {}).get("retry_after")
        raise BotError(
            int(facts.get("error_code") or status),
            description,
            retry_after if isinstance(retry_after, int) else None,
        )


def _failure(error: BotError) -> SendFailed | SendRefused:
    """A failed send as the worker knows it: 429 and 5xx pass, 400, 403 and 404 do not."""
    if error.status == 429 or error.status >= 500 or error.status == 401:
        return SendFailed(str(error), error.retry_after)
    return SendRefused(str(error))


def _chat_of(address: str) -> tuple[int, dict[str, int]]:
    """The chat's id, and the topic as a field of a method."""
    parts = address.split(":")
    thread = {"message_thread_id": int(parts[3])} if len(parts) == 4 and parts[2] == "topic" else {}
    return int(parts[1]), thread


def _attached(message: Mapping[str, Any]) -> list[str]:
    """What came with a message besides its text, one line each."""
    found = []
    for kind, named in KINDS.items():
        if kind in message:
            facts = message[kind] if isinstance(message[kind], dict) else {}
            details = [facts.get("file_name"), facts.get("mime_type"), facts.get("emoji")]
            if isinstance(facts.get("duration"), int):
                details.append(f"{facts['duration']} s")
            found.append("[" + ", ".join(str(each) for each in (named, *details) if each) + "]")
    return found


def _files(message: Mapping[str, Any]) -> tuple[FileRef, ...]:
    """The files of a message that can be fetched; of a photo its largest version."""
    found = []
    for kind, mime in FILES.items():
        facts = message.get(kind)
        if isinstance(facts, list) and facts:
            facts = facts[-1]
        if isinstance(facts, dict) and isinstance(facts.get("file_id"), str):
            name = str(
                facts.get("file_name") or ("voice note" if kind == "voice" else kind.replace("_", " "))
            )
            size = facts.get("file_size")
            found.append(
                FileRef(
                    facts["file_id"],
                    name,
                    str(facts.get("mime_type") or mime),
                    size if isinstance(size, int) else 0,
                )
            )
    return tuple(found)


def with_entities(text: str) -> tuple[str, list[dict[str, Any]]]:
    """The text without its Markdown marks, and the entities that show code and bold instead. Telegram
    counts in UTF-16 units."""
    plain, entities, at = "", [], 0
    for found in _MARKUP.finditer(text):
        plain += text[at : found.start()]
        at = found.end()
        name = "code" if found["inline"] else "bold" if found["bold"] else "pre"
        body = found["inline"] or found["bold"] or found["code"] or ""
        if not body.strip():
            plain += found[0]
            continue
        entity: dict[str, Any] = {"type": name, "offset": utf16_units(plain), "length": utf16_units(body)}
        if name == "pre" and found["language"].strip():
            entity["language"] = found["language"].strip()
        entities.append(entity)
        plain += body
    plain += text[at:]
    return (plain, entities) if plain.strip() else (text, [])
