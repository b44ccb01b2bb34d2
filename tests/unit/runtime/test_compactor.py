"""The compactor on a real store, with a scripted model: when it acts, what it does, and what it does when a
summary cannot be had."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, ClassVar

import msgspec
import pytest

from holdfast.domain.compaction import KeepPolicy
from holdfast.domain.conversations import Address
from holdfast.domain.events import Event
from holdfast.domain.sessions import Session
from holdfast.domain.turns import TurnStatus
from holdfast.errors import ConversationBusy, ModelError, NotCompacted
from holdfast.models.base import Purpose
from holdfast.models.effective_window import ASSUMED_WINDOW
from holdfast.models.scripted import Line, ScriptedModel
from holdfast.runtime.contexts import compactor as compactors
from holdfast.runtime.contexts.compactor import CompactionRules, Compactor
from holdfast.runtime.tools.toolbox import Toolbox, ToolCall
from holdfast.runtime.turns.agent_loop import AgentLoop
from holdfast.runtime.turns.live import Answered, Unanswered
from holdfast.settings import ModelSettings
from holdfast.store.sqlite.engine import SQLiteStore
from tests.reliability import mutants
from tests.unit.runtime.asking import OWNER, Server, ended, serving, user
from tests.unit.runtime.conftest import Clock

WINDOW = 1200
LONG = "word " * 100
GIST = "[Summary of the earlier part of this conversation]\n"
RULES = CompactionRules(0.55, KeepPolicy(2, 4), 5.0)

Summary = Callable[[list[dict[str, Any]]], Line | Awaitable[Line]]


@dataclass
class Script:
    """A model that answers turns with a few words, and summaries as it is told to. It counts a token for each
    word, as its usage says."""

    summary: Summary = field(default=lambda messages: "gist")
    answer: Callable[[list[dict[str, Any]]], Line] = field(default=lambda messages: "fine " * 20)
    asked: list[list[dict[str, Any]]] = field(default_factory=list)
    """What it was asked in turns."""
    summarised: list[list[dict[str, Any]]] = field(default_factory=list)

    def __call__(self, messages: list[dict[str, Any]], purpose: Purpose) -> Any:
        if purpose is Purpose.SUMMARY:
            self.summarised.append(messages)
            return self.summary(messages)
        self.asked.append(messages)
        return self.answer(messages)

    @property
    def last(self) -> list[Any]:
        return [message["content"] for message in self.asked[-1]]


@asynccontextmanager
async def compacting(
    store: SQLiteStore, script: Script, window: int = WINDOW, rules: CompactionRules = RULES, **more: Any
) -> AsyncIterator[tuple[Server, Compactor]]:
    model = ScriptedModel(script, window=window)
    async with serving(store, model, **more) as server:
        compactor = Compactor(store, server.keeper, server.leases, model, ModelSettings(), rules)
        server.runner.compactor = compactor
        yield server, compactor


async def talk(server: Server, compactor: Compactor, turns: int, key: str = "a", text: str = LONG) -> None:
    """So many turns, each answered before the next; what is to be done behind them is done too."""
    for number in range(turns):
        await server.answered(user(f"{number} {text}"), key=key)
        await settled(compactor)


async def settled(compactor: Compactor) -> None:
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while compactor._background:
            await compactor.settled()


async def tip(store: SQLiteStore, key: str = "a") -> Session:
    return (await store.resolve(OWNER, Address(key=key))).tip


async def told(store: SQLiteStore) -> list[Event]:
    return [each for each in await store.events(owner=OWNER) if each.type.startswith("compaction.")]


async def types(store: SQLiteStore) -> list[str]:
    return [each.type.removeprefix("compaction.") for each in await told(store)]


# --- behind a reply --------------------------------------------------------------------------------


async def test_past_the_threshold_a_conversation_goes_on_with_a_summary(store: SQLiteStore) -> None:
    script = Script()
    async with compacting(store, script) as (server, compactor):
        await talk(server, compactor, 6)
        session = await tip(store)
        assert (session.edge, session.ordinal) == ("compaction", 2)
        await talk(server, compactor, 1)
    assert script.last[2] == f"{GIST}gist"
    assert [text[:1] for text in script.last[:2]] == ["0", "f"]
    assert len(script.last) == 2 + 1 + 4 + 1
    started, completed = await told(store)
    assert started.data["why"] == "threshold"
    assert started.data["tokens"] > WINDOW * 0.55
    assert completed.data["tokens_after"] < WINDOW * 0.55
    assert completed.data["messages"] == session.view.parts[1].last - 2  # type: ignore[operator]
    assert completed.session_id == session.id


async def test_a_summary_is_asked_for_the_middle_and_nothing_else(store: SQLiteStore) -> None:
    script = Script()
    async with compacting(store, script) as (server, compactor):
        await talk(server, compactor, 7)
    ((instruction, transcript),) = script.summarised
    assert instruction["role"] == "system"
    assert "User: 1 word" in transcript["content"]
    assert "User: 0 word" not in transcript["content"]
    assert "User: 5 word" not in transcript["content"]


async def test_the_next_summary_is_made_of_the_last_one_and_what_came_after(store: SQLiteStore) -> None:
    gists = iter(["Ada likes kelp.", "Ada likes kelp and the sea.", "third"])
    script = Script(lambda messages: next(gists))
    async with compacting(store, script) as (server, compactor):
        await talk(server, compactor, 9)
    assert len(script.summarised) == 2
    assert "Summary of what was before: Ada likes kelp." in script.summarised[1][1]["content"]
    assert "User: 1 word" not in script.summarised[1][1]["content"]
    session = await tip(store)
    assert len(session.view.parts) == 3
    assert session.ordinal == 3


async def test_nobody_waits_for_a_summary(store: SQLiteStore) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(messages: Any) -> str:
        asked.set()
        await go_on.wait()
        return "gist"

    script = Script(slowly)
    async with compacting(store, script) as (server, compactor):
        for number in range(7):
            await server.answered(user(f"{number} {LONG}"), key="a")
        async with asyncio.timeout(60):
            await asked.wait()
            assert await server.answered(user("meanwhile"), key="a")
        parent = await tip(store)
        assert parent.edge is None
        assert compactor.is_compacting(parent.conversation_id)
        go_on.set()
        await settled(compactor)
        child = await tip(store)
        assert (child.edge, child.parent_id) == ("compaction", parent.id)
        await server.answered(user("and now?"), key="a")
    shown = script.last
    assert f"{GIST}gist" in shown
    assert shown[-3:-1] == ["meanwhile", "fine " * 20]
    page = await store.messages(None, parent.conversation_id)
    assert [message.seq for message in page.items] == list(range(1, 19))


async def test_a_running_turn_is_waited_for_and_the_summary_still_counts(store: SQLiteStore) -> None:
    go_on, holding, release = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slowly(messages: Any) -> str:
        await go_on.wait()
        return "gist"

    async def words() -> AsyncIterator[str]:
        yield "well "
        holding.set()
        await release.wait()
        yield "done"

    script = Script(slowly)
    script.answer = lambda messages: words() if messages[-1]["content"] == "hold" else "fine " * 20
    async with compacting(store, script) as (server, compactor):
        for number in range(7):
            await server.answered(user(f"{number} {LONG}"), key="a")
        running = await server.run(user("hold"), key="a")
        async with asyncio.timeout(60):
            await holding.wait()
        go_on.set()
        await asyncio.sleep(0.05)
        assert (await tip(store)).edge is None
        release.set()
        assert isinstance(await ended(running), Answered)
        await settled(compactor)
        assert (await tip(store)).edge == "compaction"


async def test_below_the_threshold_nothing_happens(store: SQLiteStore) -> None:
    async with compacting(store, Script()) as (server, compactor):
        await talk(server, compactor, 4)
    assert await told(store) == []
    assert (await tip(store)).ordinal == 1


# --- before a turn, and within one -----------------------------------------------------------------


async def test_a_turn_that_would_not_fit_is_compacted_first(store: SQLiteStore) -> None:
    script = Script()
    # A threshold of everything: nothing is done behind replies.
    async with compacting(store, script, rules=replace(RULES, threshold=1.0)) as (server, compactor):
        await talk(server, compactor, 6)
        parent = await tip(store)
        running = await server.run(user("more " * 500), id=parent.id)
        assert isinstance(await ended(running), Answered)
    assert script.last[2] == f"{GIST}gist"
    assert script.last[-1] == "more " * 500
    session = await tip(store)
    assert running.session.id == session.id == running.turn.session_id
    assert running.begun.addressed == parent.id
    assert (await store.turn(OWNER, running.turn.id)).session_id == session.id
    events = await told(store)
    assert [each.data["why"] for each in events] == ["no_fit", "no_fit"]
    assert {each.turn_id for each in events} == {running.turn.id}
    assert (await store.session(OWNER, session.id)).last_seq == 14


async def test_what_fits_is_not_compacted_before_a_turn(store: SQLiteStore) -> None:
    script = Script()
    async with compacting(store, script, rules=replace(RULES, threshold=1.0)) as (server, compactor):
        await talk(server, compactor, 6)
    assert script.summarised == []


async def test_a_model_that_says_that_it_is_too_much_is_asked_again_with_less(store: SQLiteStore) -> None:
    script = Script()

    def answer(messages: list[dict[str, Any]]) -> Line:
        if sum(len(str(each["content"]).split()) for each in messages) > 600:
            said = "This model's maximum context length is 600 tokens. However, you sent more."
            return ModelError(said, 400, said=said)
        return "fine " * 20

    script.answer = answer
    async with compacting(store, script, window=100_000) as (server, compactor):
        await talk(server, compactor, 8)
        session = await tip(store)
    assert session.edge == "compaction"
    refused = [each for each in await told(store) if each.data["why"] == "refused"]
    assert [each.type for each in refused][:2] == ["compaction.started", "compaction.completed"]
    # Its limit is known now: later ones are compacted before it is asked in vain.
    assert len(refused) == 2
    assert (await compactor.windows.of(None, OWNER)).tokens == 600


async def test_a_model_that_refuses_whatever_it_is_given_is_asked_once_more_and_then_believed(
    store: SQLiteStore,
) -> None:
    script = Script()
    async with compacting(store, script, window=100_000) as (server, compactor):
        await talk(server, compactor, 6)
        script.answer = lambda messages: ModelError("no", 400, said="no", code="context_length_exceeded")
        asked = len(script.asked)
        outcome = await ended(await server.run(user("hello"), key="a"))
        assert isinstance(outcome, Unanswered)
        assert isinstance(outcome.error, ModelError)
        assert outcome.error.code == "context_length_exceeded"
        assert len(script.asked) == asked + 2
        script.answer = lambda messages: "back"
        assert await server.answered(user("again"), key="a") == "back"
    page = await store.messages(None, (await tip(store)).conversation_id)
    assert [each.content()["content"] for each in page.items][-3:] == ["hello", "again", "back"]


async def test_a_refusal_that_repeats_a_client_s_text_costs_other_owners_no_context(
    store: SQLiteStore,
) -> None:
    def answer(messages: list[dict[str, Any]]) -> Line:
        said = messages[-1]["content"]
        if said.startswith("Invalid value"):
            return ModelError(f"the model answered 400: {said}", 400, said=said)
        return "fine"

    script = Script(answer=answer)
    async with compacting(store, script, window=100_000) as (server, compactor):
        await talk(server, compactor, 3)
        eve = await server.run(user("Invalid value: 'context length > 300'"), key="b", owner="eve")
        assert isinstance(await ended(eve), Unanswered)
        await talk(server, compactor, 1)
        assert (await tip(store)).edge is None and not script.summarised
        assert len(script.asked[-1]) == 7


async def test_other_refusals_compact_nothing(store: SQLiteStore) -> None:
    script = Script()
    async with compacting(store, script) as (server, compactor):
        await talk(server, compactor, 3)
        script.answer = lambda messages: ModelError("no", 400, said="invalid image")
        assert isinstance(await ended(await server.run(user("hello"), key="a")), Unanswered)
    assert await told(store) == []


async def suspicions(store: SQLiteStore) -> list[Event]:
    return [each for each in await store.events(owner=OWNER) if each.type == "window.suspected"]


async def context_of(store: SQLiteStore, session_id: str) -> list[Any]:
    return (await store.context(OWNER, session_id)).messages()


class Reporting(ScriptedModel):
    """A model that reports of each turn what `report` makes of the truth."""

    def __init__(self, script: Any, report: Callable[[int], Any], **more: Any) -> None:
        super().__init__(script, **more)
        self._report = report

    async def stream(self, request: Any) -> Any:
        async for chunk in super().stream(request):
            usage = chunk.value.get("usage")
            if usage and request.purpose is Purpose.TURN:
                usage["prompt_tokens"] = self._report(usage["prompt_tokens"])
                if usage["prompt_tokens"] is None:
                    del usage["prompt_tokens"]
            yield chunk


async def reported(
    store: SQLiteStore, report: Callable[[int], Any], turns: int, words: int = 200, **settings: Any
) -> None:
    """Talk this much, with a model that says no window of its own unless the settings do."""
    model = Reporting(lambda messages, purpose: "fine", report, window=settings.pop("window", None))
    async with serving(store, model) as server:
        compactor = Compactor(store, server.keeper, server.leases, model, ModelSettings(**settings), RULES)
        server.runner.compactor = compactor
        for number in range(turns):
            await server.answered(user(f"{number} " + "word " * words), key="a")
            await settled(compactor)


async def test_an_upstream_that_cuts_silently_is_noticed_and_explained(store: SQLiteStore) -> None:
    """As Ollama does at its num_ctx: reports rise with the context, then stay though it grows."""
    await reported(store, lambda tokens: min(9000, tokens), 32, 400, window=100_000)
    (suspected,) = await suspicions(store)
    assert suspected.data["window"] == suspected.data["reported"] <= 9000
    assert suspected.data["given"] > suspected.data["reported"]
    assert suspected.data["reports"] == 3
    events = [each for each in await told(store) if each.data["why"] == "cut"]
    assert [each.type for each in events][:2] == ["compaction.started", "compaction.completed"]
    assert not events[1].data["model_free"], "with a summary"
    assert (await tip(store)).edge == "compaction"


async def test_a_plateau_below_the_assumed_window_is_explained_and_lowers_no_window_further(
    store: SQLiteStore,
) -> None:
    await reported(store, lambda tokens: min(2500, tokens), 12, 350, window=100_000)
    (suspected,) = await suspicions(store)
    assert (suspected.data["window"], suspected.data["reported"] <= 2500) == (ASSUMED_WINDOW, True)
    assert await told(store) == []


FALLING = cycle(range(3000, 0, -100))
"""Below the threshold of an assumed window, in whichever order tests take from it."""


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(lambda tokens: 250, id="constant"),
        pytest.param(lambda tokens: 3000, id="a larger constant"),
        pytest.param(lambda tokens: 0, id="zero"),
        pytest.param(lambda tokens: None, id="missing"),
        pytest.param(lambda tokens: -5, id="negative"),
        pytest.param(lambda tokens: next(FALLING), id="falling"),
        pytest.param(lambda tokens: 500 + tokens % 7, id="without what was cached"),
        pytest.param(lambda tokens: 1_000_000, id="far too much"),
        pytest.param(lambda tokens: tokens * 40, id="far too much, and rising"),
    ],
)
@pytest.mark.parametrize("settings", [{"context_window": 32_768}, {"window": 100_000}, {}], ids=str)
async def test_a_misreported_usage_costs_no_context(
    store: SQLiteStore, report: Callable[[int], Any], settings: dict[str, int]
) -> None:
    await reported(store, report, 10, **settings)
    assert await told(store) == []
    assert await suspicions(store) == []
    assert len(await context_of(store, (await tip(store)).id)) == 20


async def test_a_server_that_trusts_what_a_model_reports_is_seen(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutants.usage_is_trusted(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        await test_a_misreported_usage_costs_no_context(store, lambda tokens: 250, {"context_window": 32_768})


async def test_a_configured_window_wins_over_every_report_and_refusal(store: SQLiteStore) -> None:
    await reported(store, lambda tokens: min(9000, tokens), 32, 400, context_window=100_000)
    assert await told(store) == []


async def test_no_message_leaves_without_a_summary_on_a_report_s_word(store: SQLiteStore) -> None:
    """A report that is thrice the truth says that it does not fit; there is no summary; nothing is lost."""
    script = Script(summary=lambda messages: ModelError("there is no summary"))
    model = Reporting(script, lambda tokens: tokens * 3, window=8192)
    async with serving(store, model) as server:
        compactor = Compactor(store, server.keeper, server.leases, model, ModelSettings(), RULES)
        server.runner.compactor = compactor
        for number in range(8):
            await server.answered(user(f"{number} " + "word " * 400), key="a")
            await settled(compactor)
    assert "compaction.completed" not in [each.type for each in await told(store)]
    assert len(await context_of(store, (await tip(store)).id)) == 16


async def test_a_long_tool_loop_is_compacted_between_two_steps(store: SQLiteStore) -> None:
    script = Script()

    class Look:
        name = "look"
        idempotent = False
        schema: ClassVar = {
            "type": "function",
            "function": {"name": "look", "parameters": {"type": "object"}},
        }

        async def run(self, call: ToolCall) -> str:
            return f"seen {LONG}"

    def answer(messages: list[dict[str, Any]]) -> Line:
        steps = len(script.asked)
        if steps > 14:
            return "done"
        call = {"id": f"c{steps}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        return {"content": None, "tool_calls": [call]}

    script.answer = answer
    toolbox = Toolbox((Look(),))
    async with compacting(store, script, toolbox=toolbox) as (server, compactor):
        running = await server.run(user("go on"), key="a", tools=frozenset({"look"}))
        outcome = await ended(running)
        assert isinstance(outcome, Answered), outcome
        await settled(compactor)
    for messages in script.asked:
        assert "go on" in [each["content"] for each in messages if each["role"] == "user"]
        calls = [call["id"] for each in messages for call in each.get("tool_calls") or ()]
        results = [each["tool_call_id"] for each in messages if each["role"] == "tool"]
        assert calls == results
    assert max(len(messages) for messages in script.asked) < 29
    session = await tip(store)
    assert session.ordinal > 1
    assert (await store.turn(OWNER, running.turn.id)).session_id == running.session.id
    said = (await store.messages(None, session.conversation_id)).items
    assert [each.seq for each in said] == list(range(1, 1 + 2 * 14 + 2))


# --- summaries that are none -----------------------------------------------------------------------


async def never(messages: Any) -> str:
    await asyncio.sleep(1000)
    return "too late"


BAD: dict[str, tuple[Summary, str]] = {
    "hangs": (never, "summary_timed_out"),
    "fails": (lambda messages: ModelError("out of order", 500), "summary_failed"),
    "breaks off": (lambda messages: ("half a", ModelError("gone", 502)), "summary_failed"),
    "is empty": (lambda messages: "  ", "summary_empty"),
    "is longer than what it replaces": (lambda messages: "much " * 1500, "summary_too_long"),
}


def patience(kind: str) -> float:
    return 0.2 if kind == "hangs" else 30.0


@pytest.mark.parametrize("kind", BAD)
async def test_a_summary_that_is_none_loses_nothing_and_is_told(store: SQLiteStore, kind: str) -> None:
    summary, reason = BAD[kind]
    script = Script(summary)
    rules = replace(RULES, summary_seconds=patience(kind))
    async with compacting(store, script, rules=rules) as (server, compactor):
        await talk(server, compactor, 6)
        assert (await types(store)) == ["started", "failed"]
        assert (await told(store))[1].data["reason"] == reason
        session = await tip(store)
        assert (session.edge, session.ended) == (None, False)
        asked = len(script.asked[-1])
        assert await server.answered(user("still there?"), key="a")
        assert len(script.asked[-1]) == asked + 2  # it still fits, whole
        await settled(compactor)
    assert await types(store) == ["started", "failed"]  # and is not tried again at once


@pytest.mark.parametrize("kind", BAD)
async def test_only_a_context_that_does_not_fit_loses_messages_without_a_summary_and_says_so(
    store: SQLiteStore, kind: str
) -> None:
    summary, reason = BAD[kind]
    script = Script(summary)
    rules = replace(RULES, summary_seconds=patience(kind), threshold=1.0)
    async with compacting(store, script, rules=rules) as (server, compactor):
        await talk(server, compactor, 6)
        assert await server.answered(user("more " * 500), key="a")
    assert await types(store) == ["started", "failed", "completed"]
    events = await told(store)
    assert events[1].data["reason"] == reason
    assert events[2].data["model_free"] is True
    assert "earlier messages were left out here" in script.last[2]
    assert script.last[-1] == "more " * 500
    session = await tip(store)
    page = await store.messages(None, session.conversation_id)
    assert len(page.items) == 14
    assert (await store.search(OWNER, "word", limit=100))[
        0
    ].message.conversation_id == session.conversation_id


async def test_a_breaker_that_is_open_asks_for_no_summary_even_if_it_must(
    store: SQLiteStore, clock: Clock
) -> None:
    script = Script(lambda messages: ModelError("out of order", 500))
    async with compacting(store, script) as (server, compactor):
        await talk(server, compactor, 6)
        assert len(script.summarised) == 1
        assert await server.answered(user("more " * 500), key="a")
        assert len(script.summarised) == 1
        assert [each.data.get("reason") for each in await told(store)][-2:] == ["cooling_down", None]
        await settled(compactor)
        clock.advance(minutes=2)
        script.summary = lambda messages: "gist"
        await talk(server, compactor, 4)
        assert len(script.summarised) > 1
    assert (await types(store))[-1] == "completed"


async def test_a_breaker_outlives_the_process(store: SQLiteStore, clock: Clock) -> None:
    script = Script(lambda messages: ModelError("out of order", 500))
    async with compacting(store, script) as (server, compactor):
        await talk(server, compactor, 6)
    async with compacting(store, script) as (server, compactor):
        await talk(server, compactor, 1)
        assert len(script.summarised) == 1
        clock.advance(minutes=1)
        await talk(server, compactor, 1)
        assert len(script.summarised) == 2
        clock.advance(minutes=1)
        await talk(server, compactor, 1, text="x")
        assert len(script.summarised) == 2  # the pause has doubled
        clock.advance(minutes=1)
        await talk(server, compactor, 1, text="x")
        assert len(script.summarised) == 3


async def test_a_window_that_is_only_assumed_takes_nothing_out_without_a_summary(store: SQLiteStore) -> None:
    script = Script(lambda messages: ModelError("out of order", 500))
    model = ScriptedModel(script, window=None)
    rules = replace(RULES, threshold=1.0)
    async with serving(store, model) as server:
        server.runner.compactor = Compactor(
            store, server.keeper, server.leases, model, ModelSettings(), rules
        )
        await server.answered(user("word " * 1000), key="a")
        await server.answered(user("word " * 8000), key="a")
    assert len(script.asked[-1]) == 3
    assert await types(store) == ["started", "failed"]


async def test_what_does_not_shrink_is_no_compaction(store: SQLiteStore) -> None:
    """Nothing but the newest message, which is too long: there is nothing to gain, and the model decides."""
    script = Script()
    async with compacting(store, script) as (server, _):
        assert await server.answered(user("more " * 1500), key="a")
    assert [each.data.get("reason") for each in await told(store)][:2] == [None, "nothing_to_gain"]
    assert script.summarised == []
    assert len(script.last) == 1


async def test_a_transcript_too_long_for_the_summariser_is_shortened(store: SQLiteStore) -> None:
    script = Script()

    def summary(messages: list[dict[str, Any]]) -> Line:
        if len(script.summarised) == 1:
            return ModelError("no", 400, said="prompt is too long: 900 tokens > 500 maximum")
        return "gist"

    script.summary = summary
    async with compacting(store, script) as (server, compactor):
        await talk(server, compactor, 7)
    first, second = script.summarised
    assert len(second[1]["content"]) < len(first[1]["content"])
    assert "characters left out" in second[1]["content"]
    assert (await types(store))[-1] == "completed"


# --- by hand ---------------------------------------------------------------------------------------


async def test_by_hand_a_short_context_is_compacted_too(store: SQLiteStore) -> None:
    script = Script()
    async with compacting(store, script, window=100_000) as (server, compactor):
        await talk(server, compactor, 5)
        parent = await tip(store)
        child = await compactor.by_hand(parent, 5)
        assert (child.edge, child.parent_id) == ("compaction", parent.id)
        with pytest.raises(NotCompacted, match="has ended"):
            await compactor.by_hand(parent, 5)
    assert [each.data["why"] for each in await told(store)] == ["by_hand", "by_hand"]


async def test_by_hand_it_says_when_there_is_nothing_to_gain(store: SQLiteStore) -> None:
    async with compacting(store, Script()) as (server, compactor):
        await talk(server, compactor, 1, text="hi")
        with pytest.raises(NotCompacted, match="too little"):
            await compactor.by_hand(await tip(store), 5)
    assert (await tip(store)).edge is None


@pytest.mark.parametrize("kind", BAD)
async def test_by_hand_it_says_why_there_is_no_summary(store: SQLiteStore, kind: str) -> None:
    script = Script(BAD[kind][0])
    async with compacting(store, script, rules=replace(RULES, summary_seconds=patience(kind))) as (
        server,
        compactor,
    ):
        await talk(server, compactor, 4)
        with pytest.raises(ModelError, match="was not compacted") as raised:
            await compactor.by_hand(await tip(store), 5)
    assert raised.value.status == (504 if kind == "hangs" else None)
    assert (await tip(store)).edge is None


async def test_by_hand_a_turn_is_waited_for_only_so_long(store: SQLiteStore) -> None:
    script = Script()
    async with compacting(store, script, window=100_000) as (server, compactor):
        await talk(server, compactor, 5)
        holding, release = asyncio.Event(), asyncio.Event()

        async def words() -> AsyncIterator[str]:
            yield "well"
            holding.set()
            await release.wait()

        script.answer = lambda messages: words()
        running = await server.run(user("hold"), key="a")
        async with asyncio.timeout(60):
            await holding.wait()
        with pytest.raises(ConversationBusy):
            await compactor.by_hand(await tip(store), 0.05)
        release.set()
        await ended(running)
        assert (await types(store)) == ["started", "put_off"]
        script.answer = lambda messages: "fine"
        assert (await compactor.by_hand(await tip(store), 5)).edge == "compaction"


async def test_two_by_hand_at_once_make_one_child(store: SQLiteStore) -> None:
    script = Script()
    async with compacting(store, script, window=100_000) as (server, compactor):
        await talk(server, compactor, 5)
        session = await tip(store)
        outcomes = await asyncio.gather(
            *(compactor.by_hand(session, 5) for _ in range(5)), return_exceptions=True
        )
    made = [each for each in outcomes if isinstance(each, Session)]
    assert len(made) == 1
    assert all(isinstance(each, NotCompacted) for each in outcomes if each is not made[0])


async def test_a_turn_that_is_cancelled_while_it_compacts_leaves_the_way_free(store: SQLiteStore) -> None:
    asked = asyncio.Event()

    async def hangs(messages: Any) -> str:
        asked.set()
        return await never(messages)

    script = Script(hangs)
    async with compacting(store, script, rules=replace(RULES, threshold=1.0)) as (server, compactor):
        await talk(server, compactor, 6)
        running = await server.run(user("more " * 500), key="a")
        async with asyncio.timeout(60):
            await asked.wait()
        assert running.doing == "compacting"
        assert await server.runner.stop(OWNER, running.turn.id, TurnStatus.CANCELLED, "enough")
        assert (await types(store)) == ["started", "put_off"]
        script.summary = lambda messages: "gist"
        assert (await compactor.by_hand(await tip(store), 5)).edge == "compaction"


async def test_a_compaction_that_is_cancelled_while_it_is_claimed_leaves_the_way_free(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, is_claimed = store.claim_compaction, asyncio.Event()

    async def slow_claim(*arguments: Any, **more: Any) -> Any:
        found = await claim(*arguments, **more)
        is_claimed.set()
        await asyncio.sleep(0)
        return found

    async with compacting(store, Script(), window=100_000) as (server, compactor):
        await talk(server, compactor, 5)
        monkeypatch.setattr(store, "claim_compaction", slow_claim)
        by_hand = asyncio.create_task(compactor.by_hand(await tip(store), 5))
        await is_claimed.wait()
        by_hand.cancel()
        with pytest.raises(asyncio.CancelledError):
            await by_hand
        assert await types(store) == ["started", "put_off"]
        assert (await compactor.by_hand(await tip(store), 5)).edge == "compaction"


async def test_a_large_context_is_read_outside_the_event_loop(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, threading.Thread] = {}

    def watched(name: str) -> None:
        work = getattr(compactors, name)

        def watch(*arguments: Any, **more: Any) -> Any:
            threads[name] = threading.current_thread()
            return work(*arguments, **more)

        monkeypatch.setattr(compactors, name, watch)

    names = ("plan", "transcript_within", "total_weight")
    for name in names:
        watched(name)
    async with compacting(store, Script(), window=10_000_000) as (server, compactor):
        await talk(server, compactor, 5, text="word " * 150_000)
        await compactor.by_hand(await tip(store), 5)
        assert set(threads) == set(names) and threading.main_thread() not in threads.values()


async def test_who_summarises_and_in_which_words_is_a_setting(store: SQLiteStore) -> None:
    script = Script()
    rules = replace(RULES, model="small", prompt="In three words.")
    async with compacting(store, script, rules=rules) as (server, compactor):
        await talk(server, compactor, 7)
        model = server.runner._model
        assert isinstance(model, ScriptedModel)
        (asked,) = [each for each in model.requests if each.purpose is Purpose.SUMMARY]
    assert asked.model == "small"
    assert msgspec.json.decode(asked.messages)[0]["content"] == "In three words."


def _loops() -> list[AgentLoop]:
    return [each for each in gc.get_objects() if type(each) is AgentLoop]


async def test_a_turn_leaves_nothing_to_the_garbage_collector(store: SQLiteStore) -> None:
    async with compacting(store, Script()) as (server, compactor):
        gc.collect()
        others = _loops()  # of tests whose errors, with their tracebacks, are parameters
        gc.disable()
        try:
            await talk(server, compactor, 3, text="short")
            for _ in range(200):  # the last turn's task may still be ending
                await asyncio.sleep(0.01)
                left = [each for each in _loops() if each not in others]
                if not left:
                    break
            assert not left
        finally:
            gc.enable()
