"""Tools of OpenAI's API without a definition that the client runs: `local_shell`, `shell`, `apply_patch`.

A chat model gets each as a function of the same name. Its call is shown as the item that the client expects,
whose action is the function's arguments; such items, and their outputs, are calls and results in chat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...domain.value import Value
from .parameters import given_name, given_object

HOSTED_ITEMS = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
        *("computer_call", "computer_call_output", "mcp_list_tools", "mcp_call", "mcp_approval_request"),
        *("mcp_approval_response", "tool_search_call", "tool_search_output", "program", "program_output"),
    }
)
"""Items of tools that run at OpenAI. They cannot be described to a chat model."""


class ClientTool(Value, frozen=True):
    description: str
    call: str
    """The type of the item that calls it."""
    field: str
    """The field of that item which holds the arguments."""
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    given: Mapping[str, Any]
    """Fields of the arguments that the client needs and the model may leave out."""

    @property
    def output(self) -> str:
        """The type of the item with its result."""
        return f"{self.call}_output"

    @property
    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "properties": dict(self.properties), "required": list(self.required)}


_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_NUMBER = {"type": "integer"}

CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "local_shell": ClientTool(
        "Run a command on the user's machine. `command` is the program and its arguments.",
        "local_shell_call",
        "action",
        {"command": _TEXTS, "working_directory": _TEXT, "timeout_ms": _NUMBER},
        ("command",),
        {"type": "exec", "env": {}},
    ),
    "shell": ClientTool(
        "Run shell commands on the user's machine, one after the other.",
        "shell_call",
        "action",
        {"commands": _TEXTS, "timeout_ms": _NUMBER, "max_output_length": _NUMBER},
        ("commands",),
        {"timeout_ms": None, "max_output_length": None},
    ),
    "apply_patch": ClientTool(
        "Create, change or delete one file. `diff` holds the change; a deletion has none.",
        "apply_patch_call",
        "operation",
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _TEXT,
            "diff": _TEXT,
        },
        ("type", "path"),
        {},
    ),
}
CALLS = {tool.call: name for name, tool in CLIENT_TOOLS.items()}
OUTPUTS = {tool.output: name for name, tool in CLIENT_TOOLS.items()}


def is_client_run(tool: Mapping[str, Any]) -> bool:
    """True: a tool of these types that runs at the client, not in a container at OpenAI."""
    place = tool.get("environment")
    here = not isinstance(place, Mapping) or place.get("type") == "local"
    return tool.get("type") in CLIENT_TOOLS and here


def as_function(name: str) -> dict[str, Any]:
    tool = CLIENT_TOOLS[name]
    function = {"name": name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def call_item(name: str, arguments: str) -> dict[str, Any] | None:
    """The type and the action of a call's item; None if the model's arguments are not an object."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    tool = CLIENT_TOOLS[name]
    return {"type": tool.call, tool.field: {**tool.given, **given}}


def call_arguments(item: Mapping[str, Any], param: str) -> tuple[str, str]:
    """The function's name and arguments, from the item of a call."""
    name = CALLS[item["type"]]
    tool = CLIENT_TOOLS[name]
    action = given_object(item.get(tool.field), f"{param}.{tool.field}")
    told = {key: value for key, value in action.items() if tool.given.get(key, ...) != value}
    return name, msgspec.json.encode(told).decode()


def output_of(item: Mapping[str, Any], param: str) -> tuple[str, str]:
    """The call's id and its result as text, from the item of an output. Older forms have the id in `id`."""
    name = "call_id" if item.get("call_id") is not None else "id"
    call_id = given_name(item.get(name), f"{param}.call_id")
    output = item.get("output")
    if isinstance(output, str) and item["type"] != CLIENT_TOOLS["apply_patch"].output:
        return call_id, output
    told = output if item["type"] == CLIENT_TOOLS["shell"].output else _patched(item)
    return call_id, msgspec.json.encode(told).decode()


def _patched(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in ("status", "output") if item.get(name) is not None}
