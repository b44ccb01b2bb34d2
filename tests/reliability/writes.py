"""What the race scheduler runs: the initial states ("scenes"), and every writing method as one call in them.

Node A has begun everything that a scene holds; node B is another machine's. The first five scenes are one
conversation in different states, and all calls of `ACTS` are paired in them. The others add what a part of
holdfast needs; the calls of that part (`MORE`) are paired with each other and with the calls of `ACTS` that
share rows with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.domain.api_keys import ApiKey, RateLimits, Scope, new_key
from holdfast.domain.attachments import FileRef
from holdfast.domain.checkpoints import CheckpointWrite, NewCheckpoint
from holdfast.domain.compaction import Claim, CompactionFailure, CompactionStats, Trigger
from holdfast.domain.connectors import Batch, ConnectorClaim, ConnectorHealth, Incoming, SentPart
from holdfast.domain.conversations import Address
from holdfast.domain.flushes import Flush
from holdfast.domain.ids import new_id
from holdfast.domain.items import Item, PutItem
from holdfast.domain.memories import MemoryOrigin
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.processes import Process, ProcessState
from holdfast.domain.queue import QueuedTurn
from holdfast.domain.recovery import Cause, Origin, RequestToStore
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.session_messages import Named
from holdfast.domain.side_requests import SideText
from holdfast.domain.turns import Delivery, TurnBegun, TurnFailure, TurnRequest, TurnStatus
from holdfast.os_support import identity
from holdfast.store import nodes as node_writes
from holdfast.store.postgres.engine import PostgresStore
from holdfast.store.transaction import Transaction
from holdfast.store.values import Retention
from tests.contract.steps import Clock, begin, draft, request, say, to_message

OWNER = "ada"
CONNECTOR = "phone"
PLAIN = ("resting", "running", "interrupted", "ended", "due")
SCENES = (*PLAIN, "first", "queued", "waiting", "connected", "keyed", "framework")


@dataclass
class Scene:
    """What there is before two methods meet."""

    kind: str
    nodes: tuple[Node, Node]
    session: str = ""
    conversation: str = ""
    begun: TurnBegun | None = None
    notice: str = ""
    process: str = ""
    memory: str = ""
    claimed: Flush | None = None
    claim: Claim | None = None
    revision: int = 0
    queued: QueuedTurn | None = None
    connector: ConnectorClaim | None = None
    batch: Batch | None = None
    delivery: str = ""
    pairing: str = ""
    linked: str = ""
    unlinked: str = ""
    key: ApiKey | None = None

    @property
    def turn(self) -> TurnBegun:
        assert self.begun is not None
        return self.begun


Act = Callable[[Scene, PostgresStore, Node], Awaitable[Any]]
KEY = RequestKey("/r", "request", b"h" * 32)
CREATION = RequestKey("conversations", "1", b"1")
DAY = timedelta(days=1)
AT_ONCE = timedelta(0)
STORED = RequestToStore(b'{"surface":"chat","body":{}}', Origin.QUEUED, True)
COVERED = RequestToStore(b'{"surface":"chat","body":{}}', Origin.BACKGROUND, recover=True)
LIMITS = RateLimits(requests_per_minute=2, tokens_per_day=10)
LOGIN, ANOTHER_LOGIN = b"1" * 32, b"2" * 32


def _process(scene: Scene, store: PostgresStore, node: Node) -> Process:
    return Process(
        id=new_id("proc"),
        owner=OWNER,
        conversation_id="",
        session_id=scene.session,
        identity=replace(node.identity, pid=0, pid_start=""),
        command="make",
        cwd="/",
        state=ProcessState.STARTING,
        started_at=store.now(),
        supervisor=node.id,
    )


async def _compact(scene: Scene, store: PostgresStore, node: Node) -> Any:
    claimed = await store.claim_compaction(
        scene.session, node.id, timedelta(minutes=1), why=Trigger.BY_HAND, tokens=10, window=5
    )
    return claimed if not isinstance(claimed, Claim) else "claimed"


async def _finish(scene: Scene, store: PostgresStore, node: Node) -> Any:
    return scene.claimed and await store.finish_flush(scene.claimed, "likes kelp")


async def _release(scene: Scene, store: PostgresStore, node: Node) -> Any:
    return scene.claimed and await store.release_flush(scene.claimed)


async def _fail(scene: Scene, store: PostgresStore, node: Node) -> Any:
    return scene.claimed and await store.fail_flush(scene.claimed, "no", None)


async def _swap(scene: Scene, store: PostgresStore) -> Any:
    assert scene.claim is not None and scene.begun is not None
    facts = CompactionStats(Trigger.BY_HAND, 10, 5, 1)
    return await store.compact(scene.claim, scene.begun.session.view, scene.revision, facts)


ACTS: dict[str, Act] = {
    "begin": lambda c, s, n: s.begin_turn(request(n, "tide", key="cli:1", owner=OWNER)),
    "begin attached": lambda c, s, n: s.begin_turn(
        request(n, "tide", key="cli:1", owner=OWNER, attached=True)
    ),
    "begin by session": lambda c, s, n: s.begin_turn(request(n, "tide", id=c.session, owner=OWNER)),
    "begin with a request key": lambda c, s, n: s.begin_turn(
        request(n, "kelp", key="cli:1", owner=OWNER, request_key=KEY)
    ),
    "begin a new key": lambda c, s, n: s.begin_turn(request(n, "tide", key="cli:new", owner=OWNER)),
    "begin a new alias": lambda c, s, n: s.begin_turn(request(n, "tide", id="alias", owner=OWNER)),
    "retry": lambda c, s, n: s.begin_turn(
        replace(request(n, key="cli:1", owner=OWNER, answer_existing=True), resumes_turn=c.turn.turn.id)
    ),
    "answer again": lambda c, s, n: s.begin_turn(request(n, key="cli:1", owner=OWNER, answer_existing=True)),
    "append": lambda c, s, n: s.append(c.turn.lease, [to_message("step", "assistant")]),
    "draft": lambda c, s, n: s.append_draft(c.turn.lease, draft(7, "half")),
    "commit": lambda c, s, n: s.commit_reply(c.turn.lease, [to_message("done", "assistant")]),
    "settle": lambda c, s, n: s.settle_turn(c.turn.lease, TurnFailure(TurnStatus.FAILED, error="no")),
    "cancel": lambda c, s, n: s.cancel_turn(OWNER, c.turn.turn.id, TurnStatus.CANCELLED, "stop"),
    "interrupt": lambda c, s, n: s.cancel_turn(OWNER, c.turn.turn.id, TurnStatus.INTERRUPTED, "stop"),
    "open": lambda c, s, n: s.open_session(OWNER, Address(key="cli:1"), n.id, attached=True),
    "end": lambda c, s, n: s.end_session(OWNER, c.session, "new"),
    "resume": lambda c, s, n: s.resume_session(OWNER, c.session, n.id),
    "fork": lambda c, s, n: s.fork(OWNER, c.session, n.id, key="cli:fork"),
    "create": lambda c, s, n: s.create_conversation(OWNER, n.id, messages=[to_message("kelp")]),
    "create by key": lambda c, s, n: s.create_conversation(
        OWNER, n.id, messages=[to_message("kelp")], request_key=CREATION
    ),
    "add messages": lambda c, s, n: s.add_messages(OWNER, c.conversation, n.id, [to_message("more")]),
    "set metadata": lambda c, s, n: s.set_metadata(OWNER, c.conversation, {"a": n.kind.value}),
    "set title": lambda c, s, n: s.set_title(OWNER, c.conversation, n.kind.value),
    "add alias": lambda c, s, n: s.add_alias(OWNER, "alias", c.conversation),
    "exclude": lambda c, s, n: s.exclude(OWNER, c.conversation, [1, 2], "wrong"),
    "delete message": lambda c, s, n: s.delete_message(OWNER, c.conversation, 1),
    "delete": lambda c, s, n: s.delete_conversation(OWNER, c.conversation),
    "add notice": lambda c, s, n: s.add_notice(OWNER, c.conversation, "reset", "more"),
    "deliver": lambda c, s, n: s.deliver_notice(OWNER, c.notice),
    "claim notices": lambda c, s, n: s.claim_notices(10, timedelta(minutes=1), DAY),
    "beat": lambda c, s, n: s.beat(c.nodes[0].id),
    "leave": lambda c, s, n: s.leave(c.nodes[0].id, "closed"),
    "reap": lambda c, s, n: s.reap(c.nodes[0].id, 0, "silent"),
    "settle conversation": lambda c, s, n: s.settle_conversation(c.conversation),
    "reap session": lambda c, s, n: s.reap_session(c.session),
    "settle node": lambda c, s, n: s.settle_node(c.nodes[0].id),
    "reset": lambda c, s, n: s.reset_session(c.session),
    "date": lambda c, s, n: s.date_sessions(),
    "claim compaction": _compact,
    "compact": lambda c, s, n: _swap(c, s),
    "add process": lambda c, s, n: s.add_process(_process(c, s, n)),
    "end process": lambda c, s, n: s.end_process(c.process, ProcessState.EXITED, exit_code=0),
    "stop process": lambda c, s, n: s.request_stop(OWNER, c.process, "enough"),
    "claim process": lambda c, s, n: s.claim_process(c.process, n.id, c.nodes[0].id),
    "claim flushes": lambda c, s, n: s.claim_flushes(n.id, together=4, per_minute=100),
    "finish flush": _finish,
    "fail flush": _fail,
    "release flush": _release,
    "release flushes": lambda c, s, n: s.release_flushes(c.nodes[0].id, keep=()),
    "retry flush": lambda c, s, n: s.retry_flush(OWNER, c.session),
    "retry flushes": lambda c, s, n: s.retry_flushes(OWNER),
    "skip flush": lambda c, s, n: s.skip_flush(OWNER, c.session, "no"),
    "skip flushes": lambda c, s, n: s.skip_flushes(OWNER, s.now() + DAY, "no"),
    "remember": lambda c, s, n: s.remember(OWNER, c.conversation, "more", origin=MemoryOrigin.PERSON),
    "edit memory": lambda c, s, n: s.edit_memory(OWNER, c.memory, f"edited by {n.kind.value}"),
    "forget memory": lambda c, s, n: s.forget_memory(OWNER, c.memory),
    "prune": lambda c, s, n: s.prune(Retention(DAY, DAY, DAY, timedelta(microseconds=1))),
    "set key": lambda c, s, n: s.set_key(OWNER, c.conversation, "cli:new"),
}
"""Run in every plain scene."""


# --- queued turns and recovery -----------------------------------------------------------------------------


def _wanted(node: Node, text: str) -> TurnRequest:
    return replace(request(node, text, key="cli:1", owner=OWNER), stored=STORED)


def _starting(scene: Scene, node: Node) -> TurnRequest:
    assert scene.queued is not None
    return TurnRequest(scene.queued.turn.id, OWNER, node.id, Address(), (), starts_queued=True)


def _queued(scene: Scene) -> str:
    assert scene.queued is not None
    return scene.queued.turn.id


QUEUE: dict[str, Act] = {
    "enqueue": lambda c, s, n: s.enqueue_turn(_wanted(n, "more"), most=16),
    "steer": lambda c, s, n: s.enqueue_turn(_wanted(n, "rather"), most=16, steers=True),
    "start queued": lambda c, s, n: s.begin_turn(_starting(c, n)),
    "overtake": lambda c, s, n: s.begin_turn(
        replace(request(n, "now", key="cli:1", owner=OWNER), overtakes=True)
    ),
    "edit queued": lambda c, s, n: s.edit_queued(OWNER, _queued(c), [to_message(n.kind.value)]),
    "withdraw": lambda c, s, n: s.withdraw_queued(OWNER, _queued(c), "not now"),
    "withdraw all": lambda c, s, n: s.withdraw_queue(OWNER, c.conversation, "not now"),
    "take steering": lambda c, s, n: s.take_steering(c.turn.lease),
}

RECOVERY: dict[str, Act] = {
    "take up": lambda c, s, n: s.begin_turn(
        request(n, answer_existing=True, resumes_turn=c.turn.turn.id, by_recovery=True, owner=OWNER)
    ),
    "retry turn": lambda c, s, n: s.retry_turn(OWNER, c.turn.turn.id),
    "give up": lambda c, s, n: s.give_up_turn(c.turn.turn.id, "too often"),
    "wait again": lambda c, s, n: s.settle_turn(
        c.turn.lease, TurnFailure(TurnStatus.INTERRUPTED, error="down", cause=Cause.MODEL)
    ),
}

# --- connectors --------------------------------------------------------------------------------------------


def wrote(platform_id: str, person: str = "42") -> Incoming:
    return Incoming(platform_id, f"dm:{person}", f"telegram:dm:{person}", person, "hello")


def _held(scene: Scene) -> ConnectorClaim:
    assert scene.connector is not None
    return scene.connector


def _batch(scene: Scene) -> Batch:
    assert scene.batch is not None
    return scene.batch


CONNECTORS: dict[str, Act] = {
    "claim connector": lambda c, s, n: s.claim_connector(CONNECTOR, "telegram", n.id),
    "release connector": lambda c, s, n: s.release_connector(_held(c)),
    "note connector": lambda c, s, n: s.note_connector(_held(c), ConnectorHealth.DOWN, "refused"),
    "receive": lambda c, s, n: s.receive(CONNECTOR, [wrote("3")], ["42"], claimed=_held(c), cursor="7"),
    "take messages": lambda c, s, n: s.take_messages(
        _held(c), _batch(c).place.id, new_id("turn"), "telegram", AT_ONCE
    ),
    "steer by message": lambda c, s, n: s.steering_messages(_held(c), _batch(c).place.id, new_id("turn")),
    "add attachment": lambda c, s, n: s.add_attachment(
        _held(c), _batch(c), "1:photo", FileRef("photo", "kelp.png", "image/png"), b"kelp"
    ),
    "assign turn": lambda c, s, n: s.assign_turn(_held(c), _batch(c), _batch(c).turn_id),
    "settle messages": lambda c, s, n: s.settle_messages(_held(c), _batch(c), "no answer", "no"),
    "postpone messages": lambda c, s, n: s.postpone_messages(_held(c), _batch(c), DAY, "no"),
    "set home": lambda c, s, n: s.set_home("cli:1"),
    "clear home": lambda c, s, n: s.clear_home(),
    "new link": lambda c, s, n: s.new_link(OWNER, c.conversation, "AAAA-BBBB"),
    "link place": lambda c, s, n: s.link_place(_batch(c).place.id, "LINK-CODE", hears_all=True),
    "unlink place": lambda c, s, n: s.unlink_place(_batch(c).place.id),
    "link another place": lambda c, s, n: s.link_place(c.unlinked, "LINK-46", hears_all=True),
    "unlink another place": lambda c, s, n: s.unlink_place(c.linked),
    "ask pairing": lambda c, s, n: s.ask_pairing(CONNECTOR, wrote("9", "43"), "CCCC-DDDD"),
    "approve pairing": lambda c, s, n: s.approve_pairing("PAIR-CODE", OWNER, greeting="Welcome."),
    "revoke pairing": lambda c, s, n: s.revoke_pairing(c.pairing),
    "deliver reply": lambda c, s, n: s.deliver_reply(_held(c), c.conversation, c.turn.turn.id),
    "grow delivery": lambda c, s, n: s.grow_delivery(_held(c), _batch(c).place, c.turn.turn.id, "1"),
    "stop growing": lambda c, s, n: s.stop_growing(_held(c), c.delivery, "so far"),
    "claim deliveries": lambda c, s, n: s.claim_deliveries(_held(c)),
    "note parts": lambda c, s, n: s.note_parts(_held(c), c.delivery, [SentPart("m1", "x")]),
    "delivery sent": lambda c, s, n: s.delivery_sent(_held(c), c.delivery, [SentPart("m1", "x")]),
    "delivery failed": lambda c, s, n: s.delivery_failed(_held(c), c.delivery, 1, "503"),
    "retry delivery": lambda c, s, n: s.retry_delivery(OWNER, c.delivery),
}
MET_BY_CONNECTORS = (
    *("begin", "append", "commit", "settle", "cancel", "interrupt", "open", "end", "reset", "delete"),
    *("add notice", "deliver", "leave", "reap", "settle conversation", "settle node", "prune", "set key"),
)

# --- API keys and logins -----------------------------------------------------------------------------------


def _key(scene: Scene) -> ApiKey:
    assert scene.key is not None
    return scene.key


KEYS: dict[str, Act] = {
    "add key": lambda c, s, n: s.add_key(replace(_key(c), id=f"key_{'1' * 32}"), b"s" * 32),
    "revoke key": lambda c, s, n: s.revoke_key(_key(c).id, OWNER),
    "note key uses": lambda c, s, n: s.note_key_uses({_key(c).id: s.now() + DAY}),
    "count request": lambda c, s, n: s.count_request(_key(c).id, LIMITS),
    "spend tokens": lambda c, s, n: s.spend_tokens(_key(c).id, 7),
    "note reading": lambda c, s, n: s.note_reading(OWNER, _key(c).id),
    "add login": lambda c, s, n: s.add_login(ANOTHER_LOGIN, _key(c).id, DAY, 1),
    "end login": lambda c, s, n: s.end_login(LOGIN),
}

# --- what frameworks store, and what else people do to a conversation --------------------------------------

GRAPH = "cli:1"
STEP = NewCheckpoint("", "1", None, "run", "msgpack", "{}", b"state")


def _item(name: str, value: str | None, conversation_id: str | None = None) -> PutItem:
    return PutItem("space", "", name, value, conversation_id=conversation_id)


def _parts(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def _written(text: bytes) -> list[CheckpointWrite]:
    return [CheckpointWrite("task", 0, "channel", "", "msgpack", text, replaces=True)]


async def _appended(scene: Scene, store: PostgresStore, node: Node) -> Any:
    def counted(found: Sequence[Item | None]) -> list[PutItem]:
        (before,) = found
        number = len(before.value) if before else 0
        return [_item("kept", "1" * (number + 1), scene.conversation)]

    named = [Named(to_message("named"), "name")]
    return await store.append_with_items(
        OWNER, scene.conversation, node.id, named, [("space", "", "kept")], counted
    )


FRAMEWORK: dict[str, Act] = {
    "append named": lambda c, s, n: s.append_named(
        OWNER, c.conversation, n.id, [Named(to_message("named"), "name")]
    ),
    "append with items": _appended,
    "remove last": lambda c, s, n: s.remove_last(OWNER, c.conversation, 1),
    "replace messages": lambda c, s, n: s.replace_messages(
        OWNER, c.conversation, n.id, since=2, messages=[to_message("instead")]
    ),
    "replace all messages": lambda c, s, n: s.replace_messages(
        OWNER, c.conversation, n.id, since=1, messages=[]
    ),
    "update state": lambda c, s, n: s.update_state(OWNER, c.conversation, {n.kind.value: 1}),
    "put item": lambda c, s, n: s.put_items(OWNER, [_item("kept", n.kind.value * 3, c.conversation)]),
    "move item": lambda c, s, n: s.put_items(OWNER, [_item("kept", "moved")]),
    "delete item": lambda c, s, n: s.put_items(OWNER, [_item("kept", None)]),
    "renew item": lambda c, s, n: s.put_items(OWNER, [_item("expired", "renewed", c.conversation)]),
    "refresh items": lambda c, s, n: s.refresh_items(OWNER, "space", [("", "expired"), ("", "kept")]),
    "drop expired items": lambda c, s, n: s.drop_expired_items(10),
    "put checkpoint": lambda c, s, n: s.put_checkpoint(
        OWNER,
        GRAPH,
        "graph",
        n.id,
        replace(STEP, id="2", body=b"more state"),
        [Named(to_message("two"), "two")],
    ),
    "replace checkpoint": lambda c, s, n: s.put_checkpoint(
        OWNER, GRAPH, "graph", n.id, replace(STEP, body=n.kind.value.encode())
    ),
    "put writes": lambda c, s, n: s.put_checkpoint_writes(
        OWNER, GRAPH, "graph", "", "1", _written(n.kind.value.encode())
    ),
    "copy checkpoints": lambda c, s, n: s.copy_checkpoints(OWNER, GRAPH, "cli:copy", n.id),
    "delete checkpoints": lambda c, s, n: s.delete_checkpoints(OWNER, GRAPH, [("", "1")]),
    "delete runs": lambda c, s, n: s.delete_checkpoints_of_runs(OWNER, ["run"]),
    "rewind": lambda c, s, n: s.rewind(OWNER, c.conversation, 2),
    "rewind to the end": lambda c, s, n: s.rewind(OWNER, c.conversation, 5),
    "reduce": lambda c, s, n: s.reduce_message(OWNER, c.conversation, 5, to_message(_parts("high"))),
    "suggest title": lambda c, s, n: s.suggest_title(OWNER, c.conversation, n.kind.value),
    "note side request": lambda c, s, n: s.note_side_request(
        OWNER, c.conversation, "title", {}, SideText([{"role": "user", "content": "a title"}], "Tides", False)
    ),
    "note deliveries": lambda c, s, n: s.note_deliveries({c.turn.turn.id: Delivery.WHOLE}),
    "request stops": lambda c, s, n: s.request_stops(OWNER, c.conversation, "enough"),
    "pin process": lambda c, s, n: s.pin_process(OWNER, c.process, s.now() + DAY),
    "deliver notices": lambda c, s, n: s.deliver_notices(OWNER),
    "give up compaction": lambda c, s, n: _give_up(c, s),
}


async def _give_up(scene: Scene, store: PostgresStore) -> Any:
    assert scene.claim is not None
    return await store.give_up_compaction(scene.claim, CompactionFailure.SUMMARY_FAILED, Trigger.BY_HAND)


async def _frame(scene: Scene, store: PostgresStore, node: Node, clock: Clock) -> None:
    """A thread with a checkpoint, what a task wrote after it, and items, one of which has expired."""
    await store.add_messages(OWNER, scene.conversation, node.id, [to_message(_parts("high", "low"))])
    await store.put_checkpoint(OWNER, GRAPH, "graph", node.id, STEP)
    await store.put_checkpoint_writes(OWNER, GRAPH, "graph", "", "1", _written(b"written"))
    expiring = PutItem(
        "space", "", "expired", "expired", ttl=timedelta(minutes=1), conversation_id=scene.conversation
    )
    await store.put_items(OWNER, [_item("kept", "kept", scene.conversation), expiring, _item("free", "free")])
    clock.move(seconds=120)


REFUSED: dict[str, Act] = {"withdraw": lambda c, s, n: s.withdraw_refused(c.turn.lease)}
MORE: dict[str, tuple[dict[str, Act], tuple[str, ...]]] = {
    "first": (REFUSED, tuple(ACTS)),
    "framework": (FRAMEWORK, tuple(ACTS)),
    "queued": (QUEUE, tuple(ACTS)),
    "waiting": (RECOVERY, tuple(ACTS)),
    "connected": (CONNECTORS, MET_BY_CONNECTORS),
    "keyed": (KEYS, ("prune",)),
}
"""By scene: the calls that it is for, and those of ACTS that share rows with them."""
ALL_ACTS: dict[str, Act] = {**ACTS, **QUEUE, **RECOVERY, **CONNECTORS, **KEYS, **FRAMEWORK, **REFUSED}
MAY_SKIP = frozenset(
    {
        *("claim flushes", "retry flushes", "skip flushes", "prune", "date", "claim notices"),
        *("claim deliveries", "grow delivery", "drop expired items"),
    }
)
"""What another node is at right now is left to it: their next pass finds it. `grow delivery` may report a
reply as whole while its conversation is being deleted."""


def pairs_in(kind: str) -> Iterator[tuple[str, str]]:
    """The ordered pairs of calls that are run in this scene."""
    if kind in PLAIN:
        yield from ((first, second) for first in ACTS for second in ACTS if possible(kind, first, second))
        return
    own, met = MORE[kind]
    for first in own:
        yield from ((first, second) for second in own)
        yield from ((first, second) for second in met if possible(kind, second))
        yield from ((second, first) for second in met if possible(kind, second))


def count_pairs() -> int:
    return sum(1 for kind in SCENES for _ in pairs_in(kind))


def possible(kind: str, *acts: str) -> bool:
    return kind in ("resting", "framework") or "compact" not in acts  # it needs a claim, which these have


# --- making scenes -----------------------------------------------------------------------------------------


def _joining(node: Node) -> Callable[[Transaction], None]:
    """Joins without taking the node's lock: nobody probes it."""
    return lambda tx: node_writes.join(tx, node)


async def make_scene(kind: str, store: PostgresStore, clock: Clock) -> Scene:
    clock.now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    here = identity()
    nodes = (
        Node(new_id("node"), NodeKind.CLI, here),
        Node(new_id("node"), NodeKind.SERVER, replace(here, boot_id="b", machine="b")),
    )
    for node in nodes:
        await store._write(_joining(node))
    scene = Scene(kind, nodes)
    node = nodes[0]
    if kind == "first":  # its first turn runs, and it holds nothing else
        scene.begun = await begin(store, node, "kelp", key="cli:1", owner=OWNER, request_key=KEY)
        scene.session, scene.conversation = scene.turn.session.id, scene.turn.session.conversation_id
        clock.move(seconds=1)
        return scene
    source = "idle" if kind == "due" else "cli"
    said = await say(store, node, "hello", key="cli:1", owner=OWNER, attached=True, source=source)
    await say(store, node, "again", key="cli:1", owner=OWNER, attached=True)
    scene.session, scene.conversation = said.session.id, said.session.conversation_id
    scene.memory = (
        await store.remember(OWNER, scene.conversation, "likes tea", origin=MemoryOrigin.PERSON)
    ).id
    process = await store.add_process(_process(scene, store, node))
    await store.process_started(process.id, replace(here, pid=42, pid_start="1"))
    scene.process = process.id
    scene.begun = said
    if kind in ("running", "interrupted", "queued"):
        scene.begun = await begin(store, node, "kelp", key="cli:1", owner=OWNER, request_key=KEY)
        await store.append_draft(scene.begun.lease, draft(0, "so far"))
    if kind == "interrupted":
        await store.cancel_turn(OWNER, scene.turn.turn.id, TurnStatus.INTERRUPTED, "stop")
    if kind == "ended":
        await store.end_process(process.id, ProcessState.EXITED, exit_code=0)
        await store.end_session(OWNER, scene.session, "new")
        (scene.claimed,) = await store.claim_flushes(node.id, together=4, per_minute=100)
    if kind == "queued":
        scene.queued = await store.enqueue_turn(_wanted(node, "later"), most=16)
        await store.enqueue_turn(_wanted(node, "mind the tide"), most=16, steers=True)
    if kind == "waiting":
        scene.begun = await begin(store, node, "kelp", key="cli:1", owner=OWNER, stored=COVERED)
        failure = TurnFailure(TurnStatus.INTERRUPTED, error="down", cause=Cause.MODEL)
        await store.settle_turn(scene.turn.lease, failure)
    if kind == "connected":
        await _connect(scene, store, node)
    if kind == "keyed":
        scene.key, _ = new_key(OWNER, Scope.CHAT, (), store.now(), limits=LIMITS)
        await store.add_key(scene.key, b"t" * 32)
        await store.count_request(scene.key.id, LIMITS)
        await store.add_login(LOGIN, scene.key.id, DAY, 1)
    scene.notice = (await store.add_notice(OWNER, scene.conversation, "reset", "told")).id
    if kind == "framework":
        await _frame(scene, store, node, clock)
    if kind in ("resting", "framework"):
        claimed = await store.claim_compaction(
            scene.session, node.id, timedelta(minutes=1), why=Trigger.BY_HAND, tokens=9, window=5
        )
        assert isinstance(claimed, Claim)
        scene.claim = claimed
        scene.revision = (await store.outline(None, scene.session)).revision
    if kind in ("due", "ended"):
        clock.move(hours=30)
    return scene


async def _connect(scene: Scene, store: PostgresStore, node: Node) -> None:
    """A place that is linked to the conversation: its first message has a turn that runs, its second waits;
    the notice of the scene is to be sent there. A stranger waits to be let in."""
    claimed = await store.claim_connector(CONNECTOR, "telegram", node.id)
    assert isinstance(claimed, ConnectorClaim)
    scene.connector = claimed
    await store.ask_pairing(CONNECTOR, wrote("0"), "LET-ME-IN")
    await store.approve_pairing("LET-ME-IN", OWNER, "cli:1")
    await store.receive(CONNECTOR, [wrote("1"), wrote("2")], [], claimed=claimed)
    (place, _), *_ = await store.waiting_places(CONNECTOR)
    await store.new_link(OWNER, scene.conversation, "LINK-CODE")
    batch = await store.take_messages(claimed, place, new_id("turn"), "telegram", AT_ONCE)
    assert isinstance(batch, Batch)
    scene.batch = batch
    scene.begun = await begin(store, node, "hello", id=scene.conversation, owner=OWNER, turn_id=batch.turn_id)
    grown = await store.grow_delivery(claimed, batch.place, batch.turn_id, "1")
    assert grown is not None
    scene.delivery = grown.id
    await store.ask_pairing(CONNECTOR, wrote("8", "44"), "PAIR-CODE")
    for person in ("45", "46"):
        await store.ask_pairing(CONNECTOR, wrote("0", person), f"LET-IN-{person}")
        await store.approve_pairing(f"LET-IN-{person}", OWNER, f"telegram:dm:{person}")
        await store.new_link(OWNER, scene.conversation, f"LINK-{person}")
    others = {each.address: each.id for each in await store.places_of(OWNER)}
    scene.linked, scene.unlinked = others["dm:45"], others["dm:46"]
    await store.link_place(scene.linked, "LINK-45", hears_all=True)
    scene.pairing = next(each.id for each in await store.pairings() if each.person == "44")
