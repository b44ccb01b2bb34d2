"""A messaging platform in memory, with its limits and faults, and a connector to it: for tests of the
worker."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from holdfast.app import Holdfast, answer_with
from holdfast.connectors.base import ConnectorDown, MessageGone, SendFailed, Sink, WrongSignature
from holdfast.connectors.worker import Connectors, ConnectorWorker
from holdfast.domain.connectors import Incoming, IncomingKind, PlatformLimits
from holdfast.domain.nodes import NodeKind
from holdfast.models.base import Model
from holdfast.models.scripted import ScriptedModel
from holdfast.settings import TelegramSettings, load

NAME = "phone"


@dataclass
class Platform:
    """What people see, and what they wrote that was not fetched yet."""

    limits: PlatformLimits = field(default_factory=lambda: PlatformLimits(4096))
    chats: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """The bot's messages by chat, each by its id, in order."""
    sent: list[tuple[str, str]] = field(default_factory=list)
    """Every message that was ever sent, also if it was deleted: address and text."""
    edits: int = 0
    updates: asyncio.Queue[list[Incoming]] = field(default_factory=asyncio.Queue)
    down: str = ""
    faults: Iterator[Exception | str | timedelta | None] = field(default_factory=lambda: iter(()))
    """What happens to the next sends: an exception is raised; `lost`: it is accepted and its answer is
    lost; a time: the same, and so long is waited before the next try."""
    numbers: int = 0
    typed: int = 0

    def write(self, text: str, person: str = "42", *, id: str = "", **more: object) -> Incoming:
        """A person writes; the update is fetched by the next poll."""
        self.numbers += 1
        address = str(more.pop("address", f"dm:{person}"))
        event = Incoming(
            id or f"{address}/{self.numbers}",
            address,
            f"telegram:{address}",
            person,
            text,
            ordinal=self.numbers,
            **more,  # type: ignore[arg-type]
        )
        self.updates.put_nowait([event])
        return event

    def repeat(self, *events: Incoming) -> None:
        self.updates.put_nowait(list(events))

    def said(self, address: str = "dm:42") -> list[str]:
        return list(self.chats[address].values())


class PlatformConnector:
    """A connector to the platform in memory."""

    kind = "telegram"

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.limits = platform.limits

    async def run(self, sink: Sink) -> None:
        while True:
            if self.platform.down:
                raise ConnectorDown(self.platform.down)
            await sink.up()
            events = await self.platform.updates.get()
            cursor = str(int(sink.cursor or 0) + 1)
            try:
                await sink.receive(events, cursor)
            except BaseException:
                self.platform.updates.put_nowait(events)  # not acknowledged: the platform keeps it
                raise

    async def accept(self, headers: Mapping[str, str], body: bytes) -> Sequence[Incoming]:
        raise WrongSignature("never pushed")

    async def send(self, address: str, text: str, *, key: str, reply_to: str | None = None) -> str:
        assert len(text) <= self.limits.characters
        fault = next(self.platform.faults, None)
        if isinstance(fault, Exception):
            raise fault
        platform = self.platform
        platform.numbers += 1
        message_id = key if self.limits.deduplicates else f"m{platform.numbers}"
        if message_id not in platform.chats[address]:
            platform.chats[address][message_id] = text
            platform.sent.append((address, text))
        if fault is not None:
            raise SendFailed("it did not answer in time", fault if isinstance(fault, timedelta) else None)
        return message_id

    async def edit(self, address: str, message_id: str, text: str, *, key: str) -> None:
        if message_id not in self.platform.chats[address]:
            raise MessageGone("no such message")
        self.platform.edits += 1
        self.platform.chats[address][message_id] = text

    async def typing(self, address: str) -> None:
        self.platform.typed += 1

    async def react(self, address: str, message_id: str, reaction: str) -> None:
        return None

    async def close(self) -> None:
        return None


@asynccontextmanager
async def serving(
    directory: Path,
    platform: Platform,
    model: Model | None = None,
    settings: TelegramSettings | None = None,
    start: bool = True,
    **given: Mapping[str, object],
) -> AsyncIterator[ConnectorWorker]:
    """A node that runs the connector of this platform, as `holdfast serve` does."""
    loaded = load(
        environment={"HOLDFAST_HOME": str(directory)},
        given={"store": {"url": f"sqlite:///{directory / 'store.db'}"}, **given},
    )
    chosen = settings or TelegramSettings(kind="telegram", allow=("42", "43"))
    node = Holdfast(replace(loaded, connectors={}), kind=NodeKind.SERVER, catch_signals=False)
    await node.start()
    try:
        answer_with(node, model or ScriptedModel())
        worker = ConnectorWorker(NAME, chosen, PlatformConnector(platform), node)
        node.connectors = Connectors({NAME: worker})
        if start:
            worker.start()
        yield worker
    finally:
        await node.stop()


async def until(condition: Callable[[], object | Awaitable[object]], seconds: float = 60.0) -> None:
    """Wait for a condition, patiently: the machine may be busy."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)


__all__ = ["NAME", "IncomingKind", "Platform", "PlatformConnector", "serving", "until"]
