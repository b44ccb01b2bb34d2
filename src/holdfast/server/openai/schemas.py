"""OpenAI's objects and request bodies, as far as holdfast makes or reads them: the source of their schemas.

Conversations and confirmations are made as these Structs. Completions, responses and items are sent as
dictionaries, because they carry fields of the client and of the model that no Struct can hold; tests compare
them with the Structs here. Bodies are read field by field (`parameters.py`) for the same reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ..schemas import HoldfastObject, PublicObject, doc

Metadata = Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
OpenObject = dict[str, Any]


class ConversationHoldfastObject(PublicObject, frozen=True, kw_only=True):
    """The field `holdfast` of a conversation."""

    session_id: Annotated[str, doc("Its newest session")]
    key: Annotated[str | None, doc("Its session key")]
    title: str | None
    owner: Annotated[str, doc("Present only if the request names `owner`")] | UnsetType = UNSET


class ConversationObject(PublicObject, frozen=True, kw_only=True):
    """A conversation of the Conversations API."""

    id: Annotated[str, doc("`conv_…`")]
    object: Literal["conversation"]
    created_at: Annotated[int, doc("Unix time")]
    metadata: Annotated[dict[str, str], doc("Up to 16 pairs of text, set by the client")]
    holdfast: ConversationHoldfastObject


class DeletedConversationObject(PublicObject, frozen=True, kw_only=True):
    """Confirms that a conversation was deleted."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class ItemObject(PublicObject, frozen=True, kw_only=True):
    """An item: the text, the reasoning, a call or a result of a message. `type` decides its other fields."""

    id: Annotated[str, doc("`msg_…`, `rs_…`, `fc_…` or `fco_…`")]
    type: Annotated[str, doc("`message`, `reasoning`, `function_call`, `custom_tool_call`, …")]
    status: Annotated[str, doc("`completed`, `in_progress` or `incomplete`")]


class ItemListObject(PublicObject, frozen=True, kw_only=True):
    """A page of items. The SDK's types require text as first and last id, also of an empty list."""

    object: Literal["list"]
    data: list[ItemObject]
    first_id: Annotated[str, doc("The id of the first item; empty if there is none")]
    last_id: Annotated[str, doc("The id of the last item: `after` of the next page")]
    has_more: Annotated[bool, doc("True: there is a next page")]


class ResponseObject(PublicObject, frozen=True, kw_only=True):
    """A response of the Responses API. Fields without a description are OpenAI's and repeat the request."""

    id: Annotated[str, doc("`resp_…`")]
    object: Literal["response"]
    created_at: Annotated[int, doc("Unix time")]
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    completed_at: Annotated[int | None, doc("Unix time")]
    background: bool
    conversation: Annotated[dict[str, str] | None, doc('`{"id": "conv_…"}`')]
    error: Annotated[dict[str, str] | None, doc("`code` and `message` of a failed response")]
    incomplete_details: Annotated[dict[str, str] | None, doc("`reason` of an incomplete response")]
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: OpenObject
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: OpenObject
    tool_choice: str | OpenObject
    tools: list[OpenObject]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None
    model: Annotated[str, doc("The model that answered")]
    output: Annotated[list[OpenObject], doc("The items of the answer")]
    previous_response_id: str | None
    prompt: None
    usage: Annotated[OpenObject | None, doc("Token counts, in the format of the Responses API")]
    warnings: (
        Annotated[list[OpenObject], doc("Tools that were left out: `code`, `message`, `types`")] | UnsetType
    ) = UNSET
    holdfast: HoldfastObject | UnsetType = UNSET


class DeletedResponseObject(PublicObject, frozen=True, kw_only=True):
    """Confirms that a response id was deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class CompactedResponseObject(PublicObject, frozen=True, kw_only=True):
    """A compacted history: items for the input of the next request."""

    id: Annotated[str, doc("`resp_…`; it cannot be read")]
    object: Literal["response.compaction"]
    created_at: Annotated[int, doc("Unix time")]
    output: Annotated[list[OpenObject], doc("Instructions, one `compaction` item, what is not answered yet")]
    usage: Annotated[OpenObject, doc("Token counts of the summary; an estimate if the model reports none")]


class InputTokensObject(PublicObject, frozen=True, kw_only=True):
    """The estimated size of a request."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ChatCompletionObject(PublicObject, frozen=True, kw_only=True):
    """A chat completion: the model's, with all of its fields, and `holdfast`."""

    object: Literal["chat.completion"]
    choices: Annotated[list[OpenObject], doc("The model's choices; `message` is the stored reply")]
    usage: Annotated[OpenObject | None, doc("Token counts, as the model reported them")] | UnsetType = UNSET
    holdfast: Annotated[HoldfastObject, doc("Missing with `store: false`")] | UnsetType = UNSET


class ModelObject(PublicObject, frozen=True, kw_only=True):
    """A model, as the upstream describes it."""

    id: str


# --- request bodies: further fields are passed to the model ----------------------------------------------


class ChatBody(Struct, frozen=True, kw_only=True):
    """A chat request. Other fields are passed to the model unchanged."""

    messages: Annotated[list[OpenObject], Meta(min_length=1, description="The history, or only what is new")]
    model: Annotated[str, doc("Empty or missing: the model of the settings")] | UnsetType = UNSET
    stream: Annotated[bool, doc("True: answer as server-sent events")] | UnsetType = UNSET
    store: Annotated[bool, doc("False, without a conversation named: store nothing")] | UnsetType = UNSET
    n: Annotated[int, Meta(ge=1, le=128, description="More than 1 only with `store: false`")] | UnsetType = (
        UNSET
    )


class ResponsesBody(Struct, frozen=True, kw_only=True):
    """A request for a response. OpenAI's other fields are passed to the model in chat's form."""

    input: Annotated[str | list[OpenObject], doc("Text, or items")] | UnsetType = UNSET
    model: str | UnsetType = UNSET
    instructions: Annotated[str, doc("For this turn only; not stored")] | UnsetType = UNSET
    previous_response_id: Annotated[str, doc("Continue after this response")] | UnsetType = UNSET
    conversation: Annotated[str | OpenObject, doc("An id, or an object with one")] | UnsetType = UNSET
    stream: bool | UnsetType = UNSET
    store: Annotated[bool, doc("False, without a conversation named: store nothing")] | UnsetType = UNSET
    background: Annotated[bool, doc("True: answer at once, run without a connection")] | UnsetType = UNSET
    tools: Annotated[list[OpenObject] | None, doc("Functions and other tools")] | UnsetType = UNSET
    tool_choice: str | OpenObject | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    max_tool_calls: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_output_tokens: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    top_p: float | UnsetType | None = UNSET
    presence_penalty: float | UnsetType | None = UNSET
    frequency_penalty: float | UnsetType | None = UNSET
    top_logprobs: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    reasoning: OpenObject | UnsetType | None = UNSET
    text: Annotated[OpenObject | None, doc("`format` and `verbosity`")] | UnsetType = UNSET
    truncation: Annotated[Literal["auto", "disabled"] | None, doc("Not used")] | UnsetType = UNSET
    context_management: (
        Annotated[list[OpenObject] | None, doc("`type` is `compaction`; `compact_threshold` in tokens")]
        | UnsetType
    ) = UNSET
    metadata: Metadata | UnsetType | None = UNSET
    include: list[str] | UnsetType | None = UNSET
    service_tier: str | UnsetType | None = UNSET
    safety_identifier: str | UnsetType | None = UNSET
    prompt_cache_key: str | UnsetType | None = UNSET


class CompactBody(Struct, frozen=True, kw_only=True):
    """A history to compact: `input`, what `previous_response_id` leads to, or both."""

    model: Annotated[str, Meta(min_length=1)]
    input: Annotated[str | list[OpenObject] | None, doc("Text, or items")] | UnsetType = UNSET
    previous_response_id: Annotated[str | None, doc("The history up to this response")] | UnsetType = UNSET
    instructions: Annotated[str | None, doc("For the summary")] | UnsetType = UNSET
    prompt_cache_key: str | UnsetType | None = UNSET


class InputTokensBody(Struct, frozen=True, kw_only=True):
    """A request as for `POST /v1/responses`, which is measured and not sent."""

    input: Annotated[str | list[OpenObject], doc("Text, or items")] | UnsetType = UNSET
    model: str | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    previous_response_id: Annotated[str, doc("With the history up to this response")] | UnsetType = UNSET
    conversation: Annotated[str | OpenObject, doc("With this conversation's context")] | UnsetType = UNSET


class NewConversationBody(Struct, frozen=True, kw_only=True):
    items: Annotated[list[OpenObject] | None, doc("Items to begin with")] | UnsetType = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class MetadataBody(Struct, frozen=True, kw_only=True):
    metadata: Annotated[Metadata | None, doc("Replaces the metadata; null clears it")]


class ItemsBody(Struct, frozen=True, kw_only=True):
    items: Annotated[list[OpenObject], Meta(min_length=1)]
