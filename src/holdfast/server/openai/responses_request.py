"""Parses a request to the Responses API into chat messages, options for the model, and echoed fields.

Every field that is used here is validated, and an error names it. Unknown fields are passed to the model
unchanged. Where the two APIs differ:

- `max_output_tokens` is sent as `max_completion_tokens`. OpenAI rejects `max_tokens` for its reasoning
  models, and rejects both together; vLLM and llama.cpp accept either. Ollama accepts only `max_tokens`:
  `models/upstream.py`, which knows the server, renames it.
- `truncation` and `context_management` control how the context is shortened. holdfast compacts by itself.
- `store`, `metadata`, `background`, `include` and `stream` are for holdfast, not for the model.
- `prompt`, a template stored at OpenAI, is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .input_items import Resolve, messages_from_input, request_tools
from .parameters import (
    BadParameter,
    flag,
    given_name,
    given_object,
    given_text,
    kind,
    list_of,
    metadata_of,
    number,
    object_of,
    one_of,
    text,
    whole_number,
)

LOGPROBS = "message.output_text.logprobs"
# Fields that are read here; all others are passed to the model.
OURS = frozenset(
    {
        *("model", "input", "instructions", "stream", "store", "background", "previous_response_id"),
        *("conversation", "metadata", "include", "tools", "tool_choice", "parallel_tool_calls", "text"),
        *("max_output_tokens", "max_tool_calls", "reasoning", "temperature", "top_p", "user", "top_logprobs"),
        *("safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention", "truncation"),
        *("stream_options", "prompt", "context_management", "messages", "n"),
    }
)


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    messages: tuple[dict[str, Any], ...]
    """The input as chat messages; may be empty if a conversation or a previous response is named."""
    instructions: str | None = None
    """Instructions for the model, for this turn only."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields for the chat model."""
    echo: Mapping[str, Any] = field(default_factory=dict)
    """The request's fields that the response object repeats; JSON, stored with the response."""
    model: str | None = None
    stream: bool = False
    store: bool = True
    background: bool = False
    previous_response_id: str | None = None
    conversation_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    include: tuple[str, ...] = ()
    custom_tools: frozenset[str] = frozenset()
    """The tools whose calls are shown as custom tool calls; can be restored by `custom_tools_of(echo)`."""


def parse(body: Mapping[str, Any], *, resolve: Resolve | None = None) -> ResponsesRequest:
    """Parse a request. Raises BadParameter, naming the field, for an invalid value."""
    _refuse(given_object(body, "the request"))
    previous, conversation = text(body, "previous_response_id"), _conversation(body.get("conversation"))
    if previous is not None and conversation is not None:
        raise BadParameter(
            "previous_response_id", "cannot be used together with conversation; name one of them"
        )
    store, background = flag(body, "store", True), flag(body, "background", False)
    if background and not store:
        raise BadParameter("background", "needs store: true, because no open connection receives the answer")
    messages = _messages(body, previous or conversation, resolve)
    parallel = (
        flag(body, "parallel_tool_calls", True) if body.get("parallel_tool_calls") is not None else None
    )
    tools = request_tools(body, parallel)
    include = tuple(given_text(name, f"include[{at}]") for at, name in enumerate(list_of(body, "include")))
    metadata = metadata_of(body.get("metadata"))
    options = {name: value for name, value in body.items() if name not in OURS}
    options |= {**tools.options, **_plain_options(body), **_text_options(body)}
    if LOGPROBS in include or options.get("top_logprobs"):
        options["logprobs"] = True
    return ResponsesRequest(
        messages=tuple(messages),
        instructions=text(body, "instructions"),
        options=options,
        echo=_echo(body, metadata, store),
        model=given_name(body["model"], "model") if body.get("model") not in (None, "") else None,
        stream=flag(body, "stream", False),
        store=store,
        background=background,
        previous_response_id=previous,
        conversation_id=conversation,
        metadata=metadata,
        include=include,
        custom_tools=tools.custom,
    )


def custom_tools_of(echo: Mapping[str, Any]) -> frozenset[str]:
    """The names of a request's custom tools, from its echo."""
    return frozenset(str(tool["name"]) for tool in echo.get("tools", ()) if tool.get("type") == "custom")


def _refuse(body: Mapping[str, Any]) -> None:
    if body.get("prompt") is not None:
        raise BadParameter(
            "prompt", "is a template stored at OpenAI, which is not available here; send instructions"
        )
    if body.get("messages") is not None:
        raise BadParameter("messages", "is a field of the chat API; the Responses API calls it input")
    if body.get("n") not in (None, 1):
        raise BadParameter("n", "cannot be used: a response is one answer")
    one_of(body, "truncation", ("auto", "disabled"))
    list_of(body, "context_management")
    object_of(body, "stream_options")


def _conversation(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return given_name(value, "conversation")
    if isinstance(value, Mapping):
        return given_name(value.get("id"), "conversation.id")
    raise BadParameter("conversation", f"must be an id or an object with one, not {kind(value)}")


def _messages(
    body: Mapping[str, Any], continues: str | None, resolve: Resolve | None
) -> list[dict[str, Any]]:
    value = body.get("input")
    messages = [] if value is None else messages_from_input(value, resolve=resolve)
    if not messages and continues is None:
        raise BadParameter(
            "input", "must not be empty, unless a previous response or a conversation is named"
        )
    return messages


def _plain_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """The options that chat takes unchanged or under another name."""
    effort = text(object_of(body, "reasoning"), "effort", "reasoning.effort")
    options = {
        "max_completion_tokens": whole_number(body, "max_output_tokens", 1),
        "reasoning_effort": effort,
        "temperature": number(body, "temperature"),
        "top_p": number(body, "top_p"),
        "top_logprobs": whole_number(body, "top_logprobs", 0) or None,
        "user": text(body, "user"),
        "safety_identifier": text(body, "safety_identifier"),
        "service_tier": text(body, "service_tier"),
        "prompt_cache_key": text(body, "prompt_cache_key"),
        "prompt_cache_retention": text(body, "prompt_cache_retention"),
    }
    whole_number(body, "max_tool_calls", 0)  # only validated: it limits built-in tools, and there are none
    return {name: value for name, value in options.items() if value is not None}


def _text_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """`text.format` as chat's `response_format`, `text.verbosity` as `verbosity`."""
    config = object_of(body, "text")
    options: dict[str, Any] = {}
    if (verbosity := text(config, "verbosity", "text.verbosity")) is not None:
        options["verbosity"] = verbosity
    if config.get("format") is None:
        return options
    form = given_object(config["format"], "text.format")
    match given_text(form.get("type"), "text.format.type"):
        case "text":
            pass
        case "json_object":
            options["response_format"] = {"type": "json_object"}
        case "json_schema":
            schema = {name: value for name, value in form.items() if name != "type" and value is not None}
            given_name(form.get("name"), "text.format.name")
            given_object(form.get("schema"), "text.format.schema")
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
        case other:
            raise BadParameter(
                "text.format.type", f"must be text, json_object or json_schema; it is {other!r:.80}"
            )
    return options


def _echo(body: Mapping[str, Any], metadata: Mapping[str, str], store: bool) -> dict[str, Any]:
    """The request's fields for the response object. A default that only the model knows is null."""
    as_given = (
        *(
            "instructions",
            "max_output_tokens",
            "max_tool_calls",
            "prompt_cache_key",
            "prompt_cache_retention",
        ),
        *("safety_identifier", "service_tier", "temperature", "top_p", "user"),
    )
    parallel = body.get("parallel_tool_calls")
    return {
        **{name: body.get(name) for name in as_given},
        "metadata": dict(metadata),
        "parallel_tool_calls": True if parallel is None else parallel,
        "reasoning": {"effort": None, "summary": None, **object_of(body, "reasoning")},
        "store": store,
        "text": {
            "format": {"type": "text"},
            **{k: v for k, v in object_of(body, "text").items() if v is not None},
        },
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": list_of(body, "tools"),
        "top_logprobs": body.get("top_logprobs") or 0,
        "truncation": body.get("truncation") or "disabled",
    }
