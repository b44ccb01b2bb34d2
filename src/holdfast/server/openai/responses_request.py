"""Parses a request to the Responses API into chat messages, options for the model, and echoed fields.

Every field that is used here is validated, and an error names it. Unknown fields are passed to the model
unchanged. Where the two APIs differ:

- `max_output_tokens` is sent as `max_completion_tokens`. OpenAI rejects `max_tokens` for its reasoning
  models, and rejects both together; vLLM and llama.cpp accept either. Ollama accepts only `max_tokens`:
  `models/upstream.py`, which knows the server, renames it.
- `truncation` is not used: a context that does not fit is compacted, never cut. `context_management` sets the
  size above which it is compacted.
- `store`, `metadata`, `client_metadata`, `background`, `include` and `stream` are for holdfast, not for the
  model.
- `prompt`, a template stored at OpenAI, is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .input_items import (
    OpenSummary,
    Resolve,
    ToolNames,
    messages_from_input,
    request_tools,
    tool_names,
    tools_given,
)
from .parameters import (
    BadParameter,
    flag,
    given_model,
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
from .response_object import NOTHING_ASKED

LOGPROBS = "message.output_text.logprobs"
AS_GIVEN = (
    *("frequency_penalty", "instructions", "max_output_tokens", "max_tool_calls", "parallel_tool_calls"),
    *("presence_penalty", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier"),
    *("temperature", "top_logprobs", "top_p", "truncation", "user"),
)
"""The fields that the response object repeats unchanged."""
# Fields that are read here; all others are passed to the model.
OURS = frozenset(
    {
        *("model", "input", "instructions", "stream", "store", "background", "previous_response_id"),
        *("conversation", "metadata", "include", "tools", "tool_choice", "parallel_tool_calls", "text"),
        *("max_output_tokens", "max_tool_calls", "reasoning", "temperature", "top_p", "user", "top_logprobs"),
        *("safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention", "truncation"),
        *("stream_options", "prompt", "context_management", "messages", "n"),
        *("presence_penalty", "frequency_penalty", "client_metadata"),
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
    custom_tools: ToolNames = field(default_factory=ToolNames)
    """The tools whose calls are shown as custom tool calls; can be restored by `custom_tools_of(echo)`."""
    left_out: tuple[str, ...] = ()
    """The types of the tools and items that were left out, because only OpenAI can run them."""
    compact_at: int | None = None
    """Tokens: a larger context is compacted before the model is called."""
    max_tool_calls: int | None = None
    """How many server tools the model may call."""


def parse(
    body: Mapping[str, Any],
    *,
    resolve: Resolve | None = None,
    open_summary: OpenSummary | None = None,
    refuses_hosted: bool = False,
) -> ResponsesRequest:
    """Parse a request. Raises BadParameter, naming the field, for an invalid value. `refuses_hosted`: also
    for tools, and items of tools, that only OpenAI can run; else they are left out."""
    _refuse(given_object(body, "the request"))
    previous, conversation = text(body, "previous_response_id"), _conversation(body.get("conversation"))
    if previous is not None and conversation is not None:
        raise BadParameter(
            "previous_response_id", "cannot be used together with conversation; name one of them"
        )
    store, background = flag(body, "store", True), flag(body, "background", False)
    if background and not store:
        raise BadParameter("background", "needs store: true, because no open connection receives the answer")
    dropped: dict[str, None] = {}
    messages = _messages(
        body, previous or conversation, resolve, open_summary, None if refuses_hosted else dropped
    )
    parallel = (
        flag(body, "parallel_tool_calls", True) if body.get("parallel_tool_calls") is not None else None
    )
    tools = request_tools(body, parallel, refuses=refuses_hosted)
    left_out = (*tools.left_out, *dropped)
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
        echo=_echo(body, metadata, store, left_out),
        model=given_model(body.get("model")),
        stream=flag(body, "stream", False),
        store=store,
        background=background,
        previous_response_id=previous,
        conversation_id=conversation,
        metadata=metadata,
        include=include,
        custom_tools=tools.custom,
        left_out=left_out,
        compact_at=_threshold(list_of(body, "context_management")),
        max_tool_calls=whole_number(body, "max_tool_calls", 0),
    )


def _threshold(edits: list[Any]) -> int | None:
    """The tokens above which the context is compacted; None: the request does not say."""
    least: int | None = None
    for at, value in enumerate(edits):
        param = f"context_management[{at}]"
        edit = given_object(value, param)
        name = given_text(edit.get("type"), f"{param}.type")
        if name != "compaction":
            raise BadParameter(f"{param}.type", f"must be compaction; it is {name!r:.80}")
        threshold = edit.get("compact_threshold")
        if threshold is None:
            continue
        if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 1:
            raise BadParameter(f"{param}.compact_threshold", "must be a whole number, 1 or more")
        least = threshold if least is None else min(least, threshold)
    return least


def custom_tools_of(echo: Mapping[str, Any]) -> ToolNames:
    """The names of a request's custom tools and of those in namespaces, from its echo."""
    return tool_names(echo.get("tools", ()))


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
    object_of(body, "stream_options")
    object_of(body, "client_metadata")


def _conversation(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return given_name(value, "conversation")
    if isinstance(value, Mapping):
        return given_name(value.get("id"), "conversation.id")
    raise BadParameter("conversation", f"must be an id or an object with one, not {kind(value)}")


def _messages(
    body: Mapping[str, Any],
    continues: str | None,
    resolve: Resolve | None,
    open_summary: OpenSummary | None,
    left_out: dict[str, None] | None,
) -> list[dict[str, Any]]:
    value = body.get("input")
    messages = (
        []
        if value is None
        else messages_from_input(value, resolve=resolve, open_summary=open_summary, left_out=left_out)
    )
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
        "presence_penalty": number(body, "presence_penalty"),
        "frequency_penalty": number(body, "frequency_penalty"),
        "top_logprobs": whole_number(body, "top_logprobs", 0) or None,
        "user": text(body, "user"),
        "safety_identifier": text(body, "safety_identifier"),
        "service_tier": text(body, "service_tier"),
        "prompt_cache_key": text(body, "prompt_cache_key"),
        "prompt_cache_retention": text(body, "prompt_cache_retention"),
    }
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


def _echo(
    body: Mapping[str, Any], metadata: Mapping[str, str], store: bool, left_out: tuple[str, ...]
) -> dict[str, Any]:
    """The request's fields for the response object; NOTHING_ASKED for those that it does not give.
    `warnings` only if something of the request was not used."""
    given = {name: body[name] for name in AS_GIVEN if body.get(name) is not None}
    return {
        **NOTHING_ASKED,
        **given,
        "metadata": dict(metadata),
        "reasoning": {"effort": None, "summary": None, **object_of(body, "reasoning")},
        "store": store,
        "text": _text_echo(object_of(body, "text")),
        "tool_choice": _choice_echo(body.get("tool_choice")),
        "tools": [_tool_echo(tool) for tool in tools_given(body)],
        **({"warnings": [_left_out(left_out)]} if left_out else {}),
    }


def _left_out(types: tuple[str, ...]) -> dict[str, Any]:
    return {
        "code": "tools_left_out",
        "message": f"only OpenAI can run these, so they were not offered to the model: {', '.join(types)}",
        "types": list(types),
    }


def _text_echo(config: Mapping[str, Any]) -> dict[str, Any]:
    echo = {
        "format": {"type": "text"},
        **{name: value for name, value in config.items() if value is not None},
    }
    if echo["format"].get("type") == "json_schema":
        echo["format"] = {"description": None, "strict": False, **echo["format"]}
    return echo


def _choice_echo(choice: Any) -> Any:
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return {"mode": "auto", **choice}
    return choice or "auto"


def _tool_echo(tool: Any) -> Any:
    """A function with the fields that Open Responses requires; any other tool as it was given."""
    if isinstance(tool, Mapping) and tool.get("type") == "function":
        return {"description": None, "parameters": None, "strict": None, **tool}
    return tool
