"""The server's own tools: which are offered to whom, and how a call of one becomes a result.

A tool is offered only if the settings name it and the key of whoever asks allows it. What a client brings of
the same name is the client's: for that turn the server's is not offered. A call of a tool that is not allowed
is answered, with a sentence, and runs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ...domain.names import storable
from ...errors import HoldfastError
from .base import Tool, ToolCall

log = logging.getLogger(__name__)

MAX_STEPS = 50


class Toolbox:
    """`max_steps`: how often the model may be asked within one turn."""

    def __init__(self, tools: Iterable[Tool] = (), max_steps: int = MAX_STEPS) -> None:
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.max_steps = max_steps

    def __bool__(self) -> bool:
        return bool(self._tools)

    def is_own(self, name: str, clients: Collection[str]) -> bool:
        """Is a tool of this name the server's to run, or to refuse, beside these of the client's?"""
        return name in self._tools and name not in clients

    def schemas(self, allowed: Collection[str], clients: Collection[str]) -> list[dict[str, Any]]:
        """What is offered to the model beside the client's own tools."""
        return [
            tool.schema
            for name, tool in self._tools.items()
            if name in allowed and self.is_own(name, clients)
        ]

    async def run(self, call: ToolCall) -> str:
        """The result of a call, whatever becomes of it."""
        if call.name not in call.rights:
            return f"[Not run: the tool {call.name} is not allowed here.]"
        log.info("turn %s runs %s", call.turn_id, call.name)
        try:
            result = await self._tools[call.name].run(call)
        except HoldfastError as error:
            return storable(f"[{call.name} failed: {error}]")
        except OSError as error:
            return storable(f"[{call.name} failed: {error.strerror or error}]")
        except Exception:
            log.exception("tool %s failed by a mistake of our own (turn %s)", call.name, call.turn_id)
            return f"[{call.name} failed by a mistake of the server; its log has more.]"
        return storable(result)


def clients_tools(options: Mapping[str, Any]) -> frozenset[str]:
    """The names of the tools that a request brings, however old its way to name them."""
    names = []
    for tool in _objects(options.get("tools")):
        named = tool.get(str(tool.get("type"))) or tool.get("function")
        names.append(named.get("name") if isinstance(named, Mapping) else tool.get("name"))
    names += [function.get("name") for function in _objects(options.get("functions"))]
    return frozenset(name for name in names if isinstance(name, str))


def _objects(values: Any) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []
