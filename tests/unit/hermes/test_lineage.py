"""Which of Hermes' sessions are one conversation, and which began as a part of another: a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.domain.sessions import Edge
from holdfast.importers.hermes.lineage import HermesLineage, lineage_of
from holdfast.importers.hermes.reading import HermesSession

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def at(minute: float | None) -> datetime | None:
    return None if minute is None else BEGAN + timedelta(minutes=minute)


def session(
    id_: str, began: float, ended: float | None = None, reason: str | None = None, **fields: Any
) -> HermesSession:
    given: dict[str, Any] = {
        "source": "cli",
        "model": None,
        "title": None,
        "parent": None,
        "input_tokens": 0,
        "output_tokens": 0,
        "key": None,
        "branched": False,
        "delegated": False,
        "counted": 0,
        "said": 0,
        "shown": 0,
        "undone": 0,
        "last_row": 0,
        "last_said_at": None,
    }
    started_at = at(began)
    assert started_at is not None
    return HermesSession(
        **{
            **given,
            "id": id_,
            "started_at": started_at,
            "ended_at": at(ended),
            "end_reason": reason,
            **fields,
        }
    )


def lines(found: HermesLineage) -> list[tuple[list[str], str | None, str | None]]:
    return [([each.id for each in line.sessions], line.edge, line.parent) for line in found.lines]


COMPACTED = session("p", 0, 10, "compression")
OPEN = session("p", 0)


@pytest.mark.parametrize(
    ("parent", "child", "edge"),
    [
        (COMPACTED, session("c", 10, parent="p"), Edge.COMPACTION),
        (COMPACTED, session("c", 99, parent="p"), Edge.COMPACTION),
        (COMPACTED, session("c", 9, parent="p"), Edge.SUBAGENT),
        (COMPACTED, session("c", 11, parent="p", delegated=True), Edge.SUBAGENT),
        (COMPACTED, session("c", 11, parent="p", branched=True), Edge.FORK),
        (COMPACTED, session("c", 11, parent="p", source="tool"), None),
        (session("p", 0, 10, "branched"), session("c", 10, parent="p"), Edge.FORK),
        (session("p", 0, 10, "branched"), session("c", 9, parent="p"), Edge.SUBAGENT),
        (session("p", 0, 10, "tui_shutdown"), session("c", 12, parent="p", branched=True), Edge.FORK),
        (session("p", 0, 10, "cli_close"), session("c", 12, parent="p"), None),
        (session("p", 0, 10, "cli_close"), session("c", 5, parent="p"), Edge.SUBAGENT),
        (OPEN, session("c", 5, parent="p"), Edge.SUBAGENT),
        (OPEN, session("c", 5, parent="p", delegated=True), Edge.SUBAGENT),
        (OPEN, session("c", 5, parent="p", branched=True), Edge.FORK),
    ],
)
def test_what_a_parent_means(parent: HermesSession, child: HermesSession, edge: Edge | None) -> None:
    expected: list[tuple[list[str], str | None, str | None]]
    if edge is Edge.COMPACTION:
        expected = [(["p", "c"], None, None)]
    else:
        expected = [(["p"], None, None), (["c"], edge, "p" if edge else None)]
    assert lines(lineage_of([parent, child])) == expected


def test_a_long_line_is_one_conversation_and_its_parts_lead_to_the_newest() -> None:
    sessions = [
        session(f"s{n}", n, n + 1, "compression", parent=f"s{n - 1}" if n else None) for n in range(500)
    ]
    found = lineage_of(reversed(sessions))
    ((line, edge, parent),) = lines(found)
    assert (line, edge, parent) == ([each.id for each in sessions], None, None)
    assert found.newest("s0") == found.newest("s499") == "s499"


def test_of_several_continuations_hermes_own_choice_goes_on_and_the_others_are_forks() -> None:
    closed = session("closed", 11, 20, "cli_close", parent="p", last_said_at=at(90))
    live = session("live", 12, parent="p", last_said_at=at(50))
    chain = session("chain", 13, 30, "compression", parent="p", last_said_at=at(20))
    assert lines(lineage_of([COMPACTED, closed, live]))[0][0] == ["p", "live"]
    found = lineage_of([COMPACTED, closed, live, chain])
    assert lines(found) == [(["p", "chain"], None, None), (["closed"], "fork", "p"), (["live"], "fork", "p")]
    assert found.several == ("p",)


def test_parents_that_are_not_there_are_told_and_their_children_are_their_own() -> None:
    found = lineage_of([session("c", 0, parent="gone", branched=True)])
    assert (lines(found), found.dangling) == ([(["c"], None, None)], ("c",))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_circle_is_cut_where_it_began(length: int) -> None:
    sessions = [session(f"s{n}", 5, 5, "compression", parent=f"s{(n - 1) % length}") for n in range(length)]
    tail = session("tail", 6, parent=f"s{length - 1}")
    found = lineage_of([*sessions, tail])
    assert found.cycles == ("s0",)
    assert lines(found) == [([*(f"s{n}" for n in range(length)), "tail"], None, None)]


def test_what_a_line_began_from_comes_before_it() -> None:
    leaf = session("leaf", 3, parent="branch", delegated=True)
    branch = session("branch", 2, parent="root", branched=True)
    order = [line[0][0] for line in lines(lineage_of([leaf, branch, session("root", 1)]))]
    assert order == ["root", "branch", "leaf"]
