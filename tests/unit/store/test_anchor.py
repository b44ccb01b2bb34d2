"""The classic mistake, a closed handle of a file in use, costs nothing: the store simply goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

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
