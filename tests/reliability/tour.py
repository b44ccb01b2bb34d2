"""A program that uses every feature of a store while Python reports each file that is opened.

Prints the store's own files among them, one per line: there must be none, because only SQLite may open them.
With `--mistake` it opens the database itself at the end, to show that this is detected.

    python -m tests.reliability.tour DIRECTORY [--mistake]
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from holdfast.domain.conversations import Address
from holdfast.store.sqlite.engine import open_store
from holdfast.store.values import SessionFilter

from .records import OWNER
from .scribe import Scribe, Task

opened: list[str] = []


def watch(directory: Path) -> None:
    """From now on, note every file below `directory` that anything but SQLite opens."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = Path(os.fsdecode(arguments[0])).absolute()
            if path.parent == directory and path.name.startswith("holdfast.db"):
                opened.append(path.name)

    sys.addaudithook(hook)


async def tour(directory: Path) -> None:
    database = directory / "holdfast.db"
    await Scribe(Task(str(database), "tour", 1, turns=5, search=True), lambda record: None).run()
    store = await open_store(database)
    try:
        place = await store.resolve(OWNER, Address(key="chat:1"))
        await store.context(OWNER, place.tip.id)
        await store.sessions(SessionFilter(OWNER))
        await store.search(OWNER, "tour")
        await store.statistics(OWNER)
        await store.changed(store.version(), 0.01)
        await store.delete_message(OWNER, place.conversation.id, 1)
        await store.delete_conversation(OWNER, place.conversation.id)
        await store.repair()
        await store.check()
        await store.backup(directory / "copy.db")
    finally:
        await store.close()


def main(directory: Path, *, mistake: bool) -> None:
    watch(directory)
    asyncio.run(tour(directory))
    if mistake:
        os.close(os.open(directory / "holdfast.db", os.O_RDONLY))
    print("\n".join(opened))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), mistake="--mistake" in sys.argv)
