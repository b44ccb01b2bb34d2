"""The copies that tests begin with never overwrite a store that another process makes at the same moment."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node, NodeKind
from holdfast.os_support import identity
from holdfast.store.sqlite.engine import open_store
from tests import new_stores


async def test_a_store_made_between_the_look_and_the_copy_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, look, looks = tmp_path / "shared.db", new_stores._made, 0

    def look_and_be_late(connection: apsw.Connection) -> bool:
        nonlocal looks
        looks, seen = looks + 1, look(connection)
        if looks == 1:
            new_stores.made_by(apsw.Connection(str(database)), database, 7)
        return seen

    monkeypatch.setattr(new_stores, "_made", look_and_be_late)
    store = await open_store(database)
    try:
        await store.join(Node(new_id("node"), NodeKind.LIBRARY, identity()))
    finally:
        await store.close()
    made_at = apsw.Connection(str(database)).execute("SELECT created_at FROM store").get
    assert (looks, made_at) == (2, 7)
