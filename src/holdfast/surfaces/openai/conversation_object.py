"""The objects of the Conversations API, and the requests that make and change conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .input_items import Resolve, messages_from_input
from .parameters import BadParameter, given_object, metadata_of


@dataclass(frozen=True, slots=True)
class ConversationRequest:
    """A new conversation, or an addition to one."""

    messages: tuple[dict[str, Any], ...]
    metadata: Mapping[str, str]


def parse_conversation(body: Mapping[str, Any], *, resolve: Resolve | None = None) -> ConversationRequest:
    """Read a request for a new conversation; both its fields may be missing."""
    items = given_object(body, "the request").get("items")
    messages = [] if items is None else _messages(items, resolve)
    return ConversationRequest(tuple(messages), metadata_of(body.get("metadata")))


def parse_items(body: Mapping[str, Any], *, resolve: Resolve | None = None) -> tuple[dict[str, Any], ...]:
    """Read a request that adds items."""
    messages = _messages(given_object(body, "the request").get("items"), resolve)
    if not messages:
        raise BadParameter("items", "must hold at least one item that can be kept")
    return tuple(messages)


def parse_metadata(body: Mapping[str, Any]) -> dict[str, str]:
    """Read a request that replaces the metadata."""
    if "metadata" not in given_object(body, "the request"):
        raise BadParameter("metadata", "must be given; null empties it")
    return metadata_of(body["metadata"])


def _messages(items: object, resolve: Resolve | None) -> list[dict[str, Any]]:
    if not isinstance(items, list):
        raise BadParameter("items", "must be a list of items")
    return messages_from_input(items, resolve=resolve, param="items")


def conversation_object(
    conversation_id: str,
    created_at: datetime,
    metadata: Mapping[str, str] | None = None,
    holdfast: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    value: dict[str, Any] = {
        "id": conversation_id,
        "object": "conversation",
        "created_at": int(created_at.timestamp()),
        "metadata": dict(metadata or {}),
    }
    return {**value, "holdfast": dict(holdfast)} if holdfast is not None else value


def deleted_conversation(conversation_id: str) -> dict[str, Any]:
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
