"""The tools of a Responses request as a chat model's.

Only functions work here, and custom tools, each as a function with one text `input`: the model is asked by
chat messages, and tools that run at OpenAI have nobody to run them. They are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .parameters import BadParameter, given_list, given_name, given_object, given_text, kind, list_of, text

CHOICES = ("none", "auto", "required")
# Fields of a tool that speak to OpenAI's own machinery.
NOT_FOR_CHAT = ("allowed_callers", "defer_loading", "async", "output_schema")


@dataclass(frozen=True, slots=True)
class RequestTools:
    options: Mapping[str, Any]
    """`tools`, `tool_choice` and `parallel_tool_calls` for the chat model; none of them if there are no
    tools."""
    custom: frozenset[str]
    """The names of those that are custom tools."""


def request_tools(body: Mapping[str, Any], parallel: bool | None) -> RequestTools:
    """Read `tools` and `tool_choice`."""
    tools: dict[str, dict[str, Any]] = {}
    custom = set()
    for at, value in enumerate(list_of(body, "tools")):
        param = f"tools[{at}]"
        tool = given_object(value, param)
        name_of_type = given_text(tool.get("type"), f"{param}.type")
        if name_of_type not in ("function", "custom"):
            raise BadParameter(
                f"{param}.type",
                f"is {name_of_type!r:.80}, a tool that would have to run at OpenAI; "
                "only function and custom tools work here",
            )
        name = given_name(tool.get("name"), f"{param}.name")
        if name in tools:
            raise BadParameter(f"{param}.name", f"is that of another tool, too: {name!r:.80}")
        if name_of_type == "custom":
            custom.add(name)
            tools[name] = _custom(tool, name, param)
        else:
            tools[name] = _function(tool, name, param)
    choice = _choice(body.get("tool_choice"), tools)
    options: dict[str, Any] = {}
    if tools:
        options["tools"] = list(tools.values())
        if choice is not None:
            options["tool_choice"] = choice
        if parallel is not None:
            # Not without tools: OpenAI's chat API then refuses it, as it does tool_choice.
            options["parallel_tool_calls"] = parallel
    return RequestTools(options, frozenset(custom))


def _function(tool: Mapping[str, Any], name: str, param: str) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
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
    """The grammar, if there is one, goes into the description: no chat server but OpenAI's could enforce
    it."""
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


def _choice(value: object, tools: dict[str, dict[str, Any]]) -> str | dict[str, Any] | None:
    """For chat. With `allowed_tools`, the others are taken out of `tools`: most servers know no such
    choice."""
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
    if name_of_type in ("function", "custom"):
        return {
            "type": "function",
            "function": {"name": _known(choice.get("name"), tools, "tool_choice.name")},
        }
    if name_of_type == "allowed_tools":
        mode = given_text(choice.get("mode"), "tool_choice.mode")
        if mode not in ("auto", "required"):
            raise BadParameter("tool_choice.mode", f"must be auto or required; it is {mode!r:.80}")
        allowed = {
            _known(
                given_object(tool, f"tool_choice.tools[{at}]").get("name"),
                tools,
                f"tool_choice.tools[{at}].name",
            )
            for at, tool in enumerate(given_list(choice.get("tools"), "tool_choice.tools"))
        }
        if not allowed:
            raise BadParameter("tool_choice.tools", "must name at least one tool")
        for name in tools.keys() - allowed:
            del tools[name]
        return mode
    raise BadParameter(
        "tool_choice.type", f"is {name_of_type!r:.80}; only function, custom and allowed_tools work here"
    )


def _known(value: object, tools: Mapping[str, Any], param: str) -> str:
    name = given_name(value, param)
    if name not in tools:
        raise BadParameter(param, f"names no tool of this request: {name!r:.80}")
    return name
