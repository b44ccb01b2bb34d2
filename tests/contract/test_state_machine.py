"""Both engines behave the same for any sequence of methods: Hypothesis searches for a difference.

Every step is one method, run on a SQLite store and on a PostgreSQL one with the same past, at the same time
of the same clock and with the same ids. Its result or error must be the same; so must its events, and at the
end all that can be read. In a soak, a difference is shrunk to the fewest steps that show it.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from holdfast.domain import ids
from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.conversations import Address
from holdfast.domain.flushes import Flush
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import Lease, TurnBegun, TurnFailure, TurnStatus
from holdfast.errors import HoldfastError
from holdfast.store.postgres.engine import open_store as open_postgres
from holdfast.store.sqlite.engine import open_store as open_sqlite
from holdfast.store.store import Store
from holdfast.store.values import Page, SessionFilter
from tests.conftest import DatabaseMaker
from tests.contract.steps import (
    FLUSHING,
    OTHER,
    OWNER,
    POLICIES,
    Clock,
    calling,
    draft,
    everything,
    new_node,
    request,
    result,
    to_message,
)

pytestmark = pytest.mark.postgres

SOAK = os.environ.get("HOLDFAST_TEST_SOAK") == "1"

keys = st.sampled_from([None, "cli:ada", "idle:1", "daily:1", "ärger"])
owners = st.sampled_from([OWNER, OWNER, OWNER, OTHER])
texts = st.sampled_from(["kelp", "kelp and tides", "Ärger", "a\u0001b", "日本", "kelp " * 200])
which = st.integers(0, 5)
"""One of the newest of its kind."""


async def found(store: Store, words: str) -> list[tuple[str, str, str | None]]:
    """What is found; which of it is told first is each engine's own."""
    hits = await store.search(None, words, limit=100)
    return sorted((hit.message.id, hit.snippet, hit.key) for hit in hits)


class TwoEngines(RuleBasedStateMachine):
    make_database: Callable[[], str]
    counts: dict[str, int]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory(
            dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        )
        self.clock = Clock(datetime(2026, 3, 1, 12, tzinfo=UTC))
        self.steps = 0
        self.seen_events = 0
        self.nodes: list[Any] = []
        self.leases: list[Lease] = []
        self.turns: list[str] = []
        self.sessions: list[str] = []
        self.conversations: list[str] = []
        self.flushes: list[Flush] = []
        self.memories: list[str] = []

    @initialize()
    def open(self) -> None:
        async def both() -> list[Store]:
            how: Any = {"clock": self.clock, "policies": POLICIES, "flushing": FLUSHING}
            path = Path(self.directory.name) / "store.db"
            return [await open_sqlite(path, **how), await open_postgres(type(self).make_database(), **how)]

        self.stores = self.runner.run(both())
        self.join()

    def teardown(self) -> None:
        try:
            if hasattr(self, "stores"):
                self.same(everything)
                self.same(lambda store: store.check())
                for words in ("kelp", "arger", "日本", "nothing"):
                    self.same(found, words)
        finally:
            for store in getattr(self, "stores", ()):
                self.runner.run(store.close())
            self.runner.close()
            self.directory.cleanup()

    # --- the same, twice --------------------------------------------------------------------------------

    def same(self, act: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        """Do it in both; returns the outcome, which must not differ. An expected refusal is one, too."""
        self.steps += 1
        outcomes = [self.runner.run(self.outcome(act, store, *given)) for store in self.stores]
        assert outcomes[0] == outcomes[1], f"{outcomes[0]!r:.2000}\n{outcomes[1]!r:.2000}"
        kind, value = outcomes[0]
        name = value[0].__name__ if kind == "refused" else kind
        self.counts[name] = self.counts.get(name, 0) + 1
        return None if kind == "refused" else value

    async def outcome(self, act: Callable[..., Awaitable[Any]], *given: Any) -> tuple[str, Any]:
        ids._ready[:] = [f"{self.steps:016x}{number:016x}" for number in reversed(range(256))]
        try:
            done = await act(*given)
            if isinstance(done, TurnBegun):  # PostgreSQL does not look: True there
                done = replace(done, may_have_memories=True)
            return "done", done
        except HoldfastError as refusal:
            return "refused", (type(refusal), str(refusal))

    def pick(self, known: list[Any], at: int, unknown: Any = None) -> Any:
        return known[-1 - at % len(known)] if known else unknown

    @invariant()
    def events_agree(self) -> None:
        if hasattr(self, "stores"):
            told = self.same(lambda store: store.events(owner=None, after=self.seen_events))
            self.seen_events = told[-1].id if told else self.seen_events

    # --- nodes and time ---------------------------------------------------------------------------------

    @rule()
    def join(self) -> None:
        node = self.same(new_node)
        self.nodes.append(node)

    @rule(at=which, how=st.sampled_from(["leave", "reap", "beat"]))
    def node_changes(self, at: int, how: str) -> None:
        node = self.pick(self.nodes, at)
        if how == "leave":
            self.same(lambda store: store.leave(node.id, "closed"))
        elif how == "reap":
            self.same(lambda store: store.reap(node.id, 0, "said so"))
        else:
            self.same(lambda store: store.beat(node.id))

    @rule()
    def sweep(self) -> None:
        left = self.same(lambda store: store.leftovers())
        for conversation_id in left.conversations:
            self.same(lambda store, id_: store.settle_conversation(id_), conversation_id)
        for session_id in left.sessions:
            self.same(lambda store, id_: store.reap_session(id_), session_id)
        for node_id in left.nodes:
            self.same(lambda store, id_: store.settle_node(id_), node_id)

    @rule(hours=st.sampled_from([0.01, 1, 3, 25]))
    def time_passes(self, hours: float) -> None:
        self.clock.move(hours=hours)

    @rule()
    def reset_what_is_due(self) -> None:
        self.same(lambda store: store.date_sessions())
        for session_id in self.same(lambda store: store.due_sessions()):
            self.same(lambda store, id_: store.reset_session(id_), session_id)

    # --- turns ------------------------------------------------------------------------------------------

    @rule(
        at=which, key=keys, owner=owners, said=texts, attached=st.booleans(),
        request_key=st.sampled_from([None, None, "r1", "r2"]),
        by=st.sampled_from(["key", "session", "alias"]),
    )  # fmt: skip
    def begin_turn(
        self,
        at: int,
        key: str | None,
        owner: str,
        said: str,
        attached: bool,
        request_key: str | None,
        by: str,
    ) -> None:
        name: dict[str, Any] = {"key": key}
        if by == "session" and self.sessions:
            name = {"id": self.pick(self.sessions, at)}
        elif by == "alias":
            name = {"id": "telegram-42"}
        asked = request(
            self.pick(self.nodes, at),
            said,
            owner=owner,
            attached=attached,
            turn_id=f"turn_{self.steps:032x}",
            request_key=RequestKey("/r", request_key, said.encode()[:8]) if request_key else None,
            **name,
        )
        begun = self.same(lambda store: store.begin_turn(asked))
        if isinstance(begun, TurnBegun):
            self.leases.append(begun.lease)
            self.turns.append(begun.turn.id)
            self.sessions.append(begun.session.id)
            self.conversations.append(begun.session.conversation_id)

    @rule(at=which, key=keys, text=texts)
    def whole_turn(self, at: int, key: str | None, text: str) -> None:
        self.join()
        self.begin_turn(0, key, OWNER, text, False, None, "key")
        self.turn_ends(0, text, "reply")

    @rule(at=which, what=st.sampled_from(["call", "result", "text", "draft"]), text=texts)
    def says(self, at: int, what: str, text: str) -> None:
        lease = self.pick(self.leases, at)
        if lease is None:
            return
        if what == "draft":
            self.same(lambda store: store.append_draft(lease, draft(self.steps, text)))
            return
        said: Any = {"call": calling("a", "b"), "result": result("a"), "text": text}[what]
        self.same(lambda store: store.append(lease, [to_message(said, "assistant")]))

    @rule(at=which, text=texts, how=st.sampled_from(["reply", "reply", "reply", *TurnStatus]))
    def turn_ends(self, at: int, text: str, how: str) -> None:
        lease = self.pick(self.leases, at)
        if lease is None:
            return
        if how == "reply":
            usage = {"prompt_tokens": 3, "completion_tokens": 4}
            messages = [to_message(text, "assistant")]
            self.same(lambda store: store.commit_reply(lease, messages, usage=usage, answer=b'{"id":"x"}'))
        elif how in (TurnStatus.INTERRUPTED, TurnStatus.FAILED, TurnStatus.CANCELLED):
            self.same(
                lambda store: store.settle_turn(lease, TurnFailure(TurnStatus(how), error="it stopped"))
            )
        else:
            turn = self.pick(self.turns, at)
            self.same(lambda store: store.cancel_turn(None, turn, TurnStatus.INTERRUPTED, "enough"))

    # --- sessions and conversations ---------------------------------------------------------------------

    @rule(at=which, key=keys, attached=st.booleans())
    def open_session(self, at: int, key: str | None, attached: bool) -> None:
        node = self.pick(self.nodes, at)
        opened = self.same(
            lambda store: store.open_session(OWNER, Address(key=key), node.id, attached=attached)
        )
        self.note(opened)

    @rule(at=which, reason=st.sampled_from(["closed", "new", "completed"]), owner=owners)
    def end_session(self, at: int, reason: str, owner: str) -> None:
        session = self.pick(self.sessions, at, "sess_none")
        self.same(lambda store: store.end_session(owner, session, reason))

    @rule(
        at=which,
        other=which,
        how=st.sampled_from(["resume", "fork"]),
        up_to=st.sampled_from([None, 1, 2, 99]),
    )
    def goes_on_elsewhere(self, at: int, other: int, how: str, up_to: int | None) -> None:
        session, node = self.pick(self.sessions, at, "sess_none"), self.pick(self.nodes, other)
        if how == "resume":
            self.note(self.same(lambda store: store.resume_session(OWNER, session, node.id)))
        else:
            self.note(self.same(lambda store: store.fork(OWNER, session, node.id, up_to=up_to)))

    def note(self, session: Any) -> None:
        if session is not None:
            self.sessions.append(session.id)
            self.conversations.append(session.conversation_id)

    @rule(at=which, text=texts)
    def create_conversation(self, at: int, text: str) -> None:
        node = self.pick(self.nodes, at)
        made = self.same(
            lambda store: store.create_conversation(
                OWNER, node.id, messages=[to_message(text)], metadata={"a": "b"}
            )
        )
        if made is not None:
            self.conversations.append(made.id)
            self.sessions.append(made.tip_id)

    @rule(
        at=which, seq=st.integers(0, 4), owner=owners,
        what=st.sampled_from(
            ["exclude", "delete", "delete all", "title", "alias", "add", "remember", "notice"]
        ),
    )  # fmt: skip
    def conversation_changes(self, at: int, seq: int, owner: str, what: str) -> None:
        id_, node = self.pick(self.conversations, at, "conv_none"), self.pick(self.nodes, at)
        acts: dict[str, Callable[[Store], Awaitable[Any]]] = {
            "exclude": lambda store: store.exclude(owner, id_, [seq], "wrong"),
            "delete": lambda store: store.delete_message(owner, id_, seq),
            "delete all": lambda store: store.delete_conversation(owner, id_),
            "title": lambda store: store.set_title(owner, id_, f"title {seq}"),
            "alias": lambda store: store.add_alias(owner, "telegram-42", id_),
            "add": lambda store: store.add_messages(owner, id_, node.id, [to_message("more kelp")]),
            "remember": lambda store: store.remember(owner, id_, f"likes kelp {seq}"),
            "notice": lambda store: store.add_notice(owner, id_, "test", "look"),
        }
        done = self.same(acts[what])
        if what == "remember" and done is not None:
            self.memories.append(done.id)

    # --- memory, keys, care -----------------------------------------------------------------------------

    @rule(at=which, how=st.sampled_from(["finish", "nothing", "fail", "bury", "release"]))
    def flush(self, at: int, how: str) -> None:
        node = self.pick(self.nodes, at)
        acts: dict[str, Callable[..., Awaitable[Any]]] = {
            "finish": lambda store, it: store.finish_flush(it, "a memory"),
            "nothing": lambda store, it: store.finish_flush(it, None),
            "fail": lambda store, it: store.fail_flush(it, "no", timedelta(minutes=1)),
            "bury": lambda store, it: store.fail_flush(it, "no", None),
            "release": lambda store, it: store.release_flush(it),
        }
        for claimed in self.same(lambda store: store.claim_flushes(node.id, together=2, per_minute=9)) or ():
            self.same(lambda store, it: store.flush_input(it.session_id), claimed)
            self.same(acts[how], claimed)

    @rule(at=which, how=st.sampled_from(["edit", "forget", "list", "retry"]))
    def memories_change(self, at: int, how: str) -> None:
        memory = self.pick(self.memories, at, "mem_none")
        if how == "edit":
            self.same(lambda store: store.edit_memory(OWNER, memory, "likes tides"))
        elif how == "forget":
            self.same(lambda store: store.forget_memory(OWNER, memory))
        elif how == "retry":
            self.same(lambda store: store.retry_flushes(None))
        else:
            self.same(lambda store: store.memories(None, words="kelp", limit=3))

    @rule(owner=owners)
    def keys_change(self, owner: str) -> None:
        key, token = new_key(owner, Scope.CHAT, (), self.clock())
        self.same(lambda store: store.add_key(key, token.hash))
        self.same(lambda store: store.keys(None))
        self.same(lambda store: store.revoke_key(key.id, OWNER))

    @rule(at=which, owner=st.sampled_from([None, OWNER, OTHER]), ended=st.sampled_from([None, True, False]))
    def read(self, at: int, owner: str | None, ended: bool | None) -> None:
        session = self.pick(self.sessions, at, "sess_none")
        conversation = self.pick(self.conversations, at, "conv_none")

        async def page(store: Store) -> Page[Any]:
            return await store.sessions(
                SessionFilter(owner, ended=ended, title="kelp" if at > 4 else None), limit=3
            )

        for act in (
            page,
            lambda store: store.context(owner, session),
            lambda store: store.resolve(owner, Address(id=session)),
            lambda store: store.judge_session(owner, session),
            lambda store: store.line(owner, conversation),
            lambda store: store.messages(owner, conversation, limit=4),
            lambda store: store.turns(owner, conversation),
            lambda store: store.notices(owner),
            lambda store: store.alive(owner),
            lambda store: store.statistics(owner),
            lambda store: store.flushes(owner),
        ):
            self.same(act)


@pytest.mark.timeout(0 if SOAK else 120)
@pytest.mark.parametrize(
    ("examples", "steps"), [(12, 25), pytest.param(300, 50, marks=pytest.mark.soak)], ids=["short", "soak"]
)
def test_both_engines_do_the_same(new_database: DatabaseMaker, examples: int, steps: int) -> None:
    counts: dict[str, int] = {}

    class Machine(TwoEngines):
        make_database = staticmethod(new_database)

    Machine.counts = counts
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            phases=list(Phase) if SOAK else [Phase.generate],
        ),
    )
    print(f"{sum(counts.values()):,} steps on both engines, 0 divergences: {counts}")
    assert counts["done"] > 100
