"""The schema of Open Responses, release of April 2026, as far as a server must follow it.

Written from the published facts: which fields an object requires, their types, and where null is allowed.
Further fields are allowed everywhere. A tagged union is told apart by `type`; a type that is not listed is an
error, except for events of extensions (`EXTENSIONS`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

EXTENSIONS = (
    *("response.reasoning_text.delta", "response.reasoning_text.done"),
    *("response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"),
)
"""Events of OpenAI's API that the release does not describe."""


class Tagged(Struct, tag_field="type", kw_only=True):
    """Base of the objects that are told apart by `type`."""


# --- content ---------------------------------------------------------------------------------------------


class UrlCitation(Tagged, tag="url_citation"):
    url: str
    title: str
    start_index: int
    end_index: int


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class OutputText(Tagged, tag="output_text"):
    text: str
    annotations: list[UrlCitation]
    logprobs: list[Logprob] | UnsetType = UNSET


class InputText(Tagged, tag="input_text"):
    text: str


class Text(Tagged, tag="text"):
    text: str


class SummaryText(Tagged, tag="summary_text"):
    text: str


class ReasoningText(Tagged, tag="reasoning_text"):
    text: str


class Refusal(Tagged, tag="refusal"):
    refusal: str


class InputImage(Tagged, tag="input_image"):
    image_url: str | None
    detail: Literal["low", "high", "auto"]


class InputFile(Tagged, tag="input_file"):
    filename: str | UnsetType = UNSET
    file_url: str | UnsetType = UNSET


class InputVideo(Tagged, tag="input_video"):
    video_url: str


Part = OutputText | InputText | Text | SummaryText | ReasoningText | Refusal | InputImage | InputFile
MessagePart = Part | InputVideo


# --- items -----------------------------------------------------------------------------------------------

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Message(Tagged, tag="message"):
    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[MessagePart]
    phase: Literal["commentary", "final_answer"] | UnsetType = UNSET


class FunctionCall(Tagged, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class FunctionCallOutput(Tagged, tag="function_call_output"):
    id: str
    call_id: str
    output: str | list[InputText | InputImage | InputFile]
    status: ItemStatus


class Reasoning(Tagged, tag="reasoning"):
    id: str
    summary: list[Part]
    content: list[Part] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class Compaction(Tagged, tag="compaction"):
    id: str
    encrypted_content: str
    created_by: str | UnsetType = UNSET


Item = Message | FunctionCall | FunctionCallOutput | Reasoning | Compaction


# --- the response ----------------------------------------------------------------------------------------


class FunctionTool(Tagged, tag="function"):
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class FunctionChoice(Tagged, tag="function"):
    name: str | UnsetType = UNSET


class AllowedTools(Tagged, tag="allowed_tools"):
    tools: list[FunctionChoice]
    mode: Literal["none", "auto", "required"]


class TextFormat(Tagged, tag="text"):
    pass


class JsonFormat(Tagged, tag="json_object"):
    pass


class SchemaFormat(Tagged, tag="json_schema"):
    name: str
    description: str | None
    strict: bool
    schema: Any


class TextConfig(Struct):
    format: TextFormat | JsonFormat | SchemaFormat
    verbosity: Literal["low", "medium", "high"] | UnsetType = UNSET


class ReasoningConfig(Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None
    summary: Literal["concise", "detailed", "auto"] | None


class InputTokens(Struct):
    cached_tokens: int


class OutputTokens(Struct):
    reasoning_tokens: int


class Usage(Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokens
    output_tokens_details: OutputTokens


class Failure(Struct):
    code: str
    message: str


class Incomplete(Struct):
    reason: str


class Response(Struct, kw_only=True):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    incomplete_details: Incomplete | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[Item]
    error: Failure | None
    tools: list[FunctionTool]
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: TextConfig
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: ReasoningConfig | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class CompactedResponse(Struct, kw_only=True):
    id: str
    object: Literal["response.compaction"]
    output: list[Item]
    created_at: int
    usage: Usage


# --- events ----------------------------------------------------------------------------------------------


class Numbered(Tagged):
    sequence_number: int


class OfResponse(Numbered):
    response: Response


class Created(OfResponse, tag="response.created"):
    pass


class Queued(OfResponse, tag="response.queued"):
    pass


class InProgress(OfResponse, tag="response.in_progress"):
    pass


class Completed(OfResponse, tag="response.completed"):
    pass


class Failed(OfResponse, tag="response.failed"):
    pass


class IncompleteResponse(OfResponse, tag="response.incomplete"):
    pass


class OfItem(Numbered):
    output_index: int


class ItemAdded(OfItem, tag="response.output_item.added"):
    item: Item | None


class ItemDone(OfItem, tag="response.output_item.done"):
    item: Item | None


class OfPart(OfItem):
    item_id: str
    content_index: int


class PartAdded(OfPart, tag="response.content_part.added"):
    part: Part


class PartDone(OfPart, tag="response.content_part.done"):
    part: Part


class TextDelta(OfPart, tag="response.output_text.delta"):
    delta: str
    logprobs: list[Logprob] | UnsetType = UNSET


class TextDone(OfPart, tag="response.output_text.done"):
    text: str
    logprobs: list[Logprob] | UnsetType = UNSET


class RefusalDelta(OfPart, tag="response.refusal.delta"):
    delta: str


class RefusalDone(OfPart, tag="response.refusal.done"):
    refusal: str


class OfCall(OfItem):
    item_id: str


class ArgumentsDelta(OfCall, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(OfCall, tag="response.function_call_arguments.done"):
    arguments: str


class StreamedError(Struct):
    type: str
    code: str | None
    message: str
    param: str | None


class ErrorEvent(Numbered, tag="error"):
    error: StreamedError


Event = (
    Created
    | Queued
    | InProgress
    | Completed
    | Failed
    | IncompleteResponse
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | RefusalDelta
    | RefusalDone
    | ArgumentsDelta
    | ArgumentsDone
    | ErrorEvent
)


class SocketError(Struct):
    """The message that a WebSocket gets instead of a stream: a failure with an HTTP status."""

    type: Literal["error"]
    status: int
    error: Failure


def check_response(value: Any) -> None:
    """Raises ValidationError, naming the field, unless the value is a response."""
    msgspec.convert(value, Response)


def check_compacted(value: Any) -> None:
    msgspec.convert(value, CompactedResponse)


def check_event(value: Any) -> None:
    if value.get("type") not in EXTENSIONS:
        msgspec.convert(value, Event)


def check_socket_error(value: Any) -> None:
    msgspec.convert(value, SocketError)


def check_order(events: list[dict[str, Any]]) -> None:
    """Asserts the order that the specification demands: numbers rise without a gap; an item is added before
    its parts and done after them; the stream begins with `response.created` and ends with one final event."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert [kind for kind in kinds if kind in FINAL] == [kinds[-1]]
    open_items: dict[int, str] = {}
    done: dict[int, str] = {}
    open_parts: set[tuple[str, int]] = set()
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(open_items) + len(done)
                open_items[event["output_index"]] = event["item"]["id"]
                assert event["item"].get("status", "in_progress") == "in_progress"
            case "response.output_item.done":
                assert open_items.pop(event["output_index"]) == event["item"]["id"]
                assert not any(item == event["item"]["id"] for item, _ in open_parts)
                done[event["output_index"]] = event["item"]["id"]
            case "response.content_part.added":
                assert open_items[event["output_index"]] == event["item_id"]
                open_parts.add((event["item_id"], event["content_index"]))
            case "response.content_part.done":
                open_parts.remove((event["item_id"], event["content_index"]))
            case kind if kind.endswith((".delta", ".done")):
                assert open_items[event["output_index"]] == event["item_id"]
    assert not open_items and not open_parts
    assert [item["id"] for item in events[-1]["response"]["output"]] == [done[at] for at in sorted(done)]


FINAL = ("response.completed", "response.incomplete", "response.failed")
