"""Extracts an upstream's error, in a form that is safe to show, pass on and log.

Servers put the reason in different places: OpenAI's error object, Ollama's plain string, FastAPI's `detail`,
Gemini's list, or an HTML page. `refusal` finds it, with the error's code, type and parameter where they are
strings. `redacted` removes the API key from it, whole or partly masked as some servers echo it, and anything
else that looks like a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from ..domain.value import Value
from ..errors import ModelError

LONGEST = 600
CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code for a request that exceeds the context window."""
_CODES = {"exceed_context_size_error": CONTEXT_EXCEEDED}  # llama.cpp sends it only as a type
_TOO_LONG = re.compile(
    r"context[ _]?(?:length|window|size|limit)|maximum context|(?:prompt|input) (?:is )?too long|"
    r"too many (?:input |prompt )?tokens|reduce the length of the (?:messages|prompt|input)|"
    r"input tokens? exceed|exceeds? the (?:maximum|limit)[^.]{0,40}tokens",
    re.IGNORECASE,
)
_NOT_ABOUT_LENGTH = frozenset({401, 403, 404, 408, 409, 429, 502, 503, 504})
_LIMITS = (
    re.compile(r">\s*(\d[\d,]*)"),
    re.compile(r"context[ _]?(?:length|window|size|limit)[^\d>]{0,60}(\d[\d,]*)", re.IGNORECASE),
)
SMALLEST_LIMIT = 256
STAND_INS = {
    "ollama",
    "empty",
    "none",
    "lm-studio",
    "no-key",
    "sk-no-key-required",
}  # key names that are not secrets

MOST_READ = 8 * LONGEST
"""Characters of an upstream's text that are read; `LONGEST` of them are shown."""
_WORD = re.compile(r"[^\s\"']+")
_LOOKS_LIKE_A_KEY = re.compile(r"\b(?:sk|pk|rk|gsk|xai|key|pat)[-_][\w*.…-]{6,}")
_BEARER = re.compile(r"(?i)\bbearer\s+[^\s\"',;]+")


def redacted(text: str, api_key: str) -> str:
    """The text without the key: whole, or a word that begins or ends like it. At most MOST_READ characters
    are read and returned, so the time is bounded whatever an upstream sends."""
    is_secret = bool(api_key) and api_key.lower() not in STAND_INS
    text = _cut(text, api_key if is_secret else "")
    if is_secret:
        text = text.replace(api_key, "[key]")
        if len(api_key) >= 12:
            head, tail = api_key[:6], api_key[-4:]
            text = _WORD.sub(lambda found: _without_key(found[0], head, tail), text)
    text = _BEARER.sub("Bearer [key]", text)
    return _LOOKS_LIKE_A_KEY.sub("[key]", text)


def _cut(text: str, secret: str) -> str:
    """The first MOST_READ characters, without a part of a secret that the cut would leave at the end."""
    if len(text) <= MOST_READ:
        return text
    text = text[:MOST_READ]
    for length in range(len(secret) - 1, 0, -1):
        if text.endswith(secret[:length]):
            return text[:-length]
    return text


def _without_key(word: str, head: str, tail: str) -> str:
    """A word without the part that looks like the key: from its beginning on, or masked up to its end."""
    at = word.find(head)
    if at >= 0:
        end = len(word)
        while end > at + len(head) and not _is_wordy(word[end - 1]):
            end -= 1
        word = f"{word[:at]}[key]{word[end:]}"
    at = word.rfind(tail)
    while at > 0:
        after = word[at + len(tail) :]
        if word[at - 1] in "*.…" and not (after and _is_wordy(after[0])):
            return f"[key]{after}"
        at = word.rfind(tail, 0, at + len(tail) - 1)
    return word


def _is_wordy(character: str) -> bool:
    return character.isalnum() or character == "_"


class UpstreamRefusal(Value, frozen=True):
    """An upstream's error; each field is None if it was not given."""

    said: str | None = None
    """The sentence, for people."""
    status: int | None = None
    """The HTTP status named in the error itself: inside a stream there is no other."""
    code: str | None = None
    type: str | None = None
    param: str | None = None

    def error(self, message: str, status: int | None = None, retry_after: float | None = None) -> ModelError:
        """The ModelError with this message and these fields. A given status takes precedence."""
        return ModelError(
            message,
            status or self.status,
            said=self.said,
            code=self.code,
            type=self.type,
            param=self.param,
            retry_after=retry_after,
        )


def refusal(body: bytes, shown: Callable[[str], str] = str) -> UpstreamRefusal:
    """The error in this response body. `shown` makes a server's text safe to show."""
    try:
        return refusal_in(msgspec.json.decode(body), shown)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode(errors="replace").strip()
        return UpstreamRefusal(None if not text or text.startswith("<") else _short(shown(text)))
    except RecursionError:
        return UpstreamRefusal()  # nested too deep to be a readable error


def refusal_in(value: Any, shown: Callable[[str], str] = str) -> UpstreamRefusal:
    """The error in a decoded error object."""
    said = reason_in(value)
    while isinstance(value, list) and value:
        value = value[0]
    error = value.get("error") if isinstance(value, dict) else None
    holder = error if isinstance(error, dict) else value if isinstance(value, dict) else {}
    facts = {
        name: _short(shown(holder[name])) or None
        for name in ("code", "type", "param")
        if isinstance(holder.get(name), str)
    }
    facts["code"] = facts.get("code") or _CODES.get(facts.get("type") or "")
    return UpstreamRefusal(None if said is None else _short(shown(said)), status_in(value), **facts)


def is_too_long(error: ModelError) -> bool:
    """True if it refused because the context window was exceeded. Servers word this differently."""
    if error.code == CONTEXT_EXCEEDED:
        return True
    return error.status not in _NOT_ABOUT_LENGTH and _TOO_LONG.search(error.said or "") is not None


def limit_said(error: ModelError) -> int | None:
    """The limit in tokens, if the refusal states it."""
    for pattern in _LIMITS:
        found = pattern.search(error.said or "")
        if found and int(found[1].replace(",", "")) >= SMALLEST_LIMIT:
            return int(found[1].replace(",", ""))
    return None


def reason_in(value: Any) -> str | None:
    """The sentence in a decoded error object."""
    if isinstance(value, list):
        return next((found for item in value if (found := reason_in(item))), None)
    if isinstance(value, str):
        return value.strip() or None
    if not isinstance(value, dict):
        return None
    for name in ("error", "message", "msg", "detail", "title"):
        if found := reason_in(value.get(name)):
            return found
    code = value.get("code") or value.get("type")
    return str(code) if code else None


def status_in(value: Any) -> int | None:
    """The HTTP status that an error object inside a stream names."""
    error = value.get("error") if isinstance(value, dict) else None
    for holder in (error, value):
        if isinstance(holder, dict):
            for name in ("status", "code", "status_code"):
                found = holder.get(name)
                if isinstance(found, int) and 400 <= found < 600:
                    return found
    return None


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
