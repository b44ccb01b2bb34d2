"""The dashboard's small parts: texts, names, charts, the picture of a line; its paths are documented."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.dashboard.charts import BAD, GOOD, MOST_DRAWN, MOST_SHOWN, chart_of, duration, picture_of
from holdfast.dashboard.demo import PAGES as DEMO_PAGES
from holdfast.dashboard.pages import (
    KINDS,
    POLICY,
    Piece,
    compact,
    content,
    in_words,
    own_page,
    pieces,
    plain,
    pretty,
    short,
)
from holdfast.dashboard.request import cookie_for, cookie_in, cookie_name
from holdfast.dashboard.routes import PAGES
from holdfast.dashboard.sessions import marked, whole_words
from holdfast.domain.sessions import Edge, Session, SessionState
from holdfast.domain.turns import TurnStatus
from holdfast.domain.views import Range, Summary, View
from holdfast.server.gate import Headers

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DOCS = Path(__file__).parents[3] / "docs"
PACKAGE = Path(__file__).parents[3] / "src" / "holdfast" / "dashboard"


# --- texts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("plain", [Piece("plain")]),
        ("a\n\n  b", [Piece("a\n\n  b")]),
        ("a\n```py\nx = 1\n```\nb", [Piece("a"), Piece("x = 1", code=True, language="py"), Piece("b")]),
        ("```\n~~~\n```", [Piece("~~~", code=True)]),
        ("~~~\n```\n~~~", [Piece("```", code=True)]),
        ("never closed\n```\nrest", [Piece("never closed"), Piece("rest", code=True)]),
        ("inline ``` stays", [Piece("inline ``` stays")]),
    ],
)
def test_fenced_code_is_told_apart_and_nothing_is_lost(text: str, found: list[Piece]) -> None:
    assert list(pieces(text)) == found


def test_ids_are_cut_to_what_tells_them_apart() -> None:
    assert short("sess_0123456789abcdef") == "sess_01234567"
    assert short("plain") == "plain"
    assert short(None) == ""


def test_arguments_are_shown_line_by_line_if_they_are_json() -> None:
    assert pretty('{"a":1}') == '{\n  "a": 1\n}'
    assert pretty("not json") == "not json"
    assert pretty('{"a": ') == '{"a": '
    assert pretty({"a": "ü"}) == '{\n  "a": "ü"\n}'


@pytest.mark.parametrize("depth", [30, 500, 5_000, 200_000])
def test_arguments_that_are_nested_too_deeply_are_shown_as_they_are(depth: int) -> None:
    arguments = "[" * depth + "]" * depth
    assert pretty(arguments) == arguments


def test_times_are_told_either_way() -> None:
    assert in_words(NOW + timedelta(minutes=5), NOW) == "in 5 min"
    assert in_words(NOW - timedelta(hours=2), NOW) == "2 h ago"


@pytest.mark.parametrize("path", ["//x", "/\\x", "https://x", "", "x", "/a\nb", "/ü", "javascript:x"])
def test_only_a_path_of_our_own_is_followed(path: str) -> None:
    assert own_page(path) == "/"
    assert own_page("/sessions?q=1") == "/sessions?q=1"


@pytest.mark.parametrize(
    ("words", "hits"),
    [
        ("tide", ["tide", "Tide"]),
        ('"high tide"', ["high", "tide", "Tide"]),
        ("ide", []),
        ("", []),
        ("(.*", []),
        ("tid tides", ["tides", "Tid"]),
    ],
)
def test_hits_are_marked_from_the_beginning_of_a_word(words: str, hits: list[str]) -> None:
    text = "high tides: Tide <b>" if "tides" not in words else "high tides: Tid <b>"
    parts = marked(text, words)
    assert [part for part, hit in parts if hit] == hits
    assert "".join(part for part, _ in parts) == text


# --- cookies ---------------------------------------------------------------------------------------------


def test_each_port_has_a_cookie_of_its_own() -> None:
    assert cookie_name("127.0.0.1:8377") == "holdfast_8377"
    assert cookie_name("[::1]:80") == "holdfast_80"
    assert cookie_name("[::1]") == cookie_name("holdfast.example") == "holdfast"
    headers = Headers([(b"host", b"localhost:1"), (b"cookie", b"holdfast_2=b; holdfast_1=a")])
    assert cookie_in(headers) == "a"
    assert cookie_for(headers, "a", 5) == "holdfast_1=a; Path=/; Max-Age=5; HttpOnly; SameSite=Strict"
    odd = b'other={"x": [1]}; \x80"; = ;; bad name=1; holdfast_1=a; last'
    assert cookie_in(Headers([(b"host", b"localhost:1"), (b"cookie", odd)])) == "a"
    assert cookie_in(Headers([(b"host", b"localhost:1")])) == ""


# --- charts ----------------------------------------------------------------------------------------------


def test_bars_grow_with_the_turns_and_stay_inside() -> None:
    done, failed = TurnStatus.COMPLETED, TurnStatus.FAILED
    ended = [{}, {done: 2}, {done: 5, failed: 5}, {failed: 1}]
    chart = chart_of(ended, NOW, timedelta(minutes=1), width=100, height=50)
    assert (chart.highest, chart.total) == (10, 13)
    bars = [bar for column in chart.columns for bar in column.bars]
    assert [bar.kind for bar in bars] == [GOOD, GOOD, BAD, BAD]
    assert all(
        0 <= bar.x <= bar.x + bar.width <= 100 and 0 <= bar.y <= bar.y + bar.height <= 50.01 for bar in bars
    )
    assert chart.columns[2].title.endswith(": 5 completed, 5 failed")
    assert chart.columns[0].title.endswith(": no turns")
    empty = chart_of([{}] * 60, NOW, timedelta(minutes=1))
    assert (sum(len(column.bars) for column in empty.columns), empty.highest) == (0, 0)


def test_the_time_axis_has_times_or_days_and_ends_now() -> None:
    hour = chart_of([{}] * 60, NOW, timedelta(minutes=1)).marks
    assert hour == (
        f"{NOW:%H:%M}",
        *(f"{NOW + timedelta(minutes=each):%H:%M}" for each in (15, 30, 45)),
        "now",
    )
    week = chart_of([{}] * 56, NOW, timedelta(hours=3)).marks
    assert week[0] == f"{NOW:%a %d %b}" and week[-1] == "now"


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (None, "—"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_900, "59.9 s"),
        (65_000, "1 min 5 s"),
        (11_400_000, "3 h 10 min"),
    ],
)
def test_a_duration_is_short(milliseconds: float | None, shown: str) -> None:
    assert duration(milliseconds) == shown


def test_numbers_are_short_and_without_empty_fractions() -> None:
    assert [compact(each) for each in (0, 9_999, 12_400, 3_100_000, 2_000_000_000)] == [
        "0",
        "9,999",
        "12.4k",
        "3.1M",
        "2.0G",
    ]
    assert (plain(240.0), plain(1.5), plain("idle"), plain(True)) == (240, 1.5, "idle", True)


# --- the picture of a line -------------------------------------------------------------------------------


def a_session(number: int, edge: Edge | None = None, parent: int | None = None) -> Session:
    return Session(
        id=f"sess_{number}",
        conversation_id="conv_1",
        owner="ada",
        key=None,
        title=None,
        source="cli",
        attached=False,
        node_id=None,
        edge=edge,
        parent_id=None if parent is None else f"sess_{parent}",
        tip_id="sess_9",
        ordinal=number,
        opened_at=NOW,
        last_activity_at=NOW,
        next_due_at=None,
        ended_at=None,
        end_reason=None,
        model=None,
        view=View((Range(1),)),
        first_seq=1,
        last_seq=2,
        running_turn=None,
        running_node=None,
    )


def drawn(line: list[Session], forks: list[Session], here: str = "sess_1") -> tuple[list[str], list[str]]:
    states = {each.id: SessionState.IDLE for each in (*line, *forks)}
    picture = picture_of(line, forks, states, here)
    heights = [knot.y for knot in picture.knots]
    assert heights == sorted(set(heights)) and (not heights or heights[-1] < picture.height)
    return [knot.session.id for knot in picture.knots], [kind for kind, _ in picture.strands]


def test_a_line_is_drawn_with_its_edges_and_forks() -> None:
    summary = replace(a_session(2, Edge.COMPACTION, 1), view=View((Summary("short", 1, 4), Range(5))))
    line = [a_session(1), summary, a_session(3, Edge.RESUME, 1)]
    fork = a_session(7, Edge.FORK, 1)
    assert drawn(line, [fork]) == (
        ["sess_1", "sess_7", "sess_2", "sess_3"],
        ["fork", "compaction", "resume"],
    )
    states = {each.id: SessionState.IDLE for each in (*line, fork)}
    picture = picture_of(line, [fork], states, "sess_2")
    assert [knot.summary for knot in picture.knots] == ["", "", "short", ""]
    assert [knot.here for knot in picture.knots] == [False, False, True, False]
    assert picture.came_from is None


def test_a_fork_says_where_it_came_from_and_a_long_line_is_cut() -> None:
    states = {f"sess_{number}": SessionState.ENDED for number in range(1000)}
    assert picture_of([a_session(5, Edge.FORK, 1)], [], states, "sess_5").came_from == "sess_1"
    line = [a_session(0), *(a_session(number, Edge.RESET, number - 1) for number in range(1, 100))]
    picture = picture_of(line, [], states, "sess_99")
    assert (len(picture.knots), picture.left_out) == (MOST_SHOWN, 100 - MOST_SHOWN)
    assert len(picture.strands) == MOST_SHOWN - 1  # nothing hangs on what is not drawn
    whole = picture_of(line, [], states, "sess_99", MOST_DRAWN)
    assert (len(whole.knots), whole.left_out) == (100, 0)


# --- what is there ---------------------------------------------------------------------------------------


def test_every_path_is_documented_and_nothing_else() -> None:
    text = (DOCS / "reference" / "pages.md").read_text("utf-8")
    found = set(re.findall(r"^\| `([A-Z]+ /\S*)` \|", text, re.MULTILINE))
    assert found == {f"{page.method} {page.path}" for page in (*PAGES, *DEMO_PAGES)}


def test_templates_hold_no_script_no_style_and_switch_no_escaping_off() -> None:
    templates = list((PACKAGE / "templates").glob("*.html"))
    assert templates
    for path in templates:
        text = path.read_text("utf-8")
        assert not re.search(r"\|\s*safe|autoescape|Markup|<style|\sstyle=|\son\w+=|javascript:", text), (
            path.name
        )
        scripts = re.findall(r"<script[^>]*>", text)
        assert all("src=" in tag for tag in scripts), path.name
        assert not re.search(r"(src|href)=\"(https?:)?//", text), path.name


def test_our_own_files_reach_for_nothing_elsewhere() -> None:
    for name in KINDS:
        text = content(name).decode()
        assert not re.search(
            r"https?://(?!www\.w3\.org)|eval\(|innerHTML|insertAdjacentHTML|document\.write", text
        ), name
    assert "unsafe" not in POLICY and "default-src 'none'" in POLICY


@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        ("the tide is late", "the tide is late"),
        ("…de is late", "… is late"),
        ("the tide is la…", "the tide is …"),
        ("…de is la…", "… is …"),
        ("…seaweed", "…seaweed"),
        ("", ""),
    ],
)
def test_a_snippet_is_cut_between_words(cut: str, whole: str) -> None:
    assert whole_words(cut) == whole
