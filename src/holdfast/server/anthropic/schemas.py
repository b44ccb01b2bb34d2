"""Anthropic's objects and request bodies, as far as holdfast makes or reads them: the source of their
schemas.

Messages are sent as dictionaries, because they carry fields of the model that no Struct can hold; tests
compare them with the Structs here. Bodies are read field by field (`request.py`) for the same reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ..schemas import HoldfastObject, PublicObject, doc

OpenObject = dict[str, Any]


class MessageUsageObject(PublicObject, frozen=True, kw_only=True):
    """Token counts of a message, as far as the model reported them."""

    input_tokens: Annotated[int, doc("Without those of a cache")]
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessageObject(PublicObject, frozen=True, kw_only=True):
    """An answer in Anthropic's API."""

    id: Annotated[str, doc("`msg_…`")]
    type: Literal["message"]
    role: Literal["assistant"]
    model: Annotated[str, doc("The model that answered")]
    content: Annotated[list[OpenObject], doc("Blocks: `thinking`, `text`, `tool_use`")]
    stop_reason: Annotated[str, doc("`end_turn`, `tool_use`, `max_tokens`, `stop_sequence` or `refusal`")]
    stop_sequence: str | None
    usage: MessageUsageObject
    holdfast: Annotated[HoldfastObject, doc("Missing if nothing is stored")] | UnsetType = UNSET


class TokenCountObject(PublicObject, frozen=True, kw_only=True):
    """The tokens of a request: the model's count, or an estimate."""

    input_tokens: int


class AnthropicErrorDetailObject(PublicObject, frozen=True, kw_only=True):
    """The field `error` of an error in Anthropic's shape."""

    type: Annotated[str, doc("`invalid_request_error`, `authentication_error`, `not_found_error`, …")]
    message: str
    param: Annotated[str | None, doc("The field that is wrong")]
    code: str | None


class AnthropicErrorObject(PublicObject, frozen=True, kw_only=True):
    """An error in Anthropic's shape; `param` and `code` are those of the other routes."""

    type: Literal["error"]
    error: AnthropicErrorDetailObject
    request_id: str


# --- request bodies --------------------------------------------------------------------------------------


class ContentBlock(Struct, frozen=True, kw_only=True):
    """A block of a message. `type` decides its fields; blocks of tools that ran at Anthropic are left out."""

    type: Literal[
        "text",
        "image",
        "document",
        "search_result",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "tool_reference",
    ]
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    source: Annotated[OpenObject, doc("Of an image or document: `base64`, `url`, `file`, …")] | UnsetType = (
        UNSET
    )
    id: Annotated[str, doc("Of a `tool_use`")] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    input: OpenObject | UnsetType = UNSET
    tool_use_id: Annotated[str, doc("Of a `tool_result`")] | UnsetType = UNSET
    content: Annotated[str | list[OpenObject] | None, doc("Of a `tool_result`")] | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    cache_control: Annotated[OpenObject | None, doc("Accepted; not sent to a chat model")] | UnsetType = UNSET


class InputMessage(Struct, frozen=True, kw_only=True):
    role: Annotated[
        Literal["user", "assistant", "system"], doc("`system`: an instruction at this place of the history")
    ]
    content: str | list[ContentBlock]


Messages = Annotated[list[InputMessage], Meta(min_length=1, description="The history, or only what is new")]


class MessagesBody(Struct, frozen=True, kw_only=True):
    """A request for a message. Other fields are sent on to a model that speaks this API."""

    messages: Messages
    max_tokens: Annotated[int, Meta(ge=1)]
    model: Annotated[str, doc("Empty or missing: the model of the settings")] | UnsetType = UNSET
    system: Annotated[str | list[OpenObject] | None, doc("Text, or text blocks")] | UnsetType = UNSET
    stream: bool | UnsetType = UNSET
    store: Annotated[bool, doc("False, without a conversation named: store nothing")] | UnsetType = UNSET
    tools: Annotated[list[OpenObject] | None, doc("`name`, `description`, `input_schema`")] | UnsetType = (
        UNSET
    )
    tool_choice: Annotated[OpenObject | None, doc("`type`: `auto`, `any`, `none` or `tool`")] | UnsetType = (
        UNSET
    )
    temperature: float | UnsetType | None = UNSET
    top_p: float | UnsetType | None = UNSET
    top_k: float | UnsetType | None = UNSET
    stop_sequences: list[str] | UnsetType | None = UNSET
    thinking: Annotated[OpenObject | None, doc("`type`: `enabled`, `disabled` or `adaptive`")] | UnsetType = (
        UNSET
    )
    output_config: Annotated[OpenObject | None, doc("`format`: a JSON schema")] | UnsetType = UNSET
    metadata: OpenObject | UnsetType | None = UNSET


class CountTokensBody(Struct, frozen=True, kw_only=True):
    """A request as for `POST /v1/messages`, which is measured and not sent."""

    messages: Messages
    model: str | UnsetType = UNSET
    system: Annotated[str | list[OpenObject] | None, doc("Text, or text blocks")] | UnsetType = UNSET
    tools: list[OpenObject] | UnsetType | None = UNSET
