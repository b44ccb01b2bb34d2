"""Converts the parts of a message's content between the Responses API and chat.

| item           | chat                                  |
|----------------|---------------------------------------|
| `input_text`   | `text`                                |
| `output_text`  | `text`                                |
| `input_image`  | `image_url`                           |
| `input_file`   | `file`                                |
| `refusal`      | `refusal`, as a field or as a part    |
| `input_audio`  | `input_audio`                         |

One plain text becomes content that is a string, which every server accepts; anything else stays a list of
parts. Unknown fields stay on their part, in both directions. Stored content is never rejected when it is
converted back: it came from many kinds of client, and is shown as well as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from .parameters import BadParameter, given_name, given_object, given_text, kind

Part = dict[str, Any]

TEXTS = ("input_text", "output_text", "text")
SHOWN = ("input_image", "input_file", "input_audio")
THOUGHTS = ("thinking", "reasoning_text")
FILE_FIELDS = ("file_data", "file_id", "filename")


# --- to chat -------------------------------------------------------------------------------------------


def chat_content(value: object, param: str, *, said_by_model: bool = False) -> dict[str, Any]:
    """The `content` of a chat message, and its `refusal` if there is one."""
    if isinstance(value, str):
        return {"content": given_text(value, param)}
    if not isinstance(value, list):
        raise BadParameter(param, f"must be text or a list of parts, not {kind(value)}")
    parts = [chat_part(part, f"{param}[{at}]", said_by_model=said_by_model) for at, part in enumerate(value)]
    if (
        parts
        and parts[-1].keys() == {"type", "refusal"}
        and not any("refusal" in part for part in parts[:-1])
    ):
        refusal = parts.pop()["refusal"]
        return {"content": _least(parts) if parts else None, "refusal": refusal}
    return {"content": _least(parts) if parts else ""}


def _least(parts: list[Part]) -> str | list[Part]:
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return str(parts[0]["text"])
    return parts


def chat_part(value: object, param: str, *, said_by_model: bool = False) -> Part:
    part = given_object(value, param)
    name = given_text(part.get("type"), f"{param}.type")
    if name in TEXTS:
        text = given_text(part.get("text"), f"{param}.text")
        return {"type": "text", "text": text, **_others(part, "type", "text", "logprobs", "parsed")}
    if name == "refusal" and said_by_model:
        refusal = given_text(part.get("refusal"), f"{param}.refusal")
        return {"type": "refusal", "refusal": refusal, **_others(part, "type", "refusal")}
    if name not in SHOWN or said_by_model:
        allowed = (*TEXTS, "refusal") if said_by_model else (*TEXTS, *SHOWN)
        raise BadParameter(f"{param}.type", f"must be one of {', '.join(allowed)} here; it is {name!r:.80}")
    if name == "input_image":
        return _chat_image(part, param)
    if name == "input_file":
        return _chat_file(part, param)
    audio = given_object(part.get("input_audio"), f"{param}.input_audio")
    return {"type": "input_audio", "input_audio": audio, **_others(part, "type", "input_audio")}


def _chat_image(part: Mapping[str, Any], param: str) -> Part:
    if part.get("image_url") is None and part.get("file_id") is not None:
        raise BadParameter(
            f"{param}.file_id", "cannot be used: a chat model takes an image_url or a data: URL"
        )
    image = {"url": given_name(part.get("image_url"), f"{param}.image_url")}
    if part.get("detail") is not None:
        image["detail"] = given_text(part["detail"], f"{param}.detail")
    others = _others(part, "type", "image_url", "detail", "file_id")
    return {"type": "image_url", "image_url": image, **others}


def _chat_file(part: Mapping[str, Any], param: str) -> Part:
    if part.get("file_url") is not None:
        raise BadParameter(f"{param}.file_url", "cannot be used: a chat model takes file_data or a file_id")
    file = {
        name: given_text(part[name], f"{param}.{name}") for name in FILE_FIELDS if part.get(name) is not None
    }
    if not file.get("file_data") and not file.get("file_id"):
        raise BadParameter(param, "must bring file_data or a file_id")
    return {"type": "file", "file": file, **_others(part, "type", "file_url", *FILE_FIELDS)}


# --- from chat -----------------------------------------------------------------------------------------


def input_parts(content: object) -> list[Part]:
    """The parts of a message of a user, a developer or a tool."""
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    return [_input_part(part) for part in _parts(content)]


def _input_part(part: Mapping[str, Any]) -> Part:
    match part.get("type"):
        case "text" | None:
            return {"type": "input_text", "text": shown(part.get("text")), **_others(part, "type", "text")}
        case "image_url":
            image = part.get("image_url")
            facts = image if isinstance(image, Mapping) else {"url": image}
            return {
                "type": "input_image",
                "image_url": shown(facts.get("url")),
                "detail": facts.get("detail") or "auto",
                **_others(part, "type", "image_url"),
            }
        case "file":
            file = part.get("file")
            facts = file if isinstance(file, Mapping) else {}
            return {"type": "input_file", **_others(facts, "type"), **_others(part, "type", "file")}
    return {**part, "type": shown(part["type"])}


def output_parts(message: Mapping[str, Any]) -> list[Part]:
    """The parts of a model's message, without its reasoning; empty if it has none."""
    content, refusal = message.get("content"), message.get("refusal")
    parts = []
    for part in _parts([content] if isinstance(content, str) and content else content):
        name = part.get("type")
        if name is None or name in TEXTS:
            others = _others(part, "type", "text", "annotations", "logprobs")
            parts.append({**output_text(shown(part.get("text")), part.get("annotations")), **others})
        elif name == "refusal":
            parts.append({**part, "refusal": shown(part.get("refusal"))})
        elif name not in THOUGHTS:
            parts.append({**part, "type": shown(name)})
    if isinstance(message.get("annotations"), list):
        first = next((part for part in parts if part["type"] == "output_text"), None)
        if first is not None:
            first["annotations"] = [*first["annotations"], *map(_annotation, message["annotations"])]
    if isinstance(refusal, str) and refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    return parts


def output_text(text: str, annotations: object = None) -> Part:
    known = [_annotation(one) for one in annotations] if isinstance(annotations, list) else []
    return {"type": "output_text", "text": text, "annotations": known, "logprobs": []}


def thoughts(content: object) -> str:
    """The text of the reasoning parts of a content, as some servers send them."""
    if isinstance(content, str):
        return ""
    return "".join(
        shown(piece.get("thinking") or piece.get("text"))
        for part in _parts(content)
        if part.get("type") in THOUGHTS
        for piece in _parts(part.get("thinking") if isinstance(part.get("thinking"), list) else [part])
    )


def without_thoughts(content: list[Any]) -> list[Any]:
    return [part for part in content if not (isinstance(part, Mapping) and part.get("type") in THOUGHTS)]


def shown(value: object) -> str:
    """A string unchanged, any other value as JSON, None as an empty string."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def _annotation(value: Any) -> Any:
    """An annotation for Responses: chat nests its fields one level deeper."""
    if isinstance(value, Mapping) and isinstance(facts := value.get(str(value.get("type"))), Mapping):
        return {"type": value["type"], **facts}
    return value


def _parts(content: object) -> Iterator[Mapping[str, Any]]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            yield {"type": "text", "text": part}
        elif isinstance(part, Mapping):
            yield part


def _others(part: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """The unknown fields of a part. Empty lists are dropped: they carry no information."""
    return {name: value for name, value in part.items() if name not in known and value not in (None, [])}
