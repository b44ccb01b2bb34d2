"""`holdfast import codex` and `import claude-code`: transcripts as the programs write them, into a store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.messages import Message
from holdfast.domain.pages import SessionFilter
from holdfast.domain.sessions import Edge
from holdfast.errors import BadInput
from holdfast.importers.claude_code import reading as claude_code
from holdfast.importers.codex import reading as codex
from holdfast.importers.transcripts import TranscriptImporter, overview, read_all
from holdfast.importers.writing import Taken
from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store
from tests.contract.steps import new_node, say

OWNER = "ada"
SESSION = "c82f9413-45e8-41c8-908d-adaded350ba0"
THREAD = "0199d1c4-0000-7000-8000-000000000001"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_store(tmp_path / "store.db")
    yield opened
    assert await opened.check() == []
    await opened.close()


async def take(store: Store, reading: Any, path: Path) -> Taken:
    paths = reading.paths_in(path)
    importer = TranscriptImporter(store, OWNER, reading.ORIGIN, len(paths))
    return await importer.run(reading.read(each) for each in paths)


async def messages(store: Store, name: str) -> list[Message]:
    found = await store.resolve(OWNER, Address(id=name))
    return list((await store.messages(OWNER, found.conversation.id)).items)


async def said(store: Store, name: str) -> list[tuple[str, Any]]:
    return [(message.role, message.content()["content"]) for message in await messages(store, name)]


async def context(store: Store, name: str) -> list[Any]:
    found = await store.resolve(OWNER, Address(id=name))
    return [each["content"] for each in (await store.context(OWNER, found.tip.id)).messages()]


def write(path: Path, *lines: Any, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines) + end)
    return path


# --- Claude Code -----------------------------------------------------------------------------------------


def line(number: int, kind: str, content: Any, parent: int | None = None, **fields: Any) -> dict[str, Any]:
    """A line of a transcript; its parent is the line before unless another is named."""
    above = number - 1 if parent is None else parent
    message = {"role": kind, "content": content}
    if kind == "assistant":
        usage = {"input_tokens": 10, "output_tokens": 2}
        message |= {"id": f"msg_{fields.pop('id', number)}", "model": "claude-x", "usage": usage}
    return {
        "type": kind,
        "uuid": f"u{number}",
        "parentUuid": f"u{above}" if above else None,
        "isSidechain": False,
        "sessionId": SESSION,
        "timestamp": f"2026-11-17T01:11:{number:02}.000Z",
        "message": message,
        **fields,
    }


USE = {"type": "tool_use", "id": "call_1", "name": "Bash", "input": {"command": "ls"}}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "a.txt"}]}
CLAUDE = (
    {"type": "queue-operation", "operation": "enqueue", "sessionId": SESSION},
    line(1, "user", "run it"),
    {"type": "attachment", "uuid": "u2", "parentUuid": "u1", "sessionId": SESSION, "attachment": {}},
    line(3, "assistant", [{"type": "thinking", "thinking": "Hm.", "signature": "s"}], id=3),
    line(4, "assistant", [{"type": "text", "text": "I run it."}], id=3),
    line(5, "assistant", [USE], id=3),
    line(6, "user", [RESULT]),
    line(7, "user", "caveat", isMeta=True),
    line(8, "assistant", [{"type": "text", "text": "There is a.txt."}]),
    {"type": "summary", "summary": "Listing files", "leafUuid": "u8"},
)


def project(home: Path) -> Path:
    return home / "projects" / "-home-ada-x" / f"{SESSION}.jsonl"


async def test_a_session_of_claude_code_becomes_a_conversation(store: Store, tmp_path: Path) -> None:
    path = write(project(tmp_path / "claude"), *CLAUDE)
    before = path.read_bytes()
    found = overview("claude-code", [claude_code.read(each) for each in claude_code.paths_in(tmp_path)])
    assert (found.conversations, found.messages, found.models) == (1, 4, {"claude-x": 1})
    taken = await take(store, claude_code, tmp_path / "claude")
    assert (taken.conversations, taken.messages, taken.names, taken.problems) == (1, 4, 1, [])
    stored = await messages(store, SESSION)
    assert await said(store, SESSION) == [
        ("user", "run it"),
        ("assistant", "I run it."),
        ("tool", "a.txt"),
        ("assistant", "There is a.txt."),
    ]
    assert stored[1].content()["tool_calls"][0]["function"] == {
        "name": "Bash",
        "arguments": '{"command":"ls"}',
    }
    assert stored[1].content()["reasoning_content"] == "Hm."
    tip = (await store.resolve(OWNER, Address(id=SESSION))).tip
    assert (tip.title, tip.source, tip.model, tip.end_reason) == (
        "Listing files",
        "claude-code",
        "claude-x",
        "closed",
    )
    assert (tip.input_tokens, tip.output_tokens) == (20, 4)
    assert path.read_bytes() == before


async def test_an_import_repeated_adds_only_what_is_new(store: Store, tmp_path: Path) -> None:
    path = write(project(tmp_path), *CLAUDE)
    await take(store, claude_code, tmp_path)
    again = await take(store, claude_code, tmp_path)
    assert (again.unchanged, again.anything) == (1, False)
    write(path, *CLAUDE, line(11, "user", "more", 8), line(12, "assistant", "Done."))
    grown = await take(store, claude_code, tmp_path)
    assert (grown.grown, grown.messages, grown.edges) == (1, 2, {"resume": 1})
    assert (await context(store, SESSION))[-2:] == ["more", "Done."]
    assert len(await context(store, SESSION)) == 6


async def test_a_conversation_that_went_on_here_is_left_alone(store: Store, tmp_path: Path) -> None:
    path = write(project(tmp_path), *CLAUDE)
    await take(store, claude_code, tmp_path)
    await say(store, await new_node(store), "here", id=SESSION, owner=OWNER)
    assert (await context(store, SESSION))[:4] == ["run it", "I run it.", "a.txt", "There is a.txt."]
    write(path, *CLAUDE, line(11, "user", "there", 8))
    taken = await take(store, claude_code, tmp_path)
    assert taken.gone_on == [SESSION]
    assert "there" not in [text for _, text in await said(store, SESSION)]


async def test_an_abandoned_branch_is_left_out(store: Store, tmp_path: Path) -> None:
    rewound = line(11, "user", "instead", 8)
    write(project(tmp_path), *CLAUDE, line(9, "user", "no"), line(10, "assistant", "No?"), rewound)
    (transcript,) = [claude_code.read(each) for each in claude_code.paths_in(tmp_path)]
    assert transcript.left_out == 2
    await take(store, claude_code, tmp_path)
    assert [text for _, text in await said(store, SESSION)][-1] == "instead"


async def test_its_own_compaction_begins_a_session_with_a_new_context(store: Store, tmp_path: Path) -> None:
    summary = line(11, "user", "Summary: files were listed.", 8, isCompactSummary=True)
    write(project(tmp_path), *CLAUDE, summary, line(12, "assistant", "I go on."))
    taken = await take(store, claude_code, tmp_path)
    assert taken.edges == {"compaction": 1}
    assert await context(store, SESSION) == ["Summary: files were listed.", "I go on."]
    assert len(await said(store, SESSION)) == 6


async def test_a_sub_agent_is_a_conversation_of_its_own(store: Store, tmp_path: Path) -> None:
    write(project(tmp_path), *CLAUDE)
    side: dict[str, Any] = {"isSidechain": True, "agentId": "a1"}
    write(
        project(tmp_path).parent / SESSION / "subagents" / "agent-a1.jsonl",
        line(1, "user", "help", **side),
        line(2, "assistant", "Helped.", **side),
    )
    taken = await take(store, claude_code, tmp_path)
    assert (taken.conversations, taken.edges) == (2, {"subagent": 1})
    child, parent = [await store.resolve(OWNER, Address(id=name)) for name in (f"{SESSION}:a1", SESSION)]
    assert (child.tip.edge, child.tip.parent_id) == (Edge.SUBAGENT, parent.tip.id)


async def test_lines_that_cannot_be_read_are_counted(store: Store, tmp_path: Path) -> None:
    write(project(tmp_path), "{broken", *CLAUDE, '{"type": "user", "mess', end="")
    taken = await take(store, claude_code, tmp_path)
    assert taken.messages == 4
    assert "1 lines could not be read" in taken.problems[0]
    with pytest.raises(BadInput):
        claude_code.paths_in(tmp_path / "nothing")


async def test_a_gigantic_line_is_skipped_and_what_follows_is_read(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.importers.transcripts.LONGEST_LINE", 1000)
    write(
        project(tmp_path / "claude"),
        line(1, "user", "one"),
        line(2, "assistant", "x" * 2500, parent=1),
        line(3, "user", "three", parent=1),
        json.dumps(line(4, "user", "y" * 1500)),
        end="",
    )
    taken = await take(store, claude_code, tmp_path / "claude")
    assert await said(store, SESSION) == [("user", "one"), ("user", "three")]
    assert ["1 lines could not be read" in each for each in taken.problems] == [True]


async def test_a_file_that_cannot_be_read_stops_no_other(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(project(tmp_path / "claude"), *CLAUDE)
    broken = write(path.with_name("00000000.jsonl"), line(1, "user", "lost"))
    opening = Path.open

    def failing(file: Path, *given: Any, **more: Any) -> Any:
        if file == broken:
            raise PermissionError(13, "Permission denied", str(file))
        return opening(file, *given, **more)

    monkeypatch.setattr(Path, "open", failing)
    paths = claude_code.paths_in(tmp_path / "claude")
    importer = TranscriptImporter(store, OWNER, claude_code.ORIGIN, len(paths))
    taken = await importer.run(read_all(paths, claude_code.read))
    assert taken.conversations == 1
    assert taken.problems == [f"{broken} could not be read: Permission denied"]
    assert overview("claude-code", read_all(paths, claude_code.read)).unread_files == 1


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"])
async def test_a_time_that_does_not_exist_in_utc_is_left_out(store: Store, tmp_path: Path, time: str) -> None:
    """Stored, it could not be read back, and would break every list that it is in."""
    write(project(tmp_path / "claude"), line(1, "user", "one"), line(2, "user", "two", timestamp=time))
    write(
        tmp_path / "codex" / "rollout-1.jsonl",
        {"timestamp": time, "type": "session_meta", "payload": {"id": THREAD}},
        {"timestamp": time, "type": "response_item", "payload": {"type": ["message"]}},
        {
            "timestamp": time,
            "type": "response_item",
            "payload": {"type": "message", "role": "user", "content": "hi"},
        },
    )
    await take(store, claude_code, tmp_path / "claude")
    await take(store, codex, tmp_path / "codex")
    assert len((await store.sessions(SessionFilter(OWNER))).items) == 2
    assert len(await messages(store, SESSION)) == 2
    assert len(await messages(store, THREAD)) == 1


async def test_a_name_that_is_taken_stays_where_it_is(store: Store, tmp_path: Path) -> None:
    await say(store, await new_node(store), "mine", id=SESSION, owner=OWNER)
    write(project(tmp_path), *CLAUDE)
    taken = await take(store, claude_code, tmp_path)
    assert (taken.conversations, taken.names) == (1, 0)
    assert "already leads to" in taken.problems[0]
    assert (await said(store, SESSION))[0] == ("user", "mine")


# --- Codex -----------------------------------------------------------------------------------------------


def item(number: int, kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": f"2026-11-17T01:12:{number:02}.000Z", "type": kind, "payload": payload}


def spoken(number: int, role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return item(number, "response_item", type="message", role=role, content=content)


CODEX = (
    item(1, "session_meta", id=THREAD, cwd="/x", originator="codex_exec", cli_version="0.166.0"),
    spoken(2, "developer", "You are Codex."),
    spoken(3, "user", "<environment_context>"),
    item(4, "turn_context", model="gpt-x"),
    spoken(5, "user", "run it"),
    item(6, "event_msg", type="user_message", message="run it"),
    item(
        7, "response_item", type="reasoning", summary=[{"type": "summary_text", "text": "Hm."}], content=None
    ),
    spoken(8, "assistant", "I run it."),
    item(9, "response_item", type="function_call", name="exec", call_id="c1", arguments='{"cmd":"ls"}'),
    item(10, "response_item", type="custom_tool_call", name="apply_patch", call_id="c2", input="*** Begin"),
    item(11, "response_item", type="function_call_output", call_id="c1", output="a.txt"),
    item(
        12,
        "response_item",
        type="custom_tool_call_output",
        call_id="c2",
        output=[{"type": "input_text", "text": "done"}],
    ),
    item(
        13,
        "event_msg",
        type="token_count",
        info={"total_token_usage": {"input_tokens": 30, "output_tokens": 4}},
    ),
    spoken(14, "assistant", "There is a.txt."),
)


def rollout(home: Path, name: str = THREAD, hour: int = 1) -> Path:
    return home / "sessions" / "2026" / "11" / "17" / f"rollout-2026-11-17T0{hour}-12-00-{name}.jsonl"


async def test_a_thread_of_codex_becomes_a_conversation(store: Store, tmp_path: Path) -> None:
    write(rollout(tmp_path), *CODEX)
    taken = await take(store, codex, tmp_path)
    assert (taken.conversations, taken.messages, taken.problems) == (1, 6, [])
    assert await said(store, THREAD) == [
        ("user", "<environment_context>"),
        ("user", "run it"),
        ("assistant", "I run it."),
        ("tool", "a.txt"),
        ("tool", "done"),
        ("assistant", "There is a.txt."),
    ]
    reply = (await messages(store, THREAD))[2].content()
    assert [call["function"]["arguments"] for call in reply["tool_calls"]] == [
        '{"cmd":"ls"}',
        '{"input":"*** Begin"}',
    ]
    assert reply["reasoning_content"] == "Hm."
    tip = (await store.resolve(OWNER, Address(id=THREAD))).tip
    assert (tip.source, tip.model, tip.input_tokens) == ("codex", "gpt-x", 30)
    assert (await take(store, codex, tmp_path)).unchanged == 1


async def test_codexs_compaction_and_sub_agents_keep_their_edges(store: Store, tmp_path: Path) -> None:
    summary = item(15, "compacted", message="Summary: files were listed.")
    write(rollout(tmp_path), *CODEX, summary, spoken(16, "user", "go on"))
    child = {"subagent": {"thread_spawn": {"parent_thread_id": THREAD, "depth": 1}}}
    write(rollout(tmp_path, "child", 2), item(1, "session_meta", id="child", source=child), *CODEX[2:])
    taken = await take(store, codex, tmp_path)
    assert taken.edges == {"compaction": 1, "subagent": 1}
    assert await context(store, THREAD) == ["Summary: files were listed.", "go on"]
