"""Reads transcripts of Codex (rollouts).

Each line is `{"timestamp", "type", "payload"}`. `session_meta` names the thread, `turn_context` the model,
and `response_item` holds an item of the Responses API: a message, a call, its output. `compacted` holds the
summary that replaced the earlier items. Developer messages before the first other item are instructions and
are left out, as the server leaves them out of a conversation; so a thread that continues through the server
continues what was imported. Older rollouts have the items themselves as lines; those are read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..transcripts import Transcript, TranscriptMessage, files_in, lines_of, time_in

ORIGIN = "codex"
CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "tool_search_call": "arguments",
}
"""Items that are calls, with the field that holds their arguments."""
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
TEXTS = ("input_text", "output_text", "text")


def paths_in(path: Path) -> list[Path]:
    """The rollouts at this path, oldest first: a sub-agent's thread begins after its parent's."""
    return sorted(files_in(path, "rollout-*.jsonl"), key=lambda each: each.name)


def read(path: Path) -> Transcript:
    """The rollout in this file."""
    transcript = Transcript(path.stem.removeprefix("rollout-"), path)
    reader = _RolloutReader(transcript)
    for number, line in lines_of(path):
        if line is None:
            transcript.unread += 1
            continue
        transcript.last_row = number
        reader.read(number, line)
    return transcript


class _RolloutReader:
    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._said_at = datetime.fromtimestamp(0, UTC)
        self._thought: list[str] = []
        self._can_join = False
        """True: the last message is a reply that a following call belongs to."""
        self._named = False

    def read(self, number: int, line: Mapping[str, Any]) -> None:
        self._said_at = time_in(line.get("timestamp")) or self._said_at
        payload = line.get("payload")
        match line.get("type"), payload:
            case "session_meta", Mapping():
                self._read_meta(payload)
            case "turn_context", Mapping():
                if isinstance(payload.get("model"), str):
                    self._transcript.model = payload["model"]
            case "response_item", Mapping():
                self._item(number, payload)
            case "compacted", Mapping():
                summary = payload.get("message")
                if isinstance(summary, str) and summary:
                    self._add(number, {"role": "user", "content": summary}, compacts=True)
            case "event_msg", Mapping():
                self._count(payload)
            case _, None:
                if "id" in line and "timestamp" in line and "type" not in line:
                    self._read_meta(line)
                else:
                    self._item(number, line)

    def _read_meta(self, meta: Mapping[str, Any]) -> None:
        if self._named or not isinstance(meta.get("id"), str):
            return  # a fork repeats the first line of its source
        self._named = True
        self._transcript.id = meta["id"]
        parent = meta.get("parent_thread_id") or _spawned_by(meta.get("source"))
        if isinstance(parent, str) and parent != self._transcript.id:
            self._transcript.parent = parent

    def _count(self, event: Mapping[str, Any]) -> None:
        info = event.get("info")
        total = info.get("total_token_usage") if isinstance(info, Mapping) else None
        if event.get("type") == "token_count" and isinstance(total, Mapping):
            for name in ("input_tokens", "output_tokens"):
                if isinstance(total.get(name), int):
                    setattr(self._transcript, name, total[name])

    def _item(self, number: int, item: Mapping[str, Any]) -> None:
        kind = item.get("type")
        if kind == "message":
            self._message(number, item)
        elif kind == "reasoning":
            texts = [*_texts(item.get("summary")), *_texts(item.get("content"))]
            self._thought += [text for text in texts if text]
        elif isinstance(kind, str) and kind in CALLS and (item.get("call_id") or item.get("id")):
            self._call(number, item, CALLS[kind])
        elif isinstance(kind, str) and kind in OUTPUTS:
            output = item.get("output") if "output" in item else item.get("tools")
            content = output if isinstance(output, str) else _content(output)
            result = {"role": "tool", "tool_call_id": str(item.get("call_id")), "content": content}
            self._add(number, result)

    def _message(self, number: int, item: Mapping[str, Any]) -> None:
        role = item.get("role")
        if role in ("developer", "system") and not self._transcript.messages:
            return
        if role not in ("user", "assistant", "developer", "system"):
            return
        value: dict[str, Any] = {"role": role, "content": _content(item.get("content"))}
        if role == "assistant":
            self._take_thoughts(value)
        self._add(number, value)
        self._can_join = role == "assistant"

    def _call(self, number: int, item: Mapping[str, Any], field: str) -> None:
        given = item.get(field)
        arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        if field == "input":
            arguments = msgspec.json.encode({"input": arguments}).decode()
        name = str(item.get("name") or item.get("type"))
        if item.get("namespace"):
            name = f"{item['namespace']}__{name}"
        call = {
            "id": str(item.get("call_id") or item.get("id")),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        messages = self._transcript.messages
        if self._can_join:
            last = messages[-1].value
            last["tool_calls"] = [*last.get("tool_calls", ()), call]
            messages[-1] = TranscriptMessage(number, last, self._said_at, first_row=messages[-1].began)
            return
        value: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
        self._take_thoughts(value)
        self._add(number, value)
        self._can_join = True

    def _take_thoughts(self, value: dict[str, Any]) -> None:
        if self._thought:
            value["reasoning_content"], self._thought = "\n\n".join(self._thought), []

    def _add(self, number: int, value: dict[str, Any], *, compacts: bool = False) -> None:
        self._transcript.messages.append(TranscriptMessage(number, value, self._said_at, compacts))
        self._can_join = False


def _spawned_by(source: Any) -> object:
    """The parent thread in the `source` of a sub-agent's thread."""
    spawn = source.get("subagent") if isinstance(source, Mapping) else None
    spawned = spawn.get("thread_spawn") if isinstance(spawn, Mapping) else None
    return spawned.get("parent_thread_id") if isinstance(spawned, Mapping) else None


def _texts(parts: Any) -> list[str]:
    return [
        str(part.get("text") or "")
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, Mapping)
    ]


def _content(parts: Any) -> str | list[dict[str, Any]]:
    if isinstance(parts, str):
        return parts
    if isinstance(parts, Mapping):
        return msgspec.json.encode(parts).decode()
    found: list[dict[str, Any]] = []
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, Mapping):
            continue
        if part.get("type") in TEXTS:
            found.append({"type": "text", "text": str(part.get("text") or "")})
        elif part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
            found.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
    if len(found) == 1 and found[0]["type"] == "text":
        return str(found[0]["text"])
    return found or ""
