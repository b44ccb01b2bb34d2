"""The classic mistake, a closed handle of a file in use, costs nothing: the store simply goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.domain.nodes import Liveness

OUTSIDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT 1 FROM nodes")
connection.close()
"""


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
async def test_a_stray_close_does_not_let_an_outsider_delete_the_log(tmp_path: Path, ending: str) -> None:
    database = tmp_path / "agent.db"
    async with holdfast.open(f"sqlite:///{database}") as hf:
        session = await hf.session("k")
        inode = Path(f"{database}-wal").stat().st_ino
        for number in range(5):
            async with session.turn(f"message {number}") as turn:
                Path(f"{database}{ending}").open("rb").close()  # what a checksum or a backup tool would do
                subprocess.run([sys.executable, "-c", OUTSIDER, str(database)], check=True)
                await turn.append("noted")
        assert Path(f"{database}-wal").stat().st_ino == inode
        assert len(await session.messages()) == 10
    assert not Path(f"{database}-wal").exists(), "the last one to leave tidies up"


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
@pytest.mark.parametrize("link", ["directory", "file"])
async def test_a_stray_close_costs_nothing_behind_a_link_either(
    tmp_path: Path, ending: str, link: str
) -> None:
    (tmp_path / "real").mkdir()
    if link == "directory":
        (tmp_path / "link").symlink_to(tmp_path / "real")
        database = tmp_path / "link" / "agent.db"
    else:
        database = tmp_path / "agent.db"
        database.symlink_to(tmp_path / "real" / "agent.db")
    real = tmp_path / "real" / "agent.db"
    async with holdfast.open(f"sqlite:///{database}") as hf:
        session = await hf.session("k")
        inode = Path(f"{real}-wal").stat().st_ino
        for number in range(3):
            async with session.turn(f"message {number}") as turn:
                Path(f"{real}{ending}").open("rb").close()
                subprocess.run([sys.executable, "-c", OUTSIDER, str(database)], check=True)
                await turn.append("noted")
        assert Path(f"{real}-wal").stat().st_ino == inode
        assert len(await session.messages()) == 6


async def test_every_name_of_a_store_leads_to_the_same_locks(tmp_path: Path) -> None:
    """A node that joined by one name is alive to a process that opened the store by another."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "agent.db"
    link.symlink_to(tmp_path / "real" / "agent.db")
    async with holdfast.open(f"sqlite:///{link}") as by_link:
        async with holdfast.open(f"sqlite:///{tmp_path / 'real' / 'agent.db'}") as by_name:
            assert by_link.store.location == by_name.store.location
            probed = await by_name.store.probe(await by_name.store.nodes())
            assert {alive for alive, _ in probed.values()} == {Liveness.ALIVE}
            assert by_link.node_id in probed
    assert {path.name for path in tmp_path.iterdir()} == {"real", "agent.db"}


async def test_two_stores_of_one_process_are_anchored_until_the_last_has_left(tmp_path: Path) -> None:
    database = tmp_path / "agent.db"
    async with holdfast.open(f"sqlite:///{database}") as staying:
        async with holdfast.open(f"sqlite:///{database}"):
            pass
        session = await staying.session("k")
        for ending in ("", "-shm"):
            Path(f"{database}{ending}").open("rb").close()
        subprocess.run([sys.executable, "-c", OUTSIDER, str(database)], check=True)
        async with session.turn("still here") as turn:
            await turn.append("of course")
    assert not Path(f"{database}-wal").exists()
