"""The comparison that all fault suites rely on detects every kind of damage."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.store.sqlite.engine import open_store

from .ledger import Comparison, Ledger, Verdict
from .scribe import Scribe, Task


async def written(tmp_path: Path) -> tuple[Path, Ledger]:
    """A store with a few conversations, and what was acknowledged of them."""
    database, ledger = tmp_path / "holdfast.db", Ledger()
    await Scribe(Task(str(database), "life", 1, turns=6), ledger.note).run()
    return database, ledger


async def compare(database: Path, ledger: Ledger) -> Verdict:
    store = await open_store(database)
    try:
        return await Comparison(ledger).run(store)
    finally:
        await store.close()


async def test_an_undamaged_store_is_clean(tmp_path: Path) -> None:
    verdict = await compare(*await written(tmp_path))
    assert verdict.clean, str(verdict)


A_REPLY = "(SELECT max(no) FROM messages WHERE role = 'assistant')"


@pytest.mark.parametrize(
    ("damage", "seen"),
    [
        pytest.param(f"DELETE FROM messages WHERE no = {A_REPLY}", "lost", id="a message gone"),
        pytest.param(
            "DELETE FROM messages WHERE no = (SELECT no FROM messages WHERE seq = 1 LIMIT 1)",
            "gaps",
            id="a number missing",
        ),
        pytest.param(
            f"""INSERT INTO messages (conversation, seq, session, turn, role, status, created_at, body)
            SELECT m.conversation, c.last_seq + 1, session, m.turn, role, status, m.created_at, body
            FROM messages m JOIN conversations c ON c.id = m.conversation WHERE m.no = {A_REPLY};
            UPDATE conversations SET last_seq = (SELECT max(seq) FROM messages WHERE conversation = id)""",
            "doubled",
            id="a message twice",
        ),
        pytest.param(
            f"""DROP TRIGGER messages_immutable;
            UPDATE messages SET body = CAST(replace(CAST(body AS TEXT), '"}}', '!"}}') AS BLOB)
            WHERE no = {A_REPLY}""",
            "lost",
            id="a body changed",
        ),
        pytest.param("DELETE FROM drafts", "lost", id="drafts gone"),
        pytest.param(
            "UPDATE turns SET status = 'running', ended_at = NULL WHERE no = (SELECT max(no) FROM turns)",
            "lost",
            id="a reply taken back",
        ),
        pytest.param("DELETE FROM messages WHERE role = 'tool'", "untruthful", id="a call left open"),
        pytest.param("UPDATE conversations SET holder = 'node_x'", "findings", id="a lease without a turn"),
    ],
)
async def test_damage_is_seen(tmp_path: Path, damage: str, seen: str) -> None:
    database, ledger = await written(tmp_path)
    connection = apsw.Connection(str(database))
    connection.execute(damage)
    assert connection.total_changes() > 0
    connection.close()
    verdict = await compare(database, ledger)
    assert getattr(verdict, seen), str(verdict)


async def test_two_turns_for_one_request_are_seen(tmp_path: Path) -> None:
    database, ledger = await written(tmp_path)
    request, turn = next(iter(ledger.turns.items()))
    other = next(known for known in ledger.turns.values() if known != turn)
    ledger._stands_for(request, other)
    assert (await compare(database, ledger)).doubled
