"""What an upstream said when it refused, in words that may be shown and logged.

Servers put the reason in different places: OpenAI's error object, Ollama's plain string, FastAPI's `detail`,
Gemini's list, or a page of HTML. `reason` finds it. `redacted` takes the API key out of it, whole or half
masked as some servers echo it, and anything else that looks like one.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

LONGEST = 600
STAND_INS = {
    "ollama",
    "empty",
    "none",
    "lm-studio",
    "no-key",
    "sk-no-key-required",
}  # keys that are no secret

_LOOKS_LIKE_A_KEY = re.compile(r"\b(?:sk|pk|rk|gsk|xai|key|pat)[-_][\w*.…-]{6,}")
_BEARER = re.compile(r"(?i)\bbearer\s+[^\s\"',;]+")


def redacted(text: str, api_key: str) -> str:
    """The text without the key: whole, or a word that begins or ends as it does."""
    if api_key and api_key.lower() not in STAND_INS:
        text = text.replace(api_key, "[key]")
        if len(api_key) >= 12:
            head, tail = re.escape(api_key[:6]), re.escape(api_key[-4:])
            text = re.sub(rf"{head}(?:[^\s\"']*\w)?|[^\s\"']*[*.…]+{tail}\b", "[key]", text)
    text = _BEARER.sub("Bearer [key]", text)
    return _LOOKS_LIKE_A_KEY.sub("[key]", text)


def reason(body: bytes) -> str | None:
    """The sentence in the body of a refusal; None if there is none for people."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode(errors="replace").strip()
        return None if not text or text.startswith("<") else _short(text)
    return reason_in(value)


def reason_in(value: Any) -> str | None:
    """The sentence in a decoded error object."""
    if isinstance(value, list):
        return next((found for item in value if (found := reason_in(item))), None)
    if isinstance(value, str):
        return _short(value.strip()) or None
    if not isinstance(value, dict):
        return None
    for name in ("error", "message", "msg", "detail", "title"):
        if found := reason_in(value.get(name)):
            return found
    code = value.get("code") or value.get("type")
    return _short(str(code)) if code else None


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
