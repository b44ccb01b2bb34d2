"""Reads transcripts of Claude Code.

Each line is an object; `user` and `assistant` lines hold messages in Anthropic's form, linked by `uuid` and
`parentUuid`. A rewound session has several branches: the one that the newest message belongs to is read, the
others are counted. An assistant message is spread over several lines with the same `message.id`. A file of a
sub-agent (`isSidechain`) is a session of its own, under the name that the server gives it: `SESSION:AGENT`.

Not read: instructions that Claude Code sends but does not store as messages, and lines it marks as `isMeta`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..transcripts import Transcript, TranscriptMessage, files_in, lines_of, time_in

ORIGIN = "claude-code"


def paths_in(path: Path) -> list[Path]:
    """The transcripts at this path: sessions first, then those of sub-agents."""
    return sorted(files_in(path, "*.jsonl"), key=lambda each: (each.name.startswith("agent-"), each))


def read(path: Path) -> Transcript:
    """The transcript in this file; without messages if it is another kind of file."""
    transcript = Transcript(path.stem, path)
    lines: dict[str, tuple[int, dict[str, Any]]] = {}
    newest = None
    for number, line in lines_of(path):
        if line is None:
            transcript.unread += 1
            continue
        transcript.last_row = number
        _read_title(transcript, line)
        uuid = line.get("uuid")
        if not isinstance(uuid, str):
            continue
        lines[uuid] = number, line
        if line.get("type") in ("user", "assistant") and (
            not line.get("isSidechain") or path.name.startswith("agent-")
        ):
            newest = uuid
    if newest is not None:
        _name(transcript, lines[newest][1])
        branch = _branch(lines, newest)
        transcript.left_out = sum(
            line.get("type") in ("user", "assistant") and uuid not in branch and not line.get("isSidechain")
            for uuid, (_, line) in lines.items()
        )
        _add_messages(transcript, (lines[uuid] for uuid in branch))
    return transcript


def _name(transcript: Transcript, line: Mapping[str, Any]) -> None:
    session, agent = line.get("sessionId"), line.get("agentId")
    if not isinstance(session, str) or not session:
        return
    transcript.id = session
    if line.get("isSidechain"):
        named = agent if isinstance(agent, str) and agent else transcript.path.stem.removeprefix("agent-")
        transcript.id, transcript.parent = f"{session}:{named}", session


def _read_title(transcript: Transcript, line: Mapping[str, Any]) -> None:
    for name in ("summary", "aiTitle", "customTitle"):
        if isinstance(line.get(name), str) and line[name].strip() and "message" not in line:
            transcript.title = line[name].strip()


def _branch(lines: Mapping[str, tuple[int, dict[str, Any]]], newest: str) -> list[str]:
    """The uuids from the first line to the newest, each with its parent before it."""
    branch: dict[str, None] = {}
    at: Any = newest
    while isinstance(at, str) and at in lines and at not in branch:
        branch[at] = None
        line = lines[at][1]
        at = line.get("parentUuid") or line.get("logicalParentUuid")
    return list(reversed(branch))


def _add_messages(transcript: Transcript, lines: Iterator[tuple[int, dict[str, Any]]]) -> None:
    said_at = datetime.fromtimestamp(0, UTC)
    last_id: object = None
    for number, line in lines:
        said_at = time_in(line.get("timestamp")) or said_at
        message = line.get("message")
        if not isinstance(message, Mapping) or line.get("isMeta"):
            continue
        if line.get("type") == "assistant":
            _count(transcript, message, again=message.get("id") == last_id)
            values = [_assistant(message.get("content"))]
            if message.get("id") is not None and message.get("id") == last_id and transcript.messages:
                before = transcript.messages[-1]
                transcript.messages[-1] = TranscriptMessage(
                    number, _joined(before.value, values[0]), said_at, first_row=before.began
                )
                continue
            last_id = message.get("id")
        elif line.get("type") == "user":
            values, last_id = list(_user(message.get("content"))), None
        else:
            continue
        compacts = bool(line.get("isCompactSummary"))
        for value in values:
            transcript.messages.append(TranscriptMessage(number, value, said_at, compacts))


def _count(transcript: Transcript, message: Mapping[str, Any], *, again: bool) -> None:
    if isinstance(message.get("model"), str) and not str(message["model"]).startswith("<"):
        transcript.model = message["model"]
    usage = message.get("usage")
    if isinstance(usage, Mapping) and not again:
        for ours in ("input_tokens", "output_tokens"):
            count = usage.get(ours)
            if isinstance(count, int) and count > 0:
                setattr(transcript, ours, getattr(transcript, ours) + count)


def _blocks(content: Any) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def _assistant(content: Any) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block in _blocks(content):
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text") or ""))
            case "thinking":
                thoughts.append(str(block.get("thinking") or ""))
            case "tool_use":
                arguments = msgspec.json.encode(block.get("input") or {}).decode()
                function = {"name": str(block.get("name") or ""), "arguments": arguments}
                calls.append({"id": str(block.get("id")), "type": "function", "function": function})
    value: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        value["reasoning_content"] = "\n\n".join(filter(None, thoughts))
    if calls:
        value["tool_calls"] = calls
    return value


def _joined(first: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Two lines of one assistant message as one."""
    value = {**first, "content": first["content"] + more["content"]}
    calls = [*first.get("tool_calls", ()), *more.get("tool_calls", ())]
    if calls:
        value["tool_calls"] = calls
    thoughts = [each["reasoning_content"] for each in (first, more) if each.get("reasoning_content")]
    if thoughts:
        value["reasoning_content"] = "\n\n".join(thoughts)
    return value


def _user(content: Any) -> Iterator[dict[str, Any]]:
    """The tool messages, then the rest of a user message."""
    rest: list[dict[str, Any]] = []
    for block in _blocks(content):
        if block.get("type") == "tool_result":
            parts = [part for each in _blocks(block.get("content")) for part in _part(each)]
            yield {
                "role": "tool",
                "tool_call_id": str(block.get("tool_use_id")),
                "content": _least(parts),
            }
        else:
            rest += _part(block)
    if rest:
        yield {"role": "user", "content": _least(rest)}


def _part(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    match block.get("type"):
        case "text":
            yield {"type": "text", "text": str(block.get("text") or "")}
        case "image" | "document":
            source = block.get("source")
            facts: Mapping[str, Any] = source if isinstance(source, Mapping) else {}
            if facts.get("type") == "base64":
                url = f"data:{facts.get('media_type')};base64,{facts.get('data')}"
                if block["type"] == "image":
                    yield {"type": "image_url", "image_url": {"url": url}}
                else:
                    yield {"type": "file", "file": {"filename": "document.pdf", "file_data": url}}
        case "tool_reference":
            yield {"type": "text", "text": f"The tool {block.get('tool_name')} is now available.\n"}


def _least(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if all(part["type"] == "text" for part in parts) and len(parts) < 2:
        return "".join(part["text"] for part in parts)
    return parts
