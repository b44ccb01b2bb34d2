"""The contract of every tool: a name, a schema for the model, and a text result for every call.

A failure is a result too, as a sentence that says what to do: the model can act on it. A tool may raise one
of our errors; the toolbox turns it into such a sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ...domain.ids import storable
from ...errors import BadInput, HoldfastError

LONGEST_OUTPUT = 30_000
"""Maximum characters of a tool's output; more would crowd the context."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call by the model: what it asks for, and on whose behalf."""

    id: str
    name: str
    arguments: str
    """A JSON object, as the model wrote it."""
    owner: str
    conversation_id: str
    session_id: str
    turn_id: str
    key: str
    """Its idempotency key: the same in every attempt of the turn, and that of no other call. It depends on
    where the call is stored, because models repeat their own ids."""
    rights: frozenset[str]
    """The tools that the caller's API key and the settings allow. Each tool checks this where it acts."""


def call_key(turn_id: str, seq: int, position: int) -> str:
    """The idempotency key of the call at this position among the server's calls of message `seq`."""
    return f"{turn_id}.{seq}.{position}"


Reconcile = Callable[[ToolCall], Awaitable[str | None]]
"""Returns the result of a call that was open when its process ended, as text for the model; None: it is
unknown. Called once per attempt, before the model is asked again."""


class Tool(Protocol):
    name: str
    idempotent: bool
    """True: running a call twice has the same effect as running it once. Only such a tool is run again after
    a crash, with the same key."""

    @property
    def schema(self) -> dict[str, Any]:
        """The tool's description for the model: OpenAI's function tool."""
        ...

    async def run(self, call: ToolCall) -> str:
        """Run the call; returns the text for the model. If the turn is cancelled, nothing of it keeps
        running."""
        ...


def function(name: str, description: str, required: tuple[str, ...], **parameters: Any) -> dict[str, Any]:
    """OpenAI's function tool with these parameters, each a JSON schema."""
    schema = {"type": "object", "properties": parameters, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


class Arguments:
    """The arguments of a call, each read as its type. BadInput says what is wrong."""

    def __init__(self, call: ToolCall) -> None:
        try:
            values = msgspec.json.decode(call.arguments.strip() or "{}")
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise BadInput(f"the arguments of {call.name} are not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise BadInput(f"the arguments of {call.name} must be a JSON object")
        self._name = call.name
        self._values: Mapping[str, Any] = values

    def text(self, name: str) -> str:
        found = self.maybe_text(name)
        if found is None:
            raise BadInput(f"{self._name} needs {name}, a text")
        return found

    def maybe_text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise BadInput(f"{name} must be a text, not {value!r:.80}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadInput(f"{name} must be true or false, not {value!r:.80}")
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise BadInput(f"{name} must be a number from {least:g} to {most:g}, not {value!r:.80}")
        return float(value)


def shortened(text: str, limit: int = LONGEST_OUTPUT) -> str:
    """The text, or its beginning and end with a note of what was cut between."""
    if len(text) <= limit:
        return text
    head, tail = limit // 3, limit - limit // 3
    return f"{text[:head]}\n[… {len(text) - limit:,} characters left out …]\n{text[-tail:]}"


log = logging.getLogger(__name__)

MAX_STEPS = 50


class Toolbox:
    """`max_steps`: how often the model may be called within one turn."""

    def __init__(
        self, tools: Iterable[Tool] = (), max_steps: int = MAX_STEPS, reconcile: Reconcile | None = None
    ) -> None:
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._reconcile = reconcile
        self.max_steps = max_steps

    def __bool__(self) -> bool:
        return bool(self._tools)

    def is_own(self, name: str, clients: Collection[str]) -> bool:
        """True if the server runs, or refuses, a tool of this name; `clients` are the client's own tools."""
        return name in self._tools and name not in clients

    def schemas(self, allowed: Collection[str], clients: Collection[str]) -> list[dict[str, Any]]:
        """The schemas offered to the model in addition to the client's own tools."""
        return [
            tool.schema
            for name, tool in self._tools.items()
            if name in allowed and self.is_own(name, clients)
        ]

    async def outcome(self, call: ToolCall) -> str | None:
        """The result of a call that was open when its process ended: run again if its tool is idempotent,
        else as the `reconcile` hook knows it. None: unknown."""
        tool = self._tools.get(call.name)
        if tool is not None and tool.idempotent:
            return await self.run(call)
        if self._reconcile is None:
            return None
        try:
            known = await self._reconcile(call)
        except Exception:
            log.exception("the reconcile hook failed for %s (%s)", call.key, call.name)
            return None
        return None if known is None else storable(known)

    async def run(self, call: ToolCall) -> str:
        """The result of a call; a failure is a result too."""
        if call.name not in call.rights:
            return f"[Not run: the tool {call.name} is not allowed here.]"
        log.info("turn %s runs %s", call.turn_id, call.name)
        try:
            result = await self._tools[call.name].run(call)
        except HoldfastError as error:
            if error.public != str(error):
                log.warning("turn %s: %s failed: %s", call.turn_id, call.name, error)
            return storable(f"[{call.name} failed: {error.public}]")
        except OSError as error:
            return storable(f"[{call.name} failed: {error.strerror or error}]")
        except Exception:
            log.exception("tool %s failed with an unexpected error (turn %s)", call.name, call.turn_id)
            return f"[{call.name} failed with an internal error; the server's log has the details.]"
        return storable(result)


def clients_tools(options: Mapping[str, Any]) -> frozenset[str]:
    """The names of the tools in a request, in the current or the older format."""
    names = []
    for tool in _objects(options.get("tools")):
        named = tool.get(str(tool.get("type"))) or tool.get("function")
        names.append(named.get("name") if isinstance(named, Mapping) else tool.get("name"))
    names += [function.get("name") for function in _objects(options.get("functions"))]
    return frozenset(name for name in names if isinstance(name, str))


def _objects(values: Any) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []
