"""What a compaction keeps and what it summarises."""

import re
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.compaction import (
    SHORTEST,
    Entry,
    KeepPolicy,
    NothingToGain,
    Plan,
    SummarySpan,
    allowed,
    left_out,
    pause_after,
    plan,
    shown_entries,
    shrinks,
    summary_in,
    summary_request,
    transcript,
    transcript_within,
)
from holdfast.domain.context_size import Size
from holdfast.domain.views import Range, Summary, View

MUCH = 10**9


def tokens(weight: Size) -> int:
    return weight.bytes // 4 + weight.parts


def said(seq: int, role: str = "user", text: str = "", size: int = 400, **more: object) -> Entry:
    content = text or "x" * size
    return Entry(seq, seq, role, (msgspec.json.encode({"role": role, "content": content}),), **more)  # type: ignore[arg-type]


def talk(first: int, last: int, size: int = 400) -> list[Entry]:
    return [said(seq, "user" if seq % 2 else "assistant", size=size) for seq in range(first, last + 1)]


def summary(text: str, first: int, last: int) -> Entry:
    return Entry(first, last, "user", (text.encode(),), part=1, summary=text)


def planned(entries: list[Entry], first: int = 2, last: int = 4, target: int = MUCH) -> Plan:
    found = plan(
        entries,
        KeepPolicy(first, last),
        tokens,
        target,
        last_seq=entries[-1].last,
        open_part=entries[-1].part,
    )
    assert isinstance(found, Plan)
    return found


def view(found: Plan) -> tuple[object, ...]:
    return found.view([f"S{number}" for number in range(1, len(found.gaps) + 1)]).parts


def test_the_first_and_the_last_stay_and_the_middle_becomes_a_summary() -> None:
    found = planned(talk(1, 20))
    assert view(found) == (Range(1, 2), Summary("S1", 3, 16), Range(17))
    assert found.summarised == 14


def test_what_comes_meanwhile_stands_behind_the_summary_by_itself() -> None:
    parts = planned(talk(1, 20)).view(["S"]).parts
    assert parts[-1] == Range(17, None)


def test_an_earlier_summary_is_summarised_again_with_what_came_after_it() -> None:
    entries = [*talk(1, 2), summary("old", 3, 16), *[said(seq, part=2) for seq in range(17, 31)]]
    found = planned(entries)
    assert view(found) == (Range(1, 2), Summary("S1", 3, 26), Range(27))
    assert found.gaps[0].entries[0].summary == "old"
    assert found.gaps[0].messages == 10


def test_a_summary_that_comes_first_is_not_one_of_the_first_messages() -> None:
    entries = [summary("old", 1, 9), *[said(seq, part=2) for seq in range(10, 30)]]
    assert view(planned(entries)) == (Summary("S1", 1, 25), Range(26))


def test_a_summary_alone_is_not_summarised_again() -> None:
    entries = [*talk(1, 2), summary("old", 3, 16), *[said(seq, part=2) for seq in range(17, 21)]]
    found = plan(entries, KeepPolicy(2, 4), tokens, MUCH, last_seq=20, open_part=2)
    assert isinstance(found, Plan)  # what came after it is
    assert found.gaps[0].messages >= 1
    lone = [summary("old", 3, 16), said(17, part=2)]
    assert isinstance(plan(lone, KeepPolicy(2, 4), tokens, MUCH, last_seq=17, open_part=2), NothingToGain)


def test_calls_stay_with_their_results() -> None:
    entries = talk(1, 20)
    entries[12] = said(13, "assistant", calls=True)
    for at in (13, 14, 15):
        entries[at] = said(at + 1, "tool", answers=True)
    # The last five messages would begin between the results of message 13.
    assert view(planned(entries, last=5)) == (Range(1, 2), Summary("S1", 3, 12), Range(13))
    # And so would the first.
    entries[1] = said(2, "assistant", calls=True)
    entries[2] = said(3, "tool", answers=True)
    assert view(planned(entries, last=4))[0] == Range(1, 3)


def test_awaited_calls_are_never_cut() -> None:
    entries = [*talk(1, 20), said(21, "assistant", calls=True), said(22, "tool", answers=True)]
    found = planned(entries, last=1, target=1)
    assert view(found)[-1] == Range(21)


def test_the_newest_message_of_a_person_stays_however_far_back_it_is() -> None:
    steps = []
    for seq in range(12, 40, 2):
        steps += [said(seq, "assistant", calls=True), said(seq + 1, "tool", answers=True)]
    found = planned([*talk(1, 10), said(11), *steps], last=4)
    assert view(found) == (Range(1, 2), Summary("S1", 3, 10), Range(11, 11), Summary("S2", 12, 35), Range(36))
    tight = planned([*talk(1, 10), said(11), *steps], last=4, target=1)
    assert view(tight) == (Summary("S1", 1, 10), Range(11, 11), Summary("S2", 12, 37), Range(38))


def test_less_of_the_last_is_kept_if_the_settings_would_keep_too_much() -> None:
    entries = talk(1, 40)
    all_of_it = planned(entries, last=30)
    assert view(all_of_it)[-1] == Range(11)
    less = planned(entries, last=30, target=1500)
    (gap,) = less.gaps
    assert 1500 - 2 * 120 < less.kept + allowed(gap, 1500) <= 1500  # and no less than that
    assert view(less)[0] == Range(1, 2)


def test_of_the_first_none_are_kept_if_even_that_is_too_much() -> None:
    entries = [said(1, size=40_000), *talk(2, 40)]
    assert view(planned(entries, target=2000))[0] == Summary("S1", 1, 36)


def test_of_a_short_context_too_something_is_summarised_if_that_is_wanted() -> None:
    found = planned(talk(1, 10), last=12, target=int(10 * 107 * 0.8))
    assert view(found) == (Range(1, 2), Summary("S1", 3, 5), Range(6))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_of_next_to_nothing_there_is_nothing_to_gain(count: int) -> None:
    found = plan(talk(1, count), KeepPolicy(2, 12), tokens, 1, last_seq=count, open_part=0)
    assert isinstance(found, NothingToGain) or found.summarised == 1
    short = [said(seq, text="hi") for seq in range(1, 4)]
    assert isinstance(plan(short, KeepPolicy(2, 12), tokens, 1, last_seq=3, open_part=0), NothingToGain)


def test_hidden_messages_within_a_range_do_not_tear_it_apart() -> None:
    entries = [said(seq) for seq in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 14)]
    assert view(planned(entries)) == (Range(1, 2), Summary("S1", 3, 8), Range(10))


def test_ranges_that_were_apart_stay_apart() -> None:
    entries = [*talk(1, 2), *[said(seq, part=1) for seq in range(10, 30)]]
    assert view(planned(entries, first=3)) == (
        Range(1, 2),
        Range(10, 10),
        Summary("S1", 11, 25),
        Range(26),
    )


def test_a_long_context_is_planned_in_no_time() -> None:
    found = planned(talk(1, 5000, size=20), last=4000, target=1000)
    assert found.kept < 1000


def test_only_what_is_measurably_shorter_counts() -> None:
    found = planned(talk(1, 20))
    assert shrinks(found, ["short"], tokens)[0]
    fits, after = shrinks(found, ["x" * 450 * 14], tokens)
    assert not fits
    assert after > found.before


def test_the_pause_grows_with_each_failure_and_has_an_end() -> None:
    pauses = [pause_after(number) for number in range(1, 20)]
    assert pauses[:4] == [timedelta(minutes=number) for number in (1, 2, 4, 8)]
    assert pauses[-1] == timedelta(hours=1)


# --- summaries -------------------------------------------------------------------------------------


def test_a_transcript_names_who_spoke_what_was_called_and_what_is_no_text() -> None:
    calling = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": '{"at":"sea"}'}}],
    }
    looking = {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url"}]}
    entries = [
        summary("Ada likes kelp.", 1, 9),
        Entry(10, 10, "user", (msgspec.json.encode(looking),)),
        Entry(11, 11, "assistant", (msgspec.json.encode(calling),)),
        said(12, "tool", "calm"),
    ]
    assert transcript(entries, 10_000) == (
        "Summary of what was before: Ada likes kelp.\n\nUser: see\n[image]\n\n"
        'Assistant: [calls look: {"at":"sea"}]\n\nResult of a tool: calm'
    )


def test_of_a_transcript_that_is_too_long_the_longest_are_shortened() -> None:
    entries = [said(1, text="short"), said(2, text="b" * 50_000), said(3, text="c" * 50_000)]
    text = transcript(entries, 10_000)
    assert len(text) < 10_500
    assert "User: short\n" in text
    assert text.count("characters left out") == 2


def test_a_transcript_is_shortened_to_the_tokens_there_is_room_for() -> None:
    entries = talk(1, 10, size=4000)
    assert transcript_within(entries, tokens, 20_000) == transcript(entries, 10**9)
    short = transcript_within(entries, tokens, 1000)
    assert tokens(Size(len(short))) < 1200


def test_of_a_transcript_with_too_many_messages_the_first_and_the_newest_are_kept() -> None:
    entries = [said(seq, text=f"number {seq} " + "word " * 100) for seq in range(1, 1001)]
    short = transcript_within(entries, tokens, 3000)
    assert tokens(Size(len(short))) < 3300
    shown = [int(found) for found in re.findall(r"number (\d+) ", short)]
    assert (shown[0], shown[-1]) == (1, 1000) and shown == sorted(shown)
    assert f"[… {1000 - len(shown)} messages left out …]" in short
    brief = [said(seq, text="yes") for seq in range(1, 1001)]
    assert "left out" not in transcript(brief, 20_000)


@given(st.lists(st.integers(4, 300), max_size=30), st.integers(0, 3000))
def test_what_is_kept_of_too_many_messages_fits(costs: list[int], most: int) -> None:
    entries = [said(seq, text="x" * cost) for seq, cost in enumerate(costs, 1)]
    text = transcript(entries, most)
    assert len(text) <= most + 2 * len(costs) + SHORTEST + 100
    assert not entries or text.rpartition("User: ")[2].startswith("x")


def test_the_request_asks_in_the_given_words_or_our_own() -> None:
    ours = msgspec.json.decode(summary_request("", 500, "User: hello"))
    assert [each["role"] for each in ours] == ["system", "user"]
    assert "at most 350 words" in ours[0]["content"]
    assert ours[1]["content"] == "User: hello"
    theirs = msgspec.json.decode(summary_request("Be brief {words}.", 500, "User: hello"))
    assert theirs[0]["content"] == "Be brief {words}."


@pytest.mark.parametrize(
    ("answer", "summary"),
    [
        (" Ada likes kelp. \n", "Ada likes kelp."),
        ("<think>hm</think>\nAda likes kelp.", "Ada likes kelp."),
        ("<think>hm</think>", ""),
        ("  ", ""),
        (None, ""),
        ([{"type": "text", "text": "x"}], ""),
    ],
)
def test_a_summary_is_what_the_model_says_without_what_it_thinks(answer: object, summary: str) -> None:
    assert summary_in(answer) == summary


def test_what_no_summary_was_made_of_is_said_to_be_left_out_and_earlier_words_stay() -> None:
    first = left_out(SummarySpan((said(3), said(4)), 100))
    assert first.startswith("[2 earlier messages were left out here")
    again = left_out(SummarySpan((summary(first, 3, 4), said(5)), 100))
    assert again.startswith("[3 earlier messages were left out here")
    kept = left_out(SummarySpan((summary("Ada likes kelp.", 3, 4), said(5)), 100))
    assert kept.startswith("Ada likes kelp.\n\n[1 earlier message was left out here")
    more = left_out(SummarySpan((summary(kept, 3, 5), said(6)), 100))
    assert more.startswith("Ada likes kelp.\n\n[2 earlier messages were left out here")
    assert more.count("left out") == 1


def test_a_view_of_a_plan_can_be_stored() -> None:
    found = planned(talk(1, 20)).view(["S"])
    assert View.decode(found.encode()) == found


@given(st.sets(st.integers(1, 20)), st.lists(st.integers(1, 20), unique=True))
def test_the_entries_that_a_view_shows_are_those_in_its_ranges(seqs: set[int], ends: list[int]) -> None:
    ordered = sorted(ends)
    shown = list(zip(ordered[::2], ordered[1::2], strict=False))
    entries = [said(seq) for seq in sorted(seqs)]
    assert shown_entries(entries, shown) == [
        each for each in entries if any(first <= each.first <= last for first, last in shown)
    ]
