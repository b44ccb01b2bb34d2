"""Deliberate faults in quotas and search, to prove that the contract tests detect them."""

from pathlib import Path

import pytest

from holdfast.domain.nodes import Node
from holdfast.domain.turns import Lease
from holdfast.errors import QuotaExceeded
from holdfast.store import search_terms, turns
from holdfast.store.leases import write_under
from holdfast.store.rows import Row
from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store
from holdfast.store.transaction import Q, Transaction
from tests.contract import test_quotas, test_sqlite_search
from tests.contract.steps import only_sqlite


def quota_blocks_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quota is asked by everything that writes under a lease, replies too."""
    careful = write_under

    def careless(tx: Transaction, lease: Lease, *given: object, **more: object) -> Row:
        (held,) = tx.one(Q.conversation_bytes, id=lease.conversation_id) or (0,)
        tx.quotas.check_conversation(lease.conversation_id, held, 0)
        return careful(tx, lease, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(turns, "write_under", careless)


def search_over_all_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are indexed as they are; whose a message is, is only looked at in its row."""
    monkeypatch.setattr(search_terms, "mark_of", lambda owner: "")
    monkeypatch.setattr("holdfast.store.sqlite.search.mark_of", lambda owner: "")


@only_sqlite
async def test_a_quota_that_blocks_a_reply_is_seen(
    store: Store, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        quota_blocks_reply(broken)
        with pytest.raises(QuotaExceeded):
            await test_quotas.test_a_reply_that_has_begun_is_committed_whatever_its_size(store, node)


async def test_a_search_over_the_words_of_all_owners_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "store.db"
    store = await open_store(database)

    async def opening() -> Store:
        return store

    try:
        with monkeypatch.context() as broken:
            search_over_all_owners(broken)
            with pytest.raises(AssertionError):
                await test_sqlite_search.test_no_word_of_the_index_is_shared_by_two_owners(database, opening)
    finally:
        await store.close()
