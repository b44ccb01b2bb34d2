"""pytest plugin: the SDK's own session tests, with `HoldfastSession` wherever they make a `SQLiteSession`.

Loaded with `-p`, before the tests are imported. `HOLDFAST_PEERS_STORE` is the URL of the store.
"""

import os
import uuid
from pathlib import Path
from typing import Any

import agents
import agents.memory
import pytest

from holdfast.adapters.bridge import Bridge, Conversation
from holdfast.adapters.openai_agents import SOURCE, HoldfastSession

SQLITE = "tests SQLiteSession's own connections, locks or tables"
SKIPPED = {
    "test_sqlite_session_close_closes_worker_thread_connections": SQLITE,
    "test_sqlite_session_reaps_connections_from_exited_worker_threads": SQLITE,
    "test_sqlite_session_closes_retired_connections_before_the_next_allocation": SQLITE,
    "test_sqlite_session_keeps_connections_of_live_worker_threads": SQLITE,
    "test_sqlite_session_pop_item_skips_corrupt_most_recent": SQLITE,
    "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows": SQLITE,
    "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows": SQLITE,
    "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows": SQLITE,
    "test_sqlite_session_file_lock_is_shared_across_instances": SQLITE,
    "test_sqlite_session_failed_add_items_releases_write_lock": SQLITE,
    "test_sqlite_session_failed_clear_session_rolls_back": SQLITE,
    "test_sqlite_session_failed_pop_item_releases_write_lock": SQLITE,
    "test_sqlite_session_rollback_failure_evicts_connection": SQLITE,
    "test_sqlite_session_close_retries_quarantined_connection": SQLITE,
    "test_settled_pop_failure_invalidates_response_chain": SQLITE,
    "test_settled_clear_failure_invalidates_response_chain": SQLITE,
    "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome": SQLITE,
}

STORE = os.environ["HOLDFAST_PEERS_STORE"]


class SQLiteSession(HoldfastSession):
    """The constructor of the SDK's class over our store: a file is a namespace, `:memory:` a new one."""

    def __init__(
        self, session_id: str, db_path: str | Path = ":memory:", session_settings: Any = None, **_: Any
    ) -> None:
        super().__init__(session_id, STORE, session_settings=session_settings)
        file = uuid.uuid4().hex if str(db_path) == ":memory:" else str(db_path)
        self._conversation = Conversation(Bridge(STORE), SOURCE, f"{file}:{session_id}")


vars(agents)["SQLiteSession"] = SQLiteSession
vars(agents.memory)["SQLiteSession"] = SQLiteSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = getattr(item, "originalname", None) or item.name
        if reason := SKIPPED.get(name):
            item.add_marker(pytest.mark.skip(reason=reason))
