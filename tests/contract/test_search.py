"""Search: every committed message is found, by its owner only, and no deleted one."""

import asyncio
import contextlib
import random
import threading
import time
from typing import Any

import pytest

from holdfast.domain.ids import new_id
from holdfast.domain.messages import MessageStatus
from holdfast.domain.new_messages import ROLES
from holdfast.domain.nodes import Node
from holdfast.domain.turns import TurnFailure, TurnStatus
from holdfast.errors import BadInput, NotFound, SearchFailed, SearchTimeout, StoreBusy
from holdfast.store import search_terms
from holdfast.store.store import Store
from holdfast.store.values import SearchFilter
from tests.contract.steps import OTHER, OWNER, Clock, begin, context_of, draft, say, to_message


async def numbers(store: Store, words: str, owner: str | None = OWNER, **more: Any) -> list[int]:
    """The numbers of the messages found, in order."""
    return sorted(hit.message.seq for hit in await store.search(owner, words, **more))


async def test_a_message_is_found_the_moment_it_is_committed(store: Store, node: Node) -> None:
    begun = await begin(store, node, "kelp 0")
    for number in range(1, 30):
        await store.append(begun.lease, [to_message(f"kelp {number}", "assistant")])
        assert await numbers(store, f'"kelp {number}"') == [number + 1]
        assert len(await store.search(OWNER, "kelp", limit=100)) == number + 1


async def test_what_another_store_object_wrote_is_found_at_once(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for number in range(10):
        by, who = ((store, node), (second_store, second_node))[number % 2]
        await say(by, who, f"kelp {number}", key="cli:ada")
        assert len(await store.search(OWNER, "kelp")) == number + 1
        assert len(await second_store.search(OWNER, "kelp")) == number + 1


async def test_searches_go_on_after_the_system_had_no_thread_to_give(
    store: Store, node: Node, no_threads: contextlib.AbstractContextManager[None]
) -> None:
    """As while a fork bomb runs in the same container. Other work continues."""
    with no_threads:
        await say(store, node, "kelp")
        store.start_indexing()
        with pytest.raises(SearchFailed, match="no thread can be started"):
            await store.search(OWNER, "kelp")
    async with asyncio.timeout(60):
        assert len(await store.search(OWNER, "kelp")) == 1
        store.start_indexing()
        while (await store.figures()).unindexed:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def test_reads_go_on_after_the_system_had_no_thread_to_give(
    store: Store, node: Node, second_store: Store, no_threads: contextlib.AbstractContextManager[None]
) -> None:
    await say(store, node, "kelp")
    with no_threads, pytest.raises(StoreBusy, match="can't start new thread"):
        await second_store.conversations(OWNER)
    async with asyncio.timeout(60):
        assert len((await second_store.conversations(OWNER)).items) == 1


@pytest.mark.parametrize("following", [True, False])
async def test_of_many_messages_none_is_missing(store: Store, node: Node, following: bool) -> None:
    if following:
        store.start_indexing()
    texts = [f"kelp w{number}" for number in range(700)]
    begun = await begin(store, node, *texts)
    assert await numbers(store, "kelp", limit=1000) == list(range(1, 701))
    for number in (0, 1, 350, 499, 500, 501, 699):
        assert await numbers(store, f'"w{number}"') == [number + 1]
    await store.commit_reply(begun.lease, [to_message("kelp last", "assistant")])
    assert await numbers(store, "last") == [701]


async def test_nothing_is_missing_while_many_write(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    async def speak(by: Store, who: Node, name: str) -> None:
        for number in range(8):
            await say(by, who, f"kelp {name}{number}", "noted", owner=name)
            assert len(await by.search(name, "kelp")) == number + 1

    store.start_indexing()
    await asyncio.gather(
        *(speak(store, node, f"owner{n}") for n in range(4)),
        *(speak(second_store, second_node, f"other{n}") for n in range(4)),
    )
    assert len(await store.search(None, "kelp", limit=100)) == 64


async def test_a_search_finds_its_owners_messages_only(store: Store, node: Node) -> None:
    owners = [OWNER, OTHER, "ada2", "ad", "ADA", "ada bob", "ad%", "日本"]
    for owner in owners:
        await say(store, node, f"kelp of {owner}", "noted", owner=owner)
    for owner in owners:
        (hit,) = await store.search(owner, "kelp")
        assert hit.message.content()["content"] == f"kelp of {owner}"
    assert await store.search("nobody", "kelp") == []
    assert len(await store.search(None, "kelp")) == len(owners)


async def test_others_many_hits_do_not_push_an_owners_few_out(store: Store, node: Node) -> None:
    await begin(store, node, *["kelp kelp kelp"] * 200, owner=OTHER)
    await begin(store, node, "some words about seaweed, of which kelp is one")
    assert await numbers(store, "kelp", limit=5) == [1]
    await store.repair()
    assert await numbers(store, "kelp", limit=5) == [1]


async def test_a_search_may_be_of_one_conversation(store: Store, node: Node) -> None:
    first = (await say(store, node, "kelp here")).session
    await say(store, node, "kelp there")
    theirs = (await say(store, node, "kelp elsewhere", owner=OTHER)).session
    (hit,) = await store.search(OWNER, "kelp", conversation_id=first.conversation_id)
    assert hit.message.conversation_id == first.conversation_id
    assert len(await store.search(None, "kelp", conversation_id=theirs.conversation_id)) == 1
    for conversation in (theirs.conversation_id, new_id("conv")):
        with pytest.raises(NotFound) as refusal:
            await store.search(OWNER, "kelp", conversation_id=conversation)
        assert str(refusal.value) == f"no conversation {conversation!r}"


TEXTS = [
    "The database of tides",
    "Ebb and flow; flow and ebb.",
    "Crème brûlée à Besançon",
    "STRASSE und Straße",
    "a-b_c d/e f.g user@example.org",
    "print('hello, world')",
    "日本語 のテキスト",
    "Привет, мир",
    "x" * 5_000,
]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("database", [1]),
        ("data", [1]),
        ("base", []),
        ("DATABASE", [1]),
        ("tides database", [1]),
        ("tides missing", []),
        ("flow", [2]),
        ('"ebb and"', [2]),
        ('"and ebb"', [2]),
        ('"ebb flow"', []),
        ('flow "and ebb"', [2]),
        ('"and ebb', [2]),
        ("creme", [3]),
        ("CRÈME", [3]),
        ("besancon", [3]),
        ("strasse", [4]),
        ("user@example.org", [5]),
        ("example", [5]),
        ("hello", [6]),
        ("hello,", [6]),
        ("print('hello", [6]),
        ("日本語", [7]),
        ("日本", [7]),
        ("привет", [8]),
        ("x" * 100, [9]),
        ("role", []),
        ("content", []),
        ("user", [5]),
    ],
)
async def test_words_match_from_their_beginning_without_case_or_accents(
    store: Store, node: Node, words: str, found: list[int]
) -> None:
    await begin(store, node, *TEXTS)
    assert await numbers(store, words) == found
    await store.repair()  # whatever serves the fresh rows and whatever serves the old ones agree
    assert await numbers(store, words) == found


@pytest.mark.parametrize("words", ["", "   ", '"', '""', "***", "() AND", "!?", "\x00", "\U0001f41a"])
async def test_a_search_without_a_word_is_refused_or_finds_nothing(
    store: Store, node: Node, words: str
) -> None:
    await say(store, node, "kelp")
    with contextlib.suppress(BadInput):
        assert await store.search(OWNER, words) == []
    assert await numbers(store, "kelp") == [1]


HOSTILE = [
    'kelp" OR "x',
    "kelp AND",
    "AND OR NOT",
    "NEAR(kelp, 5)",
    "NEAR/2",
    "kelp*",
    "*kelp",
    "^kelp",
    "kelp:",
    "text:kelp",
    "scope:s616461",
    "{text scope}: kelp",
    "-kelp",
    "kelp + tide",
    "(((((kelp",
    "kelp)",
    "kelp;DROP TABLE messages",
    "' OR 1=1 --",
    "\\",
    "kelp\x00tide",
    "a\tb\nc",
    "kelp " * 2_000,
    "kelp" * 20_000,
    "(" * 10_000 + "kelp",
    '"kelp" ' * 1_000,
    "\u202ekelp",
    "\ufeffkelp",
    "١٢٣",
    "²",
    "ﬁ",
    "\U0001d4cf\U0001e900",
    "a\u0301\u0301\u0301",
    "%s %d {0} {}",
]


@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_hostile_search_harms_nobody(store: Store, node: Node, words: str) -> None:
    await say(store, node, "kelp and tide", "noted")
    await say(store, node, "kelp of another", "noted", owner=OTHER)
    try:
        found = await store.search(OWNER, words)
    except BadInput:
        found = []
    assert {hit.message.content()["content"] for hit in found} <= {"kelp and tide", "noted"}
    assert await numbers(store, "tide") == [1]
    await say(store, node)


async def test_no_text_at_all_breaks_a_search(store: Store, node: Node) -> None:
    await say(store, node, "kelp and tide")
    chance = random.Random(7)
    alphabet = [
        *"\"'*^:(){}[]+-~,.;\\/ \t\n\x00\x01kelpANDORNOTEX",
        "NEAR",
        "é",
        "日",
        "\u0301",
        "\U0001f41a",
    ]
    for _ in range(300):
        words = "".join(chance.choices(alphabet, k=chance.randint(1, 20)))
        try:
            await store.search(OWNER, words)
        except BadInput:
            continue
    assert await numbers(store, "tide") == [1]


@pytest.mark.parametrize(
    "content",
    [
        "kelp",
        [{"type": "text", "text": "kelp"}],
        [{"type": "input_text", "text": "some"}, {"type": "output_text", "text": "kelp"}],
        [{"type": "image_url", "image_url": {"url": "data:,x"}}, {"type": "text", "text": "kelp"}],
        [{"type": "text", "text": "kelp"}, {"type": "odd", "text": None}, {"type": "odd", "text": 5}],
        ["kelp"],
        ["some", {"type": "text", "text": "kelp"}],
    ],
    ids=range(7),
)
async def test_text_is_found_in_every_form_of_content(store: Store, node: Node, content: object) -> None:
    await begin(store, node, {"role": "user", "content": content})
    (hit,) = await store.search(OWNER, "kelp")
    assert hit.message.content()["content"] == content
    assert "kelp" in hit.snippet


@pytest.mark.parametrize("role", sorted(ROLES))
async def test_messages_of_every_role_are_found(store: Store, node: Node, role: str) -> None:
    more = {"tool_call_id": "a"} if role == "tool" else {}
    await begin(store, node, {"role": role, "content": "kelp", **more})
    assert await numbers(store, "kelp") == [1]


async def test_content_without_text_is_no_trouble(store: Store, node: Node) -> None:
    await begin(
        store,
        node,
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "user", "content": []},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": ""},
        "kelp",
    )
    assert await numbers(store, "kelp") == [6]


async def test_a_hit_tells_where_it_stands(store: Store, node: Node) -> None:
    long = "before " * 100 + "the kelp forest " + "after " * 100
    session = (await say(store, node, long, key="cli:ada")).session
    await store.set_title(OWNER, session.conversation_id, "Sea")
    (hit,) = await store.search(OWNER, "kelp")
    assert (hit.key, hit.title) == ("cli:ada", "Sea")
    assert hit.message.session_id == session.id
    assert "kelp" in hit.snippet
    assert len(hit.snippet) < 200


async def test_at_most_as_many_hits_as_asked_for(store: Store, node: Node) -> None:
    await begin(store, node, *["kelp"] * 30)
    assert len(await store.search(OWNER, "kelp")) == 20
    assert len(await store.search(OWNER, "kelp", limit=3)) == 3
    assert len(await store.search(OWNER, "kelp", limit=50)) == 30
    await store.repair()
    assert len(await store.search(OWNER, "kelp", limit=3)) == 3


async def test_what_left_the_context_is_still_found(store: Store, node: Node) -> None:
    begun = await begin(store, node, "kelp")
    await store.append_draft(begun.lease, draft(0, "kelp is"))
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
    await store.exclude(OWNER, begun.session.conversation_id, [1], "wrong")
    await store.end_session(OWNER, begun.session.id, "new")
    hits = await store.search(OWNER, "kelp")
    assert {hit.message.status for hit in hits} == {MessageStatus.COMPLETED, MessageStatus.INTERRUPTED}


@pytest.mark.parametrize("repaired", [True, False])
async def test_deleted_text_is_found_no_more(store: Store, node: Node, repaired: bool) -> None:
    first = (await say(store, node, "kelp one", "noted")).session
    second = (await say(store, node, "kelp two", "noted")).session
    if repaired:
        await store.repair()
    assert len(await store.search(OWNER, "kelp")) == 2
    await store.delete_message(OWNER, first.conversation_id, 1)
    assert [h.message.content()["content"] for h in await store.search(OWNER, "kelp")] == ["kelp two"]
    await store.delete_conversation(OWNER, second.conversation_id)
    assert await store.search(OWNER, "kelp") == []
    assert await store.search(None, "two") == []
    await say(store, node, "kelp three", "noted")
    assert [h.message.content()["content"] for h in await store.search(OWNER, "kelp")] == ["kelp three"]


async def test_deleted_hits_do_not_push_living_ones_out(store: Store, node: Node) -> None:
    doomed = (await begin(store, node, *["kelp kelp kelp"] * 30)).session
    survivor = (await begin(store, node, "some words about seaweed, of which kelp is one")).session
    await store.repair()
    await store.delete_conversation(OWNER, doomed.conversation_id)
    (hit,) = await store.search(OWNER, "kelp", limit=5)
    assert hit.message.conversation_id == survivor.conversation_id


async def test_a_search_has_limits_and_says_so(store: Store, node: Node) -> None:
    await say(store, node, "kelp and tide")
    assert len(await store.search(OWNER, "kelp " * 200)) == 1  # a word that is repeated is one word
    with pytest.raises(BadInput, match="at most 50 different words, this one has 51"):
        await store.search(OWNER, " ".join(f"w{number}" for number in range(51)))
    with pytest.raises(BadInput, match="at most 1,000 characters, this one has 10,000"):
        await store.search(OWNER, "kelp " * 2_000)


async def test_nothing_waits_for_searches(store: Store, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that stand still, more of them than any engine has threads: everything else goes on."""
    owners = [f"owner{number}" for number in range(12)]
    for owner in owners:
        await say(store, node, "kelp", owner=owner)
    go_on, looking = threading.Event(), threading.Event()

    def stand_still(*given: Any, **more: Any) -> str:
        looking.set()
        assert go_on.wait(60)
        return ""

    _patch_snippets(monkeypatch, stand_still)
    searches = [asyncio.create_task(store.search(owner, "kelp")) for owner in owners]
    try:
        assert await asyncio.to_thread(looking.wait, 30)
        session = (await say(store, node, "hello", "hi")).session
        assert await context_of(store, session.id) == ["hello", "hi"]
        assert len((await store.messages(OWNER, session.conversation_id)).items) == 2
    finally:
        go_on.set()
        await asyncio.gather(*searches, return_exceptions=True)


async def test_a_search_that_takes_too_long_is_stopped(
    store: Store, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(store, node, *["kelp"] * 5)
    monkeypatch.setattr(search_terms, "SEARCH_SECONDS", 0.3)

    def slow(*given: Any, **more: Any) -> str:
        time.sleep(0.5)
        return ""

    _patch_snippets(monkeypatch, slow)
    with pytest.raises(SearchTimeout, match=r"longer than 0\.3 seconds"):
        await store.search(OWNER, "kelp")
    monkeypatch.undo()
    assert len(await store.search(OWNER, "kelp")) == 5


async def test_an_operator_finds_the_messages_of_every_owner(store: Store, node: Node) -> None:
    for number in range(5):
        await say(store, node, f"kelp {number}", "noted", owner=f"owner{number}")
    await store.repair()
    await say(store, node, "kelp of late", "noted")
    assert len(await store.search(None, "kelp")) == 6
    assert len(await store.search(None, "kelp", limit=3)) == 3
    assert len(await store.search(None, "noted", limit=100)) == 6


def _patch_snippets(monkeypatch: pytest.MonkeyPatch, snippet: Any) -> None:
    for module in ("holdfast.store.sqlite.search", "holdfast.store.postgres.search"):
        monkeypatch.setattr(f"{module}.snippet", snippet)


@pytest.mark.parametrize("indexed", [True, False])
async def test_a_search_filters_by_role_source_and_date(
    store: Store, node: Node, clock: Clock, indexed: bool
) -> None:
    await say(store, node, "kelp one", "kelp is an alga", source="cli")
    since = clock.move(hours=2)
    await say(store, node, "kelp two", "noted", source="cli")
    await say(store, node, "kelp three", "kelp again", source="web")
    await say(store, node, "kelp of another", "kelp", source="web", owner=OTHER)
    if indexed:
        await store.repair()

    async def found(**wanted: Any) -> list[str]:
        hits = await store.search(OWNER, "kelp", wanted=SearchFilter(**wanted))
        return sorted(hit.message.content()["content"] for hit in hits)

    assert await found(role="assistant") == ["kelp again", "kelp is an alga"]
    assert await found(source="web") == ["kelp again", "kelp three"]
    assert await found(since=since) == ["kelp again", "kelp three", "kelp two"]
    assert await found(role="user", source="cli", since=since) == ["kelp two"]
    assert await found(role="tool") == await found(source="') OR 1=1 --") == []
    assert len(await store.search(None, "kelp", wanted=SearchFilter(source="web"))) == 4


@pytest.mark.parametrize("indexed", [True, False])
async def test_filtered_hits_are_all_counted_however_many_others_match_better(
    store: Store, node: Node, indexed: bool
) -> None:
    few = await begin(store, node, *["some words about seaweed, of which kelp is one"] * 7, source="web")
    await begin(store, node, *["kelp kelp kelp"] * 1_100, source="cli")
    if indexed:
        await store.repair()
    page = await store.search_page(OWNER, "kelp", SearchFilter(source="web"), limit=5)
    rest = await store.search_page(OWNER, "kelp", SearchFilter(source="web"), skip=5, limit=5)
    hits = [*page.hits, *rest.hits]
    assert {hit.message.conversation_id for hit in hits} == {few.session.conversation_id}
    assert sorted(hit.message.seq for hit in hits) == list(range(1, 8))
    assert [(each.number, each.has_more) for each in (page, rest)] == [(7, False), (7, False)]
    everything = await store.search_page(OWNER, "kelp", limit=1)
    assert (len(everything.hits), everything.number, everything.has_more) == (1, 1_000, True)


@pytest.mark.parametrize("indexed", [True, False])
async def test_pages_of_hits_follow_each_other_without_gap_or_repeat(
    store: Store, node: Node, indexed: bool
) -> None:
    begun = await begin(store, node, *[f"kelp {number}" for number in range(30)])
    if indexed:
        await store.repair()
    await store.delete_message(OWNER, begun.session.conversation_id, 4)
    pages = [await store.search_page(OWNER, "kelp", skip=skip, limit=10) for skip in (0, 10, 20, 30)]
    assert [len(page.hits) for page in pages] == [10, 10, 9, 0]
    assert {page.number for page in pages} == {29}
    seen = sorted(hit.message.seq for page in pages for hit in page.hits)
    assert seen == [number for number in range(1, 31) if number != 4]
