"""Parses a request to `POST /v1/messages` into chat messages and options for a chat model.

| Anthropic                          | chat                                                          |
|------------------------------------|---------------------------------------------------------------|
| `system`, text or text blocks      | one leading `system` message                                  |
| `text`, `image`, `document` blocks | parts of a user message; one plain text becomes a string      |
| `tool_use` block                   | an entry of `tool_calls`                                      |
| `tool_result` block                | a `tool` message, before the user message of the same list    |
| `thinking` block                   | `reasoning_content`                                           |
| `role: "system"` between messages  | a `system` message at the same place                          |

Every field that is used is validated, and an error names it. `cache_control` is accepted anywhere and not
sent to a chat model. Blocks of tools that ran at Anthropic have no chat form and are left out. Tools that
only Anthropic can run are left out too, because no chat model could call them. A model that speaks
Anthropic's API gets the request's own fields and blocks instead (`NativeRequest`): nothing is lost there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...domain.fingerprints import fingerprint_of
from ...models.base import NativeRequest
from ..openai.parameters import (
    BadParameter,
    flag,
    given_list,
    given_model,
    given_name,
    given_object,
    given_text,
    kind,
    list_of,
    number,
    object_of,
    one_of,
    text,
    whole_number,
)

Block = Mapping[str, Any]

BILLING = "x-anthropic-billing-header:"
"""Claude Code's first system block begins so. It is not an instruction and differs between requests."""
CONTEXT_ONLY = frozenset(
    {
        *("server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "mcp_tool_use"),
        *("mcp_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result"),
        *("text_editor_code_execution_tool_result", "tool_search_tool_result", "container_upload"),
    }
)
"""Blocks of tools that ran at Anthropic: accepted, and left out of the chat messages."""
EFFORTS = ((2048, "low"), (16384, "medium"))
"""`reasoning_effort` for a thinking budget of at most this many tokens; `high` above."""
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ROLES = ("user", "assistant", "system")


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    messages: list[dict[str, Any]]
    """As chat messages; the instructions first."""
    native: NativeRequest
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    max_tokens: int = 0
    stream: bool = False
    store: bool = True
    shows_thinking: bool = False
    """True: the client asked for thinking, so it gets `thinking` blocks."""
    stop_sequences: tuple[str, ...] = ()


def parse(
    body: Mapping[str, Any], *, counts: bool = False, headers: Mapping[str, str] | None = None
) -> MessagesRequest:
    """Parse a request. Raises BadParameter, naming the field. `counts`: a request to count_tokens, which has
    no `max_tokens`."""
    messages, by_print = _messages(body)
    system = _system(body.get("system"))
    limit = None if counts else whole_number(body, "max_tokens", 1)
    if limit is None and not counts:
        raise BadParameter("max_tokens", "is required: a whole number, 1 or more")
    tools = _tools(list_of(body, "tools"))
    stops = tuple(
        given_name(stop, f"stop_sequences[{at}]") for at, stop in enumerate(list_of(body, "stop_sequences"))
    )
    return MessagesRequest(
        messages=[*([{"role": "system", "content": system}] if system else ()), *messages],
        native=NativeRequest(body, by_print, system, headers or {}),
        options={**_options(body, stops), **_tool_options(body, tools)},
        model=given_model(body.get("model")),
        max_tokens=limit or 0,
        stream=flag(body, "stream", False),
        store=flag(body, "store", True),
        shows_thinking=_shows_thinking(body),
        stop_sequences=stops,
    )


# --- options ---------------------------------------------------------------------------------------------


def _options(body: Mapping[str, Any], stops: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name in ("temperature", "top_p", "top_k"):
        value = number(body, name)
        if value is not None:
            options[name] = value
    if stops:
        options["stop"] = list(stops)
    thinking = object_of(body, "thinking")
    if one_of(thinking, "type", ("enabled", "disabled", "adaptive"), "thinking.type") == "enabled":
        budget = whole_number(thinking, "budget_tokens", 1) or 0
        options["reasoning_effort"] = next((name for most, name in EFFORTS if budget <= most), "high")
    output = object_of(body, "output_config")
    shape = output.get("format") or body.get("output_format")
    if shape is not None:
        shape = given_object(shape, "output_config.format")
        if shape.get("type") == "json_schema":
            schema = given_object(shape.get("schema"), "output_config.format.schema")
            options["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": True},
            }
    object_of(body, "metadata")
    return options


def _shows_thinking(body: Mapping[str, Any]) -> bool:
    thinking = object_of(body, "thinking")
    return thinking.get("type") in ("enabled", "adaptive") and thinking.get("display") != "omitted"


def _tools(values: Sequence[object]) -> list[dict[str, Any]]:
    """The request's own tools as functions. A tool with another type runs at Anthropic and is left out."""
    found = []
    for at, value in enumerate(values):
        param = f"tools[{at}]"
        tool = given_object(value, param)
        name = given_name(tool.get("name"), f"{param}.name") if tool.get("name") is not None else ""
        if text(tool, "type", f"{param}.type") not in (None, "custom"):
            continue
        if not name:
            raise BadParameter(f"{param}.name", "is required")
        function: dict[str, Any] = {"name": name}
        description = text(tool, "description", f"{param}.description")
        if description:
            function["description"] = description
        schema = tool.get("input_schema")
        function["parameters"] = given_object(schema, f"{param}.input_schema")
        found.append({"type": "function", "function": function})
    return found


def _tool_options(body: Mapping[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any]:
    options: dict[str, Any] = {"tools": tools} if tools else {}
    choice = body.get("tool_choice")
    if choice is None:
        return options
    choice = given_object(choice, "tool_choice")
    named = one_of(choice, "type", (*CHOICES, "tool"), "tool_choice.type")
    if named is None:
        raise BadParameter("tool_choice.type", "is required")
    if named == "tool":
        name = given_name(choice.get("name"), "tool_choice.name")
        if not any(tool["function"]["name"] == name for tool in tools):
            raise BadParameter("tool_choice.name", f"names no tool of this request: {name!r:.80}")
        options["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif tools:
        options["tool_choice"] = CHOICES[named]
    if tools and flag(choice, "disable_parallel_tool_use", False):
        options["parallel_tool_calls"] = False
    return options


# --- messages --------------------------------------------------------------------------------------------


def _system(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return given_text(value, "system")
    blocks = given_list(value, "system")
    texts = [_text_block(block, f"system[{at}]") for at, block in enumerate(blocks)]
    return "\n\n".join(each for each in texts if each and not each.startswith(BILLING))


def _text_block(value: object, param: str) -> str:
    block = given_object(value, param)
    if block.get("type") != "text":
        raise BadParameter(f"{param}.type", f"must be text here; it is {block.get('type')!r:.80}")
    return given_text(block.get("text"), f"{param}.text")


def _messages(body: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[bytes, list[Block]]]:
    """The chat messages, and for the fingerprint of each the blocks it was made of."""
    values = given_list(body.get("messages"), "messages")
    if not values:
        raise BadParameter("messages", "must hold at least one message")
    messages: list[dict[str, Any]] = []
    by_print: dict[bytes, list[Block]] = {}
    open_calls: list[str] | None = None
    """Calls of the last assistant message; None: the request has had none."""
    for at, value in enumerate(values):
        param = f"messages[{at}]"
        message = given_object(value, param)
        role = given_text(message.get("role"), f"{param}.role")
        if role not in ROLES:
            raise BadParameter(f"{param}.role", f"must be one of {', '.join(ROLES)}; it is {role!r:.80}")
        content = _blocks(message.get("content"), f"{param}.content")
        if role == "assistant":
            if open_calls:
                _refuse_unanswered(open_calls, param)
            made = [_assistant(content, f"{param}.content")]
            open_calls = [call["id"] for call in made[0][0].get("tool_calls") or ()]
        elif role == "system":
            made = [_spoken("system", content, f"{param}.content")]
        else:
            made = _user(content, f"{param}.content")
            answered = [each["tool_call_id"] for each, _ in made if each["role"] == "tool"]
            _check_pairs(open_calls, answered, param)
            open_calls = open_calls and []
        for chat, blocks in made:
            messages.append(chat)
            by_print[fingerprint_of(chat)] = blocks
    return messages, by_print


def _check_pairs(open_calls: list[str] | None, answered: Sequence[str], param: str) -> None:
    """Raise unless the results answer exactly the calls before them. A request may begin with results of
    calls that only the store has."""
    called, seen = frozenset(open_calls or ()), set[str]()
    for call_id in answered:
        if call_id in seen:
            raise BadParameter(
                f"{param}.content", f"holds two tool_result blocks for {call_id!r:.80}; send one"
            )
        seen.add(call_id)
        if open_calls is not None and call_id not in called:
            raise BadParameter(
                f"{param}.content",
                f"holds a tool_result for {call_id!r:.80}, which is not a tool_use of the message before it",
            )
    missing = [call_id for call_id in open_calls or () if call_id not in seen]
    if missing:
        _refuse_unanswered(missing, param)


def _refuse_unanswered(missing: Sequence[str], param: str) -> None:
    raise BadParameter(
        f"{param}.content",
        f"must hold a tool_result for each tool_use before it; {missing[0]!r:.80} has none",
    )


def _blocks(value: object, param: str) -> list[Block]:
    if isinstance(value, str):
        return [{"type": "text", "text": given_text(value, param)}]
    if not isinstance(value, list):
        raise BadParameter(param, f"must be text or a list of blocks, not {kind(value)}")
    return [given_object(block, f"{param}[{at}]") for at, block in enumerate(value)]


Made = tuple[dict[str, Any], list[Block]]


def _assistant(blocks: Sequence[Block], param: str) -> Made:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        where = f"{param}[{at}]"
        match given_text(block.get("type"), f"{where}.type"):
            case "text":
                texts.append(given_text(block.get("text"), f"{where}.text"))
            case "tool_use":
                calls.append(_call(block, where))
            case "thinking":
                thoughts.append(given_text(block.get("thinking"), f"{where}.thinking"))
            case "redacted_thinking":
                pass
            case other if other not in CONTEXT_ONLY:
                raise BadParameter(f"{where}.type", f"is not a block of an assistant message: {other!r:.80}")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if any(thoughts):
        message["reasoning_content"] = "\n\n".join(each for each in thoughts if each)
    if calls:
        message["tool_calls"] = calls
    return message, list(blocks)


def _call(block: Block, param: str) -> dict[str, Any]:
    arguments = given_object(block.get("input"), f"{param}.input")
    return {
        "id": given_name(block.get("id"), f"{param}.id"),
        "type": "function",
        "function": {
            "name": given_name(block.get("name"), f"{param}.name"),
            "arguments": msgspec.json.encode(arguments).decode(),
        },
    }


def _user(blocks: Sequence[Block], param: str) -> list[Made]:
    """The tool messages of a user message, then the rest of it, if there is any."""
    made: list[Made] = []
    rest: list[tuple[str, Block]] = []
    for at, block in enumerate(blocks):
        where = f"{param}[{at}]"
        if block.get("type") != "tool_result":
            rest.append((where, block))
            continue
        call_id = given_name(block.get("tool_use_id"), f"{where}.tool_use_id")
        flag(block, "is_error", False)
        content = block.get("content")
        parts = [] if content is None else _blocks(content, f"{where}.content")
        found = [part for n, each in enumerate(parts) for part in _parts(each, f"{where}.content[{n}]")]
        made.append(({"role": "tool", "tool_call_id": call_id, "content": _least(found)}, [block]))
    if rest or not made:
        found = [part for where, block in rest for part in _parts(block, where)]
        made.append(({"role": "user", "content": _least(found)}, [block for _, block in rest]))
    return made


def _spoken(role: str, blocks: Sequence[Block], param: str) -> Made:
    texts = [_text_block(block, f"{param}[{at}]") for at, block in enumerate(blocks)]
    return {"role": role, "content": "\n\n".join(texts)}, list(blocks)


def _least(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if not parts:
        return ""
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _parts(block: Block, param: str) -> Iterator[dict[str, Any]]:
    """The parts of a chat message for one block of a user message or a tool result."""
    name = given_text(block.get("type"), f"{param}.type")
    reader = _READERS.get(name)
    if reader is None:
        if name in CONTEXT_ONLY:
            return
        raise BadParameter(f"{param}.type", f"is not a block of a user message: {name!r:.80}")
    yield from reader(block, param)


def _text(block: Block, param: str) -> Iterator[dict[str, Any]]:
    yield {"type": "text", "text": given_text(block.get("text"), f"{param}.text")}


def _image(block: Block, param: str) -> Iterator[dict[str, Any]]:
    source = given_object(block.get("source"), f"{param}.source")
    match source.get("type"):
        case "base64":
            yield {"type": "image_url", "image_url": {"url": _data_url(source, f"{param}.source")}}
        case "url":
            url = given_name(source.get("url"), f"{param}.source.url")
            yield {"type": "image_url", "image_url": {"url": url}}
        case "file":
            file_id = given_name(source.get("file_id"), f"{param}.source.file_id")
            yield {"type": "file", "file": {"file_id": file_id}}
        case other:
            raise BadParameter(f"{param}.source.type", f"must be base64, url or file; it is {other!r:.80}")


def _document(block: Block, param: str) -> Iterator[dict[str, Any]]:
    source = given_object(block.get("source"), f"{param}.source")
    title = text(block, "title", f"{param}.title") or ""
    match source.get("type"):
        case "base64":
            file = {
                "filename": title or "document.pdf",
                "file_data": _data_url(source, f"{param}.source"),
            }
            yield {"type": "file", "file": file}
        case "text":
            said = given_text(source.get("data"), f"{param}.source.data")
            yield {"type": "text", "text": f"{title}\n\n{said}" if title else said}
        case "content":
            for at, each in enumerate(_blocks(source.get("content"), f"{param}.source.content")):
                yield from _parts(each, f"{param}.source.content[{at}]")
        case "url":
            yield {"type": "text", "text": given_name(source.get("url"), f"{param}.source.url")}
        case "file":
            file_id = given_name(source.get("file_id"), f"{param}.source.file_id")
            yield {"type": "file", "file": {"file_id": file_id}}
        case other:
            raise BadParameter(
                f"{param}.source.type", f"must be base64, text, content, url or file; it is {other!r:.80}"
            )


def _search_result(block: Block, param: str) -> Iterator[dict[str, Any]]:
    title = given_text(block.get("title"), f"{param}.title")
    source = given_text(block.get("source"), f"{param}.source")
    texts = [
        _text_block(each, f"{param}.content[{at}]")
        for at, each in enumerate(given_list(block.get("content"), f"{param}.content"))
    ]
    yield {"type": "text", "text": "\n\n".join((f"{title} ({source})", *texts))}


def _tool_reference(block: Block, param: str) -> Iterator[dict[str, Any]]:
    name = given_name(block.get("tool_name"), f"{param}.tool_name")
    yield {"type": "text", "text": f"The tool {name} is now available.\n"}


def _data_url(source: Block, param: str) -> str:
    media_type = given_name(source.get("media_type"), f"{param}.media_type")
    return f"data:{media_type};base64,{given_name(source.get('data'), f'{param}.data')}"


_READERS: Mapping[str, Callable[[Block, str], Iterator[dict[str, Any]]]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
}
