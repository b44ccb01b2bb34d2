"""Converts the input items of a Responses request or a new conversation to chat messages.

A model's reply is several items but one chat message: its reasoning, text and calls are joined again, because
chat servers need the results of calls right after the message that made them all. Readable reasoning is kept
and joined to the reply that follows it. Encrypted reasoning is dropped, because it cannot be used here. Items
of tools that run at OpenAI are left out, or rejected by name. Unknown fields stay on their message or call.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ...domain.value import Value
from . import client_tools
from .parameters import (
    BadParameter,
    given_list,
    given_name,
    given_object,
    given_text,
    kind,
    list_of,
    one_of,
    text,
)
from .parts import chat_content

Resolve = Callable[[str], Mapping[str, Any] | None]
"""Returns the item with this id, as `items_of` makes it; None if there is none."""

OpenSummary = Callable[[object, str], dict[str, Any]]
"""Returns the chat message of a compaction item's `encrypted_content`; the text is its path."""

ROLES = ("user", "assistant", "system", "developer")
ITEMS = (
    *("message", "reasoning", "item_reference", "function_call", "function_call_output"),
    *("custom_tool_call", "custom_tool_call_output", "compaction"),
    *client_tools.CALLS,
    *client_tools.OUTPUTS,
)
# Fields that an item has only because it was once output of a model; the SDK adds `parsed_…`.
OF_OUTPUT = ("id", "type", "status", "created_by", "parsed_arguments")
OF_CALL = (
    *(*OF_OUTPUT, "call_id", "name", "arguments", "input", "caller", "async", "namespace", "index"),
    *("action", "operation", "environment"),
)
OF_RESULT = (*OF_OUTPUT, "call_id", "output", "caller", "namespace")
OF_CHAT = ("tool_calls", "tool_call_id", "function_call")


def messages_from_input(
    value: object,
    *,
    resolve: Resolve | None = None,
    open_summary: OpenSummary | None = None,
    left_out: dict[str, None] | None = None,
    param: str = "input",
) -> list[dict[str, Any]]:
    """The chat messages of a text (the user's) or of a list of items.

    Raises BadParameter, with the path of the value, for anything else. Item references are looked up with
    `resolve`, compaction items opened with `open_summary`. The types of items of hosted tools, which are left
    out, are added to `left_out`; None: they are rejected.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise BadParameter(param, f"must be text or a list of items, not {kind(value)}")
    reader = _Reader(resolve, open_summary, left_out)
    for at, item in enumerate(value):
        reader.read(item, f"{param}[{at}]")
    return reader.done()


def referenced_ids(value: object) -> list[str]:
    """The ids of the items that an input refers to, so that they can be fetched before parsing."""
    items = value if isinstance(value, list) else []
    found = [item.get("id") for item in items if isinstance(item, Mapping) and _is_reference(item)]
    return [name for name in found if isinstance(name, str)]


def _is_reference(item: Mapping[str, Any]) -> bool:
    kind_of_item = item.get("type")
    return kind_of_item == "item_reference" or (kind_of_item is None and "id" in item and "role" not in item)


class _Reader:
    """Parses items one by one; `_reply` is the reply that the next item may still belong to."""

    def __init__(
        self,
        resolve: Resolve | None,
        open_summary: OpenSummary | None,
        left_out: dict[str, None] | None,
    ) -> None:
        self._resolve = resolve
        self._open_summary = open_summary
        self._left_out = left_out
        self._messages: list[dict[str, Any]] = []
        self._reply: dict[str, Any] | None = None
        self._called: set[str] = set()
        """The ids of the calls of `_reply`."""
        self._thoughts: list[str] = []

    def read(self, value: object, param: str) -> None:
        item = given_object(value, param)
        if _is_reference(item):
            item = self._look_up(item, param)
        match item.get("type"):
            case "message" | None:
                self._message(item, param)
            case "reasoning":
                self._reasoning(item, param)
            case "function_call":
                arguments = given_text(item.get("arguments"), f"{param}.arguments")
                self._call(item, arguments, param)
            case "custom_tool_call":
                text = given_text(item.get("input"), f"{param}.input")
                self._call(item, custom_arguments(text), param)
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, param)
            case "additional_tools":
                pass  # read with `tools`
            case "compaction" if self._open_summary is not None:
                self._settle_thoughts()
                self._append(self._open_summary(item.get("encrypted_content"), f"{param}.encrypted_content"))
            case str() as name if name in client_tools.CALLS:
                tool, arguments = client_tools.call_arguments(item, param)
                self._call({**item, "name": tool}, arguments, param)
            case str() as name if name in client_tools.OUTPUTS:
                call_id, output = client_tools.output_of(item, param)
                self._result({"call_id": call_id, "output": output}, param)
            case "agent_message":
                self._message({**item, "type": "message", "role": "user"}, param)
            case str() as name if name in client_tools.HOSTED_ITEMS and self._left_out is not None:
                self._left_out[name] = None
            case str() as name:
                raise BadParameter(
                    f"{param}.type",
                    f"is {name!r:.80}, which is not supported here: items are sent to the model as "
                    f"chat messages; supported: {', '.join(ITEMS)}",
                )
            case other:
                raise BadParameter(f"{param}.type", f"must be text, not {kind(other)}")

    def done(self) -> list[dict[str, Any]]:
        self._settle_thoughts()
        for message in self._messages:  # joined once: a reply may have thousands of pieces
            if message["role"] == "assistant" and "reasoning_content" in message:
                message["reasoning_content"] = "\n\n".join(message["reasoning_content"])
        return self._messages

    def _look_up(self, item: Mapping[str, Any], param: str) -> Mapping[str, Any]:
        name = given_name(item.get("id"), f"{param}.id")
        found = self._resolve(name) if self._resolve else None
        if found is None:
            raise BadParameter(f"{param}.id", f"refers to an item that does not exist: {name!r:.80}")
        return found

    def _message(self, item: Mapping[str, Any], param: str) -> None:
        role = given_text(item.get("role"), f"{param}.role")
        if role not in ROLES:
            raise BadParameter(f"{param}.role", f"must be one of {', '.join(ROLES)}; it is {role!r:.80}")
        by_model = role == "assistant"
        content = chat_content(item.get("content"), f"{param}.content", said_by_model=by_model)
        for name in OF_CHAT:
            if item.get(name) is not None:
                raise BadParameter(
                    f"{param}.{name}", "is of chat messages; here, calls and results are items of their own"
                )
        for name in ("refusal", "reasoning_content"):
            if item.get(name) is not None:
                given_text(item[name], f"{param}.{name}")
        if by_model and item.get("reasoning_content"):
            self._thoughts.append(item["reasoning_content"])
        message = _with_others({"role": role, **content}, item, *OF_OUTPUT, "reasoning_content")
        reply = self._reply
        if (
            by_model
            and reply
            and "tool_calls" in reply
            and reply["content"] is None
            and "refusal" not in reply
        ):
            # The calls came first. Their results must follow the message that made them, so text and calls
            # are one message.
            self._take_thoughts(reply)
            reply.update(message)
            return
        if not by_model:
            self._settle_thoughts()
        self._append(message)
        if by_model:
            self._take_thoughts(message)
            self._reply = message

    def _reasoning(self, item: Mapping[str, Any], param: str) -> None:
        for name in ("content", "summary"):
            pieces = [
                given_text(
                    given_object(piece, f"{param}.{name}[{at}]").get("text"), f"{param}.{name}[{at}].text"
                )
                for at, piece in enumerate(given_list(item.get(name) or [], f"{param}.{name}"))
            ]
            if any(pieces):
                if self._reply is not None and "tool_calls" not in self._reply:
                    self._reply = None  # further reasoning belongs to the next reply
                self._thoughts.append("\n\n".join(pieces))
                return

    def _call(self, item: Mapping[str, Any], arguments: str, param: str) -> None:
        call_id = given_name(item.get("call_id"), f"{param}.call_id")
        space = text(item, "namespace", f"{param}.namespace")
        name = flat_name(space, given_name(item.get("name"), f"{param}.name"))
        reply = self._reply
        if reply is None:
            reply = {"role": "assistant", "content": None}
            self._append(reply)
            self._reply = reply
        self._take_thoughts(reply)
        if "tool_calls" not in reply:
            reply["tool_calls"], self._called = [], set()
        if call_id in self._called:
            raise BadParameter(
                f"{param}.call_id", f"is that of another call of the same reply: {call_id!r:.80}"
            )
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        reply["tool_calls"].append(_with_others(call, item, *OF_CALL))
        self._called.add(call_id)
        if reply["content"] == "":
            reply["content"] = None

    def _result(self, item: Mapping[str, Any], param: str) -> None:
        call_id = given_name(item.get("call_id"), f"{param}.call_id")
        content = chat_content(item.get("output"), f"{param}.output")
        self._settle_thoughts()
        message = {"role": "tool", "tool_call_id": call_id, **content}
        self._append(_with_others(message, item, *OF_RESULT))

    def _append(self, message: dict[str, Any]) -> None:
        self._messages.append(message)
        self._reply = None

    def _take_thoughts(self, reply: dict[str, Any]) -> None:
        if self._thoughts:
            reply.setdefault("reasoning_content", []).extend(self._thoughts)
            self._thoughts = []

    def _settle_thoughts(self) -> None:
        """Reasoning without a reply after it becomes a reply of its own."""
        if self._thoughts:
            reply = self._reply if self._reply is not None else {"role": "assistant", "content": ""}
            if self._reply is None:
                self._append(reply)
            self._take_thoughts(reply)


def custom_arguments(text: str) -> str:
    """The input of a custom tool as arguments of the function that replaces it in chat."""
    return msgspec.json.encode({"input": text}).decode()


def _with_others(own: dict[str, Any], item: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """`own` and the item's unknown fields."""
    for name, value in item.items():
        if name not in known and value is not None:
            own.setdefault(name, value)
    return own


CHOICES = ("none", "auto", "required")
# Fields of a tool that only OpenAI's servers use.
NOT_FOR_CHAT = ("allowed_callers", "defer_loading", "async", "output_schema")


class ToolNames(frozenset[str]):
    """The names of a request's custom tools, as the chat model knows them.

    `spaces`: the namespace and the own name of each tool that a namespace holds, by its flat name.
    """

    spaces: Mapping[str, tuple[str, str]]
    typed: frozenset[str]
    """Those of `client_tools`, whose calls have item types of their own."""

    def __new__(
        cls,
        custom: Iterable[str] = (),
        spaces: Mapping[str, tuple[str, str]] | None = None,
        typed: Iterable[str] = (),
    ) -> ToolNames:
        made = super().__new__(cls, custom)
        made.spaces = spaces or {}
        made.typed = frozenset(typed)
        return made


def flat_name(space: str | None, name: str) -> str:
    """The name of a namespace's tool for a chat model, which knows no namespaces."""
    return f"{space}__{name}" if space else name


def tools_given(body: Mapping[str, Any]) -> list[Any]:
    """The tools of a request: the field `tools`, and those of the items `additional_tools` in its input."""
    tools, value = list_of(body, "tools"), body.get("input")
    for at, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, Mapping) and item.get("type") == "additional_tools":
            tools = [*tools, *given_list(item.get("tools"), f"input[{at}].tools")]
    return tools


def tool_names(tools: Iterable[Any]) -> ToolNames:
    """The names in these tools, which were checked by `request_tools`."""
    custom: list[str] = []
    spaces: dict[str, tuple[str, str]] = {}
    typed: list[str] = []
    for space, tool, _ in _flattened(tools):
        if client_tools.is_client_run(tool):
            typed.append(tool["type"])
            continue
        flat = flat_name(space, str(tool.get("name")))
        if tool.get("type") == "custom":
            custom.append(flat)
        if space:
            spaces[flat] = space, str(tool.get("name"))
    return ToolNames(custom, spaces, typed)


def _flattened(tools: Iterable[Any]) -> Iterator[tuple[str | None, Mapping[str, Any], str]]:
    """Every tool with the namespace that holds it and its path; namespaces themselves are left out."""
    for at, value in enumerate(tools):
        param = f"tools[{at}]"
        tool = given_object(value, param)
        if tool.get("type") != "namespace":
            yield None, tool, param
            continue
        space = given_name(tool.get("name"), f"{param}.name")
        for inner, each in enumerate(given_list(tool.get("tools"), f"{param}.tools")):
            yield space, given_object(each, f"{param}.tools[{inner}]"), f"{param}.tools[{inner}]"


class RequestTools(Value, frozen=True):
    options: Mapping[str, Any]
    """`tools`, `tool_choice` and `parallel_tool_calls` for the chat model; none of them if there are no
    tools."""
    custom: ToolNames
    """The names of the custom tools, and of those in namespaces."""
    left_out: tuple[str, ...] = ()
    """The types of the tools that only OpenAI can run."""


def request_tools(body: Mapping[str, Any], parallel: bool | None, *, refuses: bool = False) -> RequestTools:
    """Parse `tools` and `tool_choice`. Tools in namespaces are offered under flat names; tools that would
    have to run at OpenAI are left out, because no chat model could use them, or refused (`refuses`)."""
    tools: dict[str, dict[str, Any]] = {}
    left_out: dict[str, None] = {}
    given = tools_given(body)
    for space, tool, param in _flattened(given):
        name_of_type = given_text(tool.get("type"), f"{param}.type")
        if client_tools.is_client_run(tool):
            tools[name_of_type] = client_tools.as_function(name_of_type)
            continue
        if name_of_type not in ("function", "custom"):
            if refuses:
                raise BadParameter(
                    f"{param}.type",
                    f"is {name_of_type!r:.80}: only OpenAI can run it, and [clients] hosted_tools refuses it",
                )
            left_out[name_of_type] = None
            continue
        name = flat_name(space, given_name(tool.get("name"), f"{param}.name"))
        if name in tools:
            raise BadParameter(f"{param}.name", f"is that of another tool, too: {name!r:.80}")
        if name_of_type == "custom":
            tools[name] = _custom(tool, name, param)
        else:
            tools[name] = _function(tool, name, param)
    choice = _choice(body.get("tool_choice"), tools, left_out)
    options: dict[str, Any] = {}
    if tools:
        options["tools"] = list(tools.values())
        if choice is not None:
            options["tool_choice"] = choice
        if parallel is not None:
            # Only with tools: without them OpenAI's chat API rejects it, like tool_choice.
            options["parallel_tool_calls"] = parallel
    return RequestTools(options, tool_names(given), tuple(left_out))


def _function(tool: Mapping[str, Any], name: str, param: str) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    tool = {**tool, "name": name}
    if (description := text(tool, "description", f"{param}.description")) is not None:
        function["description"] = description
    if tool.get("parameters") is not None:
        function["parameters"] = given_object(tool["parameters"], f"{param}.parameters")
    if (strict := tool.get("strict")) is not None:
        if not isinstance(strict, bool):
            raise BadParameter(f"{param}.strict", f"must be true or false, not {kind(strict)}")
        function["strict"] = strict
    others = {
        field: value
        for field, value in tool.items()
        if field not in ("type", "function", *function, *NOT_FOR_CHAT) and value is not None
    }
    return {"type": "function", "function": function, **others}


def _custom(tool: Mapping[str, Any], name: str, param: str) -> dict[str, Any]:
    """The function that replaces a custom tool. A grammar goes into the description: no chat server but
    OpenAI's could enforce it."""
    about = [text(tool, "description", f"{param}.description") or ""]
    form = tool.get("format")
    if form is not None:
        definition = text(given_object(form, f"{param}.format"), "definition", f"{param}.format.definition")
        syntax = text(form, "syntax", f"{param}.format.syntax")
        if definition:
            about.append(
                f"The input must match this {syntax or ''} grammar:\n{definition}".replace("  ", " ")
            )
    described = "\n\n".join(part for part in about if part)
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    function: dict[str, Any] = {"name": name, "parameters": parameters}
    if described:
        function["description"] = described
    return {"type": "function", "function": function}


def _choice(
    value: object, tools: dict[str, dict[str, Any]], left_out: Container[str]
) -> str | dict[str, Any] | None:
    """`tool_choice` for chat. With `allowed_tools`, the others are removed from `tools`: most servers do not
    support that choice. Hosted tools that were left out may be allowed, but not forced."""
    if value is None:
        return None
    if isinstance(value, str):
        if value not in CHOICES:
            raise BadParameter("tool_choice", f"must be one of {', '.join(CHOICES)}; it is {value!r:.80}")
        if value == "required" and not tools:
            raise BadParameter("tool_choice", "is 'required', but there are no tools")
        return value
    choice = given_object(value, "tool_choice")
    name_of_type = given_text(choice.get("type"), "tool_choice.type")
    if name_of_type in ("function", "custom", *client_tools.CLIENT_TOOLS):
        return {
            "type": "function",
            "function": {"name": _known(choice, tools, "tool_choice")},
        }
    if name_of_type == "allowed_tools":
        mode = one_of(choice, "mode", CHOICES, "tool_choice.mode") or "auto"
        chosen = [
            (given_object(tool, f"tool_choice.tools[{at}]"), f"tool_choice.tools[{at}]")
            for at, tool in enumerate(given_list(choice.get("tools"), "tool_choice.tools"))
        ]
        if not chosen:
            raise BadParameter("tool_choice.tools", "must name at least one tool")
        allowed = {_known(tool, tools, param) for tool, param in chosen if tool.get("type") not in left_out}
        if not allowed and mode == "required":
            raise BadParameter("tool_choice.tools", "requires tools, and only OpenAI can run these")
        for name in tools.keys() - allowed:
            del tools[name]
        return mode
    raise BadParameter(
        "tool_choice.type",
        f"is {name_of_type!r:.80}, which only OpenAI can run; function, custom and allowed_tools work here",
    )


def _known(chosen: Mapping[str, Any], tools: Mapping[str, Any], param: str) -> str:
    space = text(chosen, "namespace", f"{param}.namespace")
    if chosen.get("type") in client_tools.CLIENT_TOOLS:
        name = str(chosen["type"])
    else:
        name = flat_name(space, given_name(chosen.get("name"), f"{param}.name"))
    if name not in tools:
        raise BadParameter(f"{param}.name", f"names no tool of this request: {name!r:.80}")
    return name
