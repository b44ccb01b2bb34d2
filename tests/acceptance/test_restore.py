"""A restore, rehearsed as the how-to tells it: back up a server that is talking, lose everything, go on.

What was acknowledged before the backup began is in it, under the same ids; what came later is not.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import apsw
import pytest

from .command import Home, until
from .serving import Serving, serving

PEOPLE = ("ada", "grace", "mary")


def test_the_command_restores_a_backup_and_keeps_what_it_replaces(home: Home, tmp_path: Path) -> None:
    copy = tmp_path / "backup.db"
    home.ok("run", "--key", "cli:ada", "before")
    home.ok("backup", str(copy))
    home.ok("run", "--key", "cli:ada", "after")
    with serving(home):
        refused = home.run("restore", str(copy))
        assert refused.returncode == 1 and "1 process still uses this store" in refused.stderr
        missing = home.run("restore", str(tmp_path / "mispelt.db"))
        assert missing.returncode == 1 and f"there is no file {tmp_path / 'mispelt.db'}" in missing.stderr
        assert "process" not in missing.stderr, "nobody stops a server for nothing"
    assert "1 conversation, 2 messages" in home.ok("restore", str(copy))
    assert "before" in (said := home.ok("sessions", "messages", "cli:ada")) and "after" not in said
    (aside,) = home.path.glob("holdfast.db.replaced-*")
    assert "after" in home.ok("sessions", "messages", "cli:ada", "--store", f"sqlite:///{aside}/holdfast.db")
    assert home.ok("doctor").endswith("No problems found.\n")
    home.ok("run", "--key", "cli:ada", "goes on")


def test_a_store_that_is_lost_or_damaged_is_restored(home: Home, tmp_path: Path) -> None:
    copy = tmp_path / "backup.db"
    home.ok("run", "--key", "cli:ada", "before")
    home.ok("backup", str(copy))
    home.store.write_bytes(b"not a database" * 1000)
    done = home.run("restore", str(copy))
    assert done.returncode == 0, done.stderr
    assert "cannot be opened, and is moved aside" in done.stderr
    shutil.rmtree(home.path)
    assert "1 conversation, 2 messages" in home.ok("restore", str(copy))


@pytest.mark.parametrize("step", ["os.link", "pathlib.Path.rename", "pathlib.Path.replace"])
def test_a_restore_that_is_killed_leaves_the_old_store_whole(home: Home, tmp_path: Path, step: str) -> None:
    """Killed at each step that changes a name, the store is not missing, which would begin an empty one."""
    copy = tmp_path / "backup.db"
    home.ok("run", "--key", "cli:ada", "before")
    home.ok("backup", str(copy))
    home.ok("run", "--key", "cli:ada", "after")
    dying = (
        "import os, pathlib, signal, sys\n"
        "from holdfast.store.sqlite.restore import restore\n"
        f"{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "restore(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))\n"
    )
    done = subprocess.run([sys.executable, "-c", dying, copy, home.store], check=False)
    assert done.returncode == -signal.SIGKILL
    assert "after" in home.ok("sessions", "messages", "cli:ada")
    assert "1 conversation, 2 messages" in home.ok("restore", str(copy))


def test_only_a_sound_store_is_restored(home: Home, tmp_path: Path) -> None:
    home.ok("run", "hello")
    before = home.store.read_bytes()
    other = tmp_path / "other.db"
    foreign = apsw.Connection(str(other))
    foreign.execute("CREATE TABLE t (x)")
    foreign.close()
    (tmp_path / "text").write_text("no database, but long enough for its header to be read " * 20)
    for name, said in (
        ("other.db", "is not a store of holdfast"),
        ("text", "is not a store"),
        ("no", "no file"),
    ):
        done = home.run("restore", str(tmp_path / name))
        assert done.returncode == 1 and said in done.stderr, done.stderr
    assert home.store.read_bytes() == before
    assert not list(home.path.glob("*.replaced-*"))


class Chatter(threading.Thread):
    """Somebody who does not stop talking."""

    def __init__(self, server: Serving) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._enough = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._enough.is_set():
            self._server.say(f"word {self.count}", x_holdfast_session_key="chat:talker")
            self.count += 1

    def stop(self) -> None:
        self._enough.set()
        self.join(30)
        assert not self.is_alive()


def test_a_server_restored_from_a_backup_goes_on_under_the_same_ids_and_keys(
    home: Home, tmp_path: Path
) -> None:
    copy = tmp_path / "backup.db"
    with serving(home) as server:
        token = home.json("keys", "create", "--owner", "team", "--scope", "chat")["key"]
        before = {
            name: server.say(f"I am {name}", token=token, x_holdfast_session_key=f"chat:{name}")
            for name in PEOPLE
        }
        keyed = server.say("once", idempotency_key="m1")
        chatter = Chatter(server)
        chatter.start()
        acknowledged = wait_for_words(chatter, 3)
        home.ok("backup", str(copy))
        backed_up = chatter.count
        wait_for_words(chatter, backed_up + 2)
        chatter.stop()
        server.say("too late", token=token, x_holdfast_session_key="chat:ada")
        server.kill()

        for path in home.path.iterdir():  # the disk is gone: the store, its log, its index, the local key
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copyfile(copy, home.store)
        home.store.chmod(0o600)
        assert home.ok("doctor").endswith("No problems found.\n")

        server.start()
        server.client_environment = home.json("env")  # the local key was not in the store: it is made anew
        for name, answer in before.items():
            ours = answer["holdfast"]
            found = server.say("still me", token=token, x_holdfast_session_id=ours["session_id"])["holdfast"]
            assert found["conversation_id"] == ours["conversation_id"], name
            assert found["session_id"] == ours["session_id"], name
            status, page = server.ask(
                "GET", f"/api/sessions/{ours['session_id']}/messages?scope=conversation", token=token
            )
            assert status == 200
            said = [message["content"] for message in page["data"]]
            assert said == [f"I am {name}", f"You said: I am {name}", "still me", "You said: still me"]
        again = server.say("once", idempotency_key="m1")
        assert again["holdfast"]["turn_id"] == keyed["holdfast"]["turn_id"], "a retry is still one turn"

        words = home.json("sessions", "messages", "chat:talker", "--scope", "conversation")
        asked = [message["content"] for message in words["data"] if message["role"] == "user"]
        assert asked == [f"word {number}" for number in range(len(asked))], "one moment, with no gap"
        assert acknowledged <= len(asked) <= backed_up + 1
        assert home.ok("doctor").endswith("No problems found.\n")


def wait_for_words(chatter: Chatter, count: int) -> int:
    """How many were acknowledged, once there are this many."""
    until(lambda: chatter.count >= count, f"{count} words were said")
    return chatter.count
