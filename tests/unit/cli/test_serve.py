"""A server that other machines reach does not start with a key that can be guessed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.cli.serve import keys_are_ready
from holdfast.domain.api_keys import Scope, new_key
from holdfast.errors import BadSetting
from holdfast.operations import Operations
from holdfast.settings import Settings, load
from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store

GOOD = "k" * 20
SHORT = "k" * 19


def settings_for(host: str, home: Path) -> Settings:
    return load(environment={"HOLDFAST_HOME": str(home)}, given={"server": {"host": host}})


@pytest.fixture
async def store(home: Path) -> AsyncIterator[Store]:
    opened = await open_store(home / "holdfast.db")
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    return tmp_path


async def test_a_short_key_is_refused_where_other_machines_reach_it(
    home: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for("0.0.0.0", home)
    key, token = new_key("default", Scope.ADMIN, (), store.now())
    await store.add_key(key, token.hash)  # another key that opens it makes the short one no better
    for short in ("a", SHORT, f"  {SHORT}  "):
        monkeypatch.setenv("HOLDFAST_API_KEY", short)
        with pytest.raises(BadSetting, match="use at least 20") as refused:
            await keys_are_ready(Operations(settings, store), settings)
        assert SHORT not in str(refused.value)
    monkeypatch.setenv("HOLDFAST_API_KEY", GOOD)
    await keys_are_ready(Operations(settings, store), settings)


async def test_blanks_are_no_key(home: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_API_KEY", "   ")
    with pytest.raises(BadSetting, match="no API key yet"):
        await keys_are_ready(Operations(settings_for("0.0.0.0", home), store), settings_for("0.0.0.0", home))


async def test_a_short_key_is_warned_about_on_the_loopback(
    home: Path, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for("127.0.0.1", home)
    with caplog.at_level(logging.WARNING):
        monkeypatch.setenv("HOLDFAST_API_KEY", GOOD)
        await keys_are_ready(Operations(settings, store), settings)
        assert not caplog.records
        monkeypatch.setenv("HOLDFAST_API_KEY", SHORT)
        await keys_are_ready(Operations(settings, store), settings)
    assert "only 19 characters" in caplog.text
    assert SHORT not in caplog.text
