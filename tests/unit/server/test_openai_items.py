"""Items to chat messages and back, held against the official SDK's own types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.conversations import ConversationItem, ConversationItemList
from openai.types.responses import ResponseItem, ResponseItemList, ResponseOutputItem
from pydantic import TypeAdapter

from holdfast.domain.messages import Message, MessageStatus
from holdfast.domain.new_messages import new_message
from holdfast.errors import BadInput
from holdfast.server.openai.input_items import messages_from_input, referenced_ids
from holdfast.server.openai.items import (
    ItemName,
    ItemPart,
    item_id,
    item_page,
    items_from,
    items_of,
    listed,
    parse_item_id,
    without_item,
)
from holdfast.server.openai.parameters import BadParameter
from holdfast.server.openai.response_events import whole_item

CONVERSATION = "conv_0123456789abcdef0123456789abcdef"
ID = "msg_0123456789abcdef0123456789abcdef_7"
FC = "fc_0123456789abcdef0123456789abcdef_7"

IN_CONVERSATION: TypeAdapter[Any] = TypeAdapter(ConversationItem)
IN_INPUT: TypeAdapter[Any] = TypeAdapter(ResponseItem)
IN_OUTPUT: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)


def stored(
    content: Mapping[str, Any], seq: int = 7, status: MessageStatus = MessageStatus.COMPLETED
) -> Message:
    checked = new_message(content)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Message(CONVERSATION, seq, "sess_1", None, checked.role, status, now, checked.body)


def call(call_id: str, name: str = "add", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def fc(call_id: str, name: str = "add", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def fco(call_id: str, output: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output, **more}


def thought(*texts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content, **more}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def tool(call_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def out(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


IMAGE = {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}}
FILE = {"type": "input_file", "filename": "a.pdf", "file_data": "data:…"}
CHAT_FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:…"}}


# --- to chat -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        pytest.param("hello", [user("hello")], id="a text"),
        pytest.param([], [], id="nothing"),
        pytest.param([user("hello")], [user("hello")], id="an easy message"),
        pytest.param(
            [
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    **user([{"type": "input_text", "text": "a"}]),
                }
            ],
            [user("a")],
            id="one text part is a text",
        ),
        pytest.param(
            [user([{"type": "input_text", "text": "a"}, IMAGE, FILE])],
            [user([{"type": "text", "text": "a"}, CHAT_IMAGE, CHAT_FILE])],
            id="text, image and file",
        ),
        pytest.param(
            [user([{"type": "input_audio", "input_audio": {"data": "x", "format": "mp3"}}])],
            [user([{"type": "input_audio", "input_audio": {"data": "x", "format": "mp3"}}])],
            id="audio",
        ),
        pytest.param(
            [user("a", name="ada", mood={"n": 1}, gone=None)],
            [user("a", name="ada", mood={"n": 1})],
            id="fields nobody knows",
        ),
        pytest.param(
            [user([{"type": "input_text", "text": "a", "cache": {"ttl": 1}}])],
            [user([{"type": "text", "text": "a", "cache": {"ttl": 1}}])],
            id="fields nobody knows on a part",
        ),
        pytest.param(
            [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}],
            [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}],
            id="instructions",
        ),
        pytest.param(
            [{"type": "message", **said([out("a")], phase="final_answer")}],
            [said("a", phase="final_answer")],
            id="an output message",
        ),
        pytest.param(
            [said([out("a"), {"type": "refusal", "refusal": "no"}])],
            [said("a", refusal="no")],
            id="text and refusal",
        ),
        pytest.param(
            [said([{"type": "refusal", "refusal": "no"}])], [said(None, refusal="no")], id="a refusal"
        ),
        pytest.param(
            [said([{"type": "refusal", "refusal": "no"}, out("a")])],
            [said([{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "a"}])],
            id="a refusal first",
        ),
        pytest.param([user([])], [user("")], id="no parts"),
        pytest.param(
            [said([out("a") | {"parsed": {"b": 1}}]), fc("c1", parsed_arguments={"b": 1})],
            [said("a", tool_calls=[call("c1")])],
            id="what the SDK made of an output",
        ),
        pytest.param(
            [fc("c1"), fc("c2", id="fc_9", status="completed"), fco("c1", "3"), fco("c2", "4")],
            [said(None, tool_calls=[call("c1"), call("c2")]), tool("c1", "3"), tool("c2", "4")],
            id="calls of one reply come together",
        ),
        pytest.param(
            [fc("c1"), fco("c1", "3"), fc("c2"), fco("c2", "4")],
            [
                said(None, tool_calls=[call("c1")]),
                tool("c1", "3"),
                said(None, tool_calls=[call("c2")]),
                tool("c2", "4"),
            ],
            id="calls of two replies do not",
        ),
        pytest.param(
            [said("Let me see."), fc("c1")],
            [said("Let me see.", tool_calls=[call("c1")])],
            id="text before a call",
        ),
        pytest.param([said(""), fc("c1")], [said(None, tool_calls=[call("c1")])], id="no text before a call"),
        pytest.param(
            [fc("c1"), said("Let me see."), fco("c1", "3")],
            [said("Let me see.", tool_calls=[call("c1")]), tool("c1", "3")],
            id="text after a call, before its result",
        ),
        pytest.param(
            [fc("c1", extra_content={"google": {"thought_signature": "x"}})],
            [said(None, tool_calls=[call("c1", extra_content={"google": {"thought_signature": "x"}})])],
            id="a call's fields that nobody knows",
        ),
        pytest.param(
            [fc("c1"), fco("c1", [{"type": "input_text", "text": "a"}, IMAGE])],
            [said(None, tool_calls=[call("c1")]), tool("c1", [{"type": "text", "text": "a"}, CHAT_IMAGE])],
            id="a result in parts",
        ),
        pytest.param(
            [thought("Hm"), said("a")],
            [said("a", reasoning_content="Hm")],
            id="reasoning goes with what follows",
        ),
        pytest.param(
            [thought("Hm"), fc("c1"), thought("Mh"), fc("c2"), fco("c1", "1")],
            [
                said(None, reasoning_content="Hm\n\nMh", tool_calls=[call("c1"), call("c2")]),
                tool("c1", "1"),
            ],
            id="reasoning between calls of one reply",
        ),
        pytest.param(
            [said("a"), thought("Hm"), fc("c1")],
            [said("a"), said(None, reasoning_content="Hm", tool_calls=[call("c1")])],
            id="reasoning after a reply begins another",
        ),
        pytest.param(
            [
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [{"type": "summary_text", "text": "In short"}],
                },
                said("a"),
            ],
            [said("a", reasoning_content="In short")],
            id="a summary",
        ),
        pytest.param(
            [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}, said("a")],
            [said("a")],
            id="encrypted reasoning is dropped",
        ),
        pytest.param(
            [thought("Hm"), user("a")],
            [said("", reasoning_content="Hm"), user("a")],
            id="reasoning before a user",
        ),
        pytest.param([thought("Hm")], [said("", reasoning_content="Hm")], id="reasoning alone"),
        pytest.param(
            [
                {"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": 'ls "a"'},
                {"type": "custom_tool_call_output", "call_id": "c1", "output": "b"},
            ],
            [said(None, tool_calls=[call("c1", "sh", '{"input":"ls \\"a\\""}')]), tool("c1", "b")],
            id="a custom tool",
        ),
        pytest.param(
            [fc("c1"), fco("c1", "b", reasoning_content="Hm")],
            [said(None, tool_calls=[call("c1")]), tool("c1", "b", reasoning_content="Hm")],
            id="a result with a field of replies",
        ),
    ],
)
def test_items_become_messages(items: Any, messages: list[dict[str, Any]]) -> None:
    made = messages_from_input(items)
    assert made == messages
    for message in made:
        new_message(message)


@pytest.mark.parametrize(
    ("items", "param", "words"),
    [
        (None, "input", "text or a list"),
        ({"role": "user"}, "input", "not an object"),
        ([7], "input[0]", "an object, not a number"),
        ([user("a"), user(7)], "input[1].content", "text or a list of parts, not a number"),
        ([{"role": "user"}], "input[0].content", "not null"),
        ([{"content": "a"}], "input[0].role", "text, not null"),
        ([{"role": "tool", "content": "a"}], "input[0].role", "one of user"),
        ([user(["a"])], "input[0].content[0]", "an object, not text"),
        ([user([{"text": "a"}])], "input[0].content[0].type", "not null"),
        ([user([{"type": "video"}])], "input[0].content[0].type", "video"),
        ([user([{"type": "input_text", "text": 1}])], "input[0].content[0].text", "not a number"),
        ([user([{"type": "input_image"}])], "input[0].content[0].image_url", "not null"),
        ([user([{"type": "input_image", "file_id": "f"}])], "input[0].content[0].file_id", "data: URL"),
        ([user([{"type": "input_file", "file_url": "f"}])], "input[0].content[0].file_url", "file_data"),
        ([user([{"type": "input_file"}])], "input[0].content[0]", "file_data or a file_id"),
        ([user([{"type": "refusal", "refusal": "no"}])], "input[0].content[0].type", "refusal"),
        ([said([IMAGE])], "input[0].content[0].type", "input_image"),
        ([user("a\x00b")], "input[0].content", "NUL"),
        ([user("\ud800")], "input[0].content", "surrogate"),
        ([said("a", tool_calls=[])], "input[0].tool_calls", "items of their own"),
        ([said("a", refusal=[])], "input[0].refusal", "not a list"),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input[0].call_id", "not null"),
        ([fc("")], "input[0].call_id", "empty"),
        ([fc("c", arguments={})], "input[0].arguments", "text, not an object"),  # type: ignore[arg-type]
        ([fc("c"), fc("c")], "input[1].call_id", "another call"),
        ([fco("c", 7)], "input[0].output", "not a number"),
        ([fco("c", None)], "input[0].output", "not null"),
        ([{"type": "reasoning", "content": "x"}], "input[0].content", "a list, not text"),
        ([{"type": "reasoning", "content": [{}]}], "input[0].content[0].text", "not null"),
        ([{"type": "web_search_call", "id": "ws_1"}], "input[0].type", "'web_search_call'"),
        ([{"type": "mcp_call"}], "input[0].type", "'mcp_call'"),
        ([{"type": 7}], "input[0].type", "text, not a number"),
        ([{"type": "item_reference"}], "input[0].id", "not null"),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0].id", "does not exist"),
        ([{"id": "msg_1"}], "input[0].id", "does not exist"),
    ],
)
def test_what_is_malformed_is_refused_by_its_place(items: Any, param: str, words: str) -> None:
    with pytest.raises(BadParameter) as refused:
        messages_from_input(items)
    assert refused.value.param == param
    assert str(refused.value).startswith(param)
    assert words in str(refused.value)


def test_the_parameter_of_another_route_is_named() -> None:
    with pytest.raises(BadParameter) as refused:
        messages_from_input([7], param="items")
    assert refused.value.param == "items[0]"


def test_references_are_looked_up() -> None:
    reply = said("It is 3.", tool_calls=[call("c1")])
    known = {item["id"]: item for item in items_of(stored(reply))}
    items = [user("a"), *({"type": "item_reference", "id": name} for name in known), {"id": ID}]
    assert referenced_ids(items) == [ID, f"{FC}_0", ID]
    assert referenced_ids("text") == referenced_ids([7, {"type": "item_reference", "id": 7}]) == []
    assert messages_from_input(items, resolve=known.get) == [user("a"), reply, said("It is 3.")]


# --- and back ------------------------------------------------------------------------------------------


def message_item(role: str, *content: Any, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": ID, "type": "message", "status": status, "role": role, "content": list(content), **more}


REASONING = {
    "id": "rs_0123456789abcdef0123456789abcdef_7",
    "type": "reasoning",
    "status": "completed",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm"}],
}


@pytest.mark.parametrize(
    ("message", "items"),
    [
        pytest.param(user("a"), [message_item("user", {"type": "input_text", "text": "a"})], id="user"),
        pytest.param(
            {"role": "developer", "content": "a"},
            [message_item("developer", {"type": "input_text", "text": "a"})],
            id="developer",
        ),
        pytest.param(
            user([{"type": "text", "text": "a"}, CHAT_IMAGE, CHAT_FILE]),
            [message_item("user", {"type": "input_text", "text": "a"}, IMAGE, FILE)],
            id="parts",
        ),
        pytest.param(
            user([{"type": "image_url", "image_url": {"url": "u"}}]),
            [message_item("user", {"type": "input_image", "image_url": "u", "detail": "auto"})],
            id="an image without detail",
        ),
        pytest.param(said("a"), [message_item("assistant", out("a"))], id="assistant"),
        pytest.param(said(""), [message_item("assistant", out(""))], id="nothing said"),
        pytest.param(said(None), [message_item("assistant", out(""))], id="nothing at all"),
        pytest.param(
            said(None, refusal="no"),
            [message_item("assistant", {"type": "refusal", "refusal": "no"})],
            id="refusal",
        ),
        pytest.param(
            said("a", name="ada", audio=None),
            [message_item("assistant", out("a"), name="ada")],
            id="more fields",
        ),
        pytest.param(
            said("a", reasoning_content="Hm", reasoning="Hm"),
            [REASONING, message_item("assistant", out("a"))],
            id="reasoning, sent twice",
        ),
        pytest.param(said("", reasoning="Hm"), [REASONING], id="reasoning alone"),
        pytest.param(
            said(
                [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
                    {"type": "text", "text": "a"},
                ]
            ),
            [REASONING, message_item("assistant", out("a"))],
            id="reasoning as a part",
        ),
        pytest.param(
            said("a", tool_calls=[call("c1"), call("c2", "sub", '{"a":1}')]),
            [
                message_item("assistant", out("a")),
                {"id": f"{FC}_0", "status": "completed", **fc("c1")},
                {"id": f"{FC}_1", "status": "completed", **fc("c2", "sub", '{"a":1}')},
            ],
            id="text and calls",
        ),
        pytest.param(
            said("", tool_calls=[call("c1")]),
            [{"id": f"{FC}_0", "status": "completed", **fc("c1")}],
            id="a call alone",
        ),
        pytest.param(
            said(None, tool_calls=[{"id": "c1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]),
            [
                {
                    "type": "custom_tool_call",
                    "id": f"{FC}_0",
                    "status": "completed",
                    "call_id": "c1",
                    "name": "sh",
                    "input": "ls",
                }
            ],
            id="a custom call of chat's own",
        ),
        pytest.param(
            said(None, function_call={"name": "f", "arguments": "{}"}),
            [{"id": f"{FC}_0", "status": "completed", **fc(f"{FC}_0", "f")}],
            id="the old function_call",
        ),
        pytest.param(
            tool("c1", "3"),
            [{"id": "fco_0123456789abcdef0123456789abcdef_7", "status": "completed", **fco("c1", "3")}],
            id="a result",
        ),
        pytest.param(
            tool("c1", [{"type": "text", "text": "3"}, CHAT_IMAGE]),
            [
                {
                    "id": "fco_0123456789abcdef0123456789abcdef_7",
                    "status": "completed",
                    **fco("c1", [{"type": "input_text", "text": "3"}, IMAGE]),
                }
            ],
            id="a result in parts",
        ),
        pytest.param(
            said(
                "see x",
                annotations=[
                    {
                        "type": "url_citation",
                        "url_citation": {"url": "u", "title": "t", "start_index": 0, "end_index": 3},
                    }
                ],
            ),
            [
                message_item(
                    "assistant",
                    out("see x")
                    | {
                        "annotations": [
                            {
                                "type": "url_citation",
                                "url": "u",
                                "title": "t",
                                "start_index": 0,
                                "end_index": 3,
                            }
                        ]
                    },
                )
            ],
            id="annotations",
        ),
    ],
)
def test_a_message_becomes_items(message: dict[str, Any], items: list[dict[str, Any]]) -> None:
    made = items_of(stored(message))
    assert made == items
    for item in made:
        IN_CONVERSATION.validate_python(item)
        IN_INPUT.validate_python(item)
        if message["role"] in ("assistant", "tool"):
            IN_OUTPUT.validate_python(item)
        assert parse_item_id(item["id"]) is not None


def test_calls_of_custom_tools_are_shown_as_such() -> None:
    message = stored(
        said(None, tool_calls=[call("c1", "sh", '{"input":"ls"}'), call("c2", "sh", "ls"), call("c3")])
    )
    items = items_of(message, custom_tools={"sh"})
    assert [item["type"] for item in items] == ["custom_tool_call", "custom_tool_call", "function_call"]
    assert [item.get("input") for item in items] == ["ls", "ls", None]
    for item in items:
        IN_OUTPUT.validate_python(item)


def test_the_last_item_of_an_interrupted_reply_is_incomplete() -> None:
    message = stored(said("a", reasoning_content="Hm"), status=MessageStatus.INTERRUPTED)
    assert [item["status"] for item in items_of(message)] == ["completed", "incomplete"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (ID, ItemName(ID, ItemPart.TEXT)),
        (ID.replace("msg", "rs"), ItemName(ID, ItemPart.REASONING)),
        (f"{FC}_12", ItemName(ID, ItemPart.CALL, 12)),
        (ID.replace("msg", "fco"), ItemName(ID, ItemPart.RESULT)),
        (FC, None),  # a call without its number: its message's is taken for it, and then one is missing
        (f"{FC}_", None),
        (f"{FC}_01", None),
        (f"{FC}_²", None),
        (f"{ID}0x", None),
        (ID.replace("_7", "_07"), None),
        (ID.replace("_7", "_" + "9" * 30), None),
        ("msg_", None),
        ("", None),
        ("resp_1_2", None),
    ],
)
def test_an_id_says_its_message_and_part(name: str, found: ItemName | None) -> None:
    assert parse_item_id(name) == found
    if found is not None:
        assert item_id(found.message_id, found.part, found.index or 0) == name


@pytest.mark.parametrize(
    ("message", "name", "left"),
    [
        (user("a"), ItemName(ID, ItemPart.TEXT), None),
        (said("a"), ItemName(ID, ItemPart.TEXT), None),
        (tool("c", "a"), ItemName(ID, ItemPart.RESULT), None),
        (said("a", reasoning="Hm"), ItemName(ID, ItemPart.TEXT), said(None, reasoning="Hm")),
        (said("a", reasoning="Hm"), ItemName(ID, ItemPart.REASONING), said("a")),
        (said("", reasoning="Hm"), ItemName(ID, ItemPart.REASONING), None),
        (
            said([{"type": "thinking", "thinking": "Hm"}, "a"]),
            ItemName(ID, ItemPart.REASONING),
            said(["a"]),
        ),
        (said("a", tool_calls=[call("1")]), ItemName(ID, ItemPart.CALL, 0), said("a")),
        (said(None, tool_calls=[call("1")]), ItemName(ID, ItemPart.CALL, 0), None),
        (
            said(None, tool_calls=[call("1"), call("2")]),
            ItemName(ID, ItemPart.CALL, 1),
            said(None, tool_calls=[call("1")]),
        ),
        (
            said("a", refusal="no", tool_calls=[call("1")]),
            ItemName(ID, ItemPart.TEXT),
            said(None, tool_calls=[call("1")]),
        ),
    ],
)
def test_one_item_can_be_taken_out(
    message: dict[str, Any], name: ItemName, left: dict[str, Any] | None
) -> None:
    before = items_from(message, ID)
    assert without_item(message, name) == left
    after = items_from(left, ID) if left else []
    gone = item_id(ID, name.part, name.index or 0)
    assert [item["id"] for item in after] == [item["id"] for item in before if item["id"] != gone]


def test_lists_have_openais_shape() -> None:
    items = items_of(stored(said("a", tool_calls=[call("c1")])))
    for page in (listed(items, has_more=True), listed([])):
        ConversationItemList.model_validate(page)
        ResponseItemList.model_validate(page)
    assert listed(items)["first_id"] == ID
    assert listed(items)["last_id"] == f"{FC}_0"


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_pages_go_on_within_a_message(limit: int, descending: bool) -> None:
    messages = [
        stored(user("a"), 1),
        stored(said("b", tool_calls=[call("c1"), call("c2")]), 2),
        stored(tool("c1", "3"), 3),
        stored(tool("c2", "4"), 4),
    ]
    whole = [item["id"] for message in messages for item in items_of(message)]
    if descending:
        messages.reverse()
        whole.reverse()
    seen: list[str] = []
    after = None
    for _ in range(len(whole) + 1):
        rest = messages
        if after:
            named = parse_item_id(after)
            assert named is not None
            rest = messages[[message.id for message in messages].index(named.message_id) :]
        page = item_page(rest, limit=limit, after=after, descending=descending)
        seen += [item["id"] for item in page["data"]]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert seen == whole


def test_calls_keep_their_ids_when_others_go() -> None:
    whole = said(None, tool_calls=[call("1"), call("2"), call("3")])
    left = without_item(whole, ItemName(ID, ItemPart.CALL, 0))
    assert left is not None
    items = items_from(left, ID, gaps=(0,))
    assert [(item["id"], item["call_id"]) for item in items] == [(f"{FC}_1", "2"), (f"{FC}_2", "3")]
    assert without_item(left, ItemName(ID, ItemPart.CALL, 2), (0,)) == said(None, tool_calls=[call("2")])
    assert without_item(left, ItemName(ID, ItemPart.CALL, 1), (0,)) == said(None, tool_calls=[call("3")])


@pytest.mark.parametrize(
    ("after", "descending", "shown"),
    [
        (f"{FC}_1", False, [f"{FC}_2"]),
        (f"{FC}_1", True, [f"{FC}_0", ID]),
        (ID.replace("msg", "rs"), False, [ID, f"{FC}_0", f"{FC}_2"]),
        (ID.replace("msg", "rs"), True, []),
    ],
)
def test_a_page_goes_on_behind_an_item_that_is_gone(after: str, descending: bool, shown: list[str]) -> None:
    message = replace(stored(said("a", tool_calls=[call("1"), call("3")])), gaps=(1,))
    page = item_page([message], limit=10, after=after, descending=descending)
    assert [item["id"] for item in page["data"]] == shown


def test_a_page_knows_of_messages_beyond_it() -> None:
    assert item_page([stored(user("a"))], limit=1, more=True)["has_more"]
    assert not item_page([stored(user("a"))], limit=1)["has_more"]


# --- round trips ---------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
more_words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=20
)
input_texts = st.builds(lambda text: {"type": "input_text", "text": text}, words)
images = st.builds(
    lambda url, detail: {"type": "input_image", "image_url": url, "detail": detail},
    more_words,
    st.sampled_from(["low", "high", "auto"]),
)
files = st.builds(lambda data: {"type": "input_file", "file_data": data}, more_words)
users = st.builds(
    lambda role, parts: {"type": "message", "role": role, "content": parts},
    st.sampled_from(["user", "system", "developer"]),
    st.lists(input_texts | images | files, min_size=1, max_size=4),
)
results = st.builds(fco, more_words, words | st.lists(input_texts | images, min_size=2, max_size=4))


@st.composite
def replies(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The items of one reply of a model, whole."""
    items: list[dict[str, Any]] = []
    if draw(st.booleans()):
        items.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text"}]})
        items[-1]["content"][0]["text"] = draw(more_words)
    texts = draw(st.lists(more_words.map(out), max_size=2))
    refusals = draw(
        st.lists(st.builds(lambda said: {"type": "refusal", "refusal": said}, more_words), max_size=1)
    )
    if texts or refusals:
        items.append({"type": "message", "role": "assistant", "content": [*texts, *refusals]})
    calls = draw(st.lists(more_words, max_size=3, unique=True))
    items.extend(fc(call_id, draw(more_words), draw(words)) for call_id in calls)
    return items


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Items that no two replies stand next to each other in: those would become one."""
    items: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 4))):
        items += draw(st.lists(users | results, min_size=1, max_size=3))
        items += draw(replies())
    return items


@given(histories())
def test_items_come_back_as_they_were(items: list[dict[str, Any]]) -> None:
    messages = messages_from_input(items)
    back = [item for at, one in enumerate(messages, 1) for item in items_of(stored(one, at))]
    for item in back:
        IN_CONVERSATION.validate_python(item)
    bare = [{name: value for name, value in item.items() if name not in ("id", "status")} for item in back]
    assert bare == items
    assert messages_from_input(back) == messages


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
known_fields = st.sampled_from(
    [
        *(
            "type",
            "role",
            "content",
            "text",
            "call_id",
            "name",
            "arguments",
            "output",
            "id",
            "summary",
            "input",
        ),
        *(
            "image_url",
            "file_data",
            "refusal",
            "reasoning_content",
            "tool_calls",
            "status",
            "annotations",
            "phase",
        ),
    ]
)
known_words = st.sampled_from(
    [
        *(
            "message",
            "reasoning",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "item_reference",
        ),
        *(
            "custom_tool_call_output",
            "user",
            "assistant",
            "input_text",
            "output_text",
            "input_image",
            "input_file",
        ),
        *("refusal", "input_audio", "text", "developer", "c1"),
    ]
)
nearly: st.SearchStrategy[Any] = st.recursive(
    known_words | json_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(known_fields, inner, max_size=6),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(known_fields, nearly, max_size=6), max_size=4) | nearly)
@example([fc("c1"), {"role": "assistant", "content": "x", "reasoning_content": "y"}, thought("z"), fc("c2")])
@example([{"role": "assistant", "content": [{"type": "input_text", "text": "", "annotations": {}}]}])
@example([fc("c1"), fco("c1", "b", reasoning_content=5)])
def test_rubbish_is_refused_or_can_be_stored_and_shown(items: Any) -> None:
    try:
        messages = [new_message(message) for message in messages_from_input(items)]
    except BadInput:
        return
    for at, message in enumerate(messages, 1):
        now = datetime(2026, 1, 1, tzinfo=UTC)
        kept = Message(
            CONVERSATION, at, "sess_1", None, message.role, MessageStatus.COMPLETED, now, message.body
        )
        assert items_of(kept)


@given(
    st.dictionaries(st.sampled_from(["content", "tool_calls", "reasoning", "refusal", "annotations"]), nearly)
)
def test_whatever_was_stored_can_be_shown(fields: dict[str, Any]) -> None:
    for role in ("user", "assistant", "tool"):
        try:
            message = stored({"role": role, "tool_call_id": "c1", **fields})
        except BadInput:
            continue
        items = items_of(message)
        assert items
        for at, item in enumerate(items if role == "assistant" else ()):
            whole_item(item, at)
        ids = [item["id"] for item in items]
        assert len(set(ids)) == len(ids)
        for name in ids:
            parsed = parse_item_id(name)
            assert parsed is not None
            without_item(message.content(), parsed)
