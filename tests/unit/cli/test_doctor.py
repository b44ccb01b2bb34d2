"""Looking after a store: sweep, nodes, doctor, backup, config, version."""

from __future__ import annotations

import os

import apsw
import pytest

import holdfast
from tests.unit.cli.conftest import Home


def test_reading_commands_leave_no_node_behind(home: Home) -> None:
    home.ok("run", "hello")
    before = home.json("nodes", "--all")["data"]
    for command in (["sessions"], ["sessions", "stats"], ["doctor"], ["sweep"], ["nodes"]):
        home.ok(*command)
    assert home.json("nodes", "--all")["data"] == before


def test_doctor_names_every_invariant_and_finds_all_well(home: Home) -> None:
    home.ok("run", "hello")
    said = home.ok("doctor")
    assert said.count("✓") >= 10
    assert said.endswith("No problems found.\n")
    diagnosis = home.json("doctor")
    assert diagnosis["ok"] is True
    assert all(
        set(each) == {"invariant", "ok", "count", "examples", "repairable"} for each in diagnosis["data"]
    )


def test_doctor_finds_a_broken_invariant_and_exits_1(home: Home) -> None:
    home.ok("run", "--key", "k", "hello")
    connection = apsw.Connection(str(home.store))
    connection.execute("UPDATE conversations SET last_seq = last_seq + 1")
    connection.close()
    done = home.run("doctor")
    assert done.returncode == 1
    assert "✗ message numbers are gap-free" in done.stdout
    assert "conv_" in done.stdout
    assert "holdfast backup" in done.stdout
    assert home.run("doctor", "--json").returncode == 1


@pytest.mark.parametrize("node", ["node_nobody", "one that left"])
def test_doctor_finds_an_open_session_that_hangs_on_nobody(home: Home, node: str) -> None:
    with holdfast.open_sync(f"sqlite:///{home.store}") as hf:
        hf.session(key="k", attached=False)
    connection = apsw.Connection(str(home.store))
    if node == "one that left":
        ((node,),) = connection.execute("SELECT id FROM nodes WHERE settled_at IS NOT NULL")
    connection.execute("UPDATE sessions SET attached = 1, node = ?", (node,))
    connection.close()
    done = home.run("doctor")
    assert done.returncode == 1
    assert "✗ no open session and no lease belongs to a node that is gone or unknown" in done.stdout


def test_doctor_repairs_the_search_index(home: Home) -> None:
    home.ok("run", "hello")
    home.ok("sessions", "search", "hello")
    index = home.store.with_name(f"{home.store.name}.search")
    for leftover in index.parent.glob(f"{index.name}-*"):
        leftover.unlink()
    index.write_bytes(b"not a database at all" * 1000)
    done = home.run("doctor")
    assert done.returncode == 1
    assert "doctor --repair" in done.stdout
    assert "rebuilt the search index" in home.ok("doctor", "--repair")
    assert home.json("sessions", "search", "hello")["data"]


def test_a_backup_is_a_store_and_never_overwrites(home: Home) -> None:
    home.ok("run", "--key", "k", "hello")
    target = home.path.parent / "copy.db"
    said = home.ok("backup", str(target))
    assert str(target) in said
    copied = home.json("sessions", "messages", "k", "--store", f"sqlite:///{target}")
    assert copied == home.json("sessions", "messages", "k")
    done = home.run("backup", str(target))
    assert done.returncode == 1
    assert "exists already" in done.stderr
    assert home.run("backup", "/no/such/directory/copy.db").returncode == 1


def test_backing_up_nothing_fails(home: Home) -> None:
    done = home.run("backup", "copy.db")
    assert done.returncode == 1
    assert not (home.path.parent / "copy.db").exists()


# --- settings -----------------------------------------------------------------------------------------------


def config_of(home: Home) -> dict[str, dict[str, object]]:
    return {setting["name"]: setting for setting in home.json("config")["data"]}


def test_config_says_where_each_value_came_from(home: Home) -> None:
    home.path.mkdir()
    file = home.path / "holdfast.toml"
    file.write_text('[lease]\nstale_seconds = 60\n[agent]\nsystem_prompt = "be brief"\n')
    home.environment["HOLDFAST_LEASE__SWEEP_SECONDS"] = "2.5"
    settings = config_of(home)
    assert (settings["lease.stale_seconds"]["value"], settings["lease.stale_seconds"]["origin"]) == (
        60.0,
        str(file),
    )
    assert settings["lease.sweep_seconds"]["origin"] == "HOLDFAST_LEASE__SWEEP_SECONDS"
    assert settings["lease.heartbeat_seconds"]["origin"] == "default"
    assert "be brief" in home.ok("config")


@pytest.mark.parametrize(
    ("settings", "value", "origin"),
    [
        ('[model]\nkind = "local"\n', False, "default for the local model"),
        ('[model]\nkind = "scripted"\n', True, "default"),
        ('[model]\nkind = "local"\n[memory]\nwebhook = "http://127.0.0.1:9/"\n', True, "default"),
        ('[model]\nkind = "local"\n[memory]\nflush = true\n', True, "file"),
    ],
)
def test_config_shows_whether_sessions_are_flushed_with_this_model(
    home: Home, settings: str, value: bool, origin: str
) -> None:
    home.path.mkdir()
    (home.path / "holdfast.toml").write_text(settings)
    home.environment.pop("HOLDFAST_MODEL__KIND", None)
    shown = config_of(home)["memory.flush"]
    assert shown["value"] is value
    assert shown["origin"] == (str(home.path / "holdfast.toml") if origin == "file" else origin)
    assert not home.store.exists()


def test_a_secret_is_never_shown(home: Home) -> None:
    home.environment |= {
        "HOLDFAST_MODEL__BASE_URL": "https://ada:canary-1@example.com/v1",
        "HOLDFAST_MODEL__API_KEY_ENV": "sk-canary-2",
        "OPENAI_API_KEY": "canary-3",
        "HOLDFAST_API_KEY": "canary-4",
    }
    assert "canary" not in home.ok("config") + home.ok("config", "--json")


def test_an_unknown_setting_is_named_with_the_nearest_valid_one(home: Home) -> None:
    done = home.run("sessions", HOLDFAST_LEASE__STALE_SECOND="5")
    assert done.returncode == 1
    assert "HOLDFAST_LEASE__STALE_SECOND" in done.stderr
    assert "lease.stale_seconds" in done.stderr
    file = home.path.parent / "other.toml"
    file.write_text("[leese]\n")
    done = home.run("config", "--config", str(file))
    assert done.returncode == 1
    assert str(file) in done.stderr
    assert "did you mean lease?" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--store", "nonsense", "sqlite:///"),
        ("--store", "mysql://x", "mysql"),
        ("--config", "missing.toml", "missing.toml"),
    ],
)
def test_an_impossible_option_says_what_would_be_right(
    home: Home, option: str, value: str, named: str
) -> None:
    done = home.run("sessions", option, value)
    assert done.returncode == 1
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_ours_is_refused(home: Home) -> None:
    stranger = home.path.parent / "notes.db"
    stranger.write_text("my notes")
    done = home.run("sessions", "--store", f"sqlite:///{stranger}")
    assert done.returncode == 1
    assert "notes.db" in done.stderr
    assert stranger.read_text() == "my notes"


def test_the_home_and_its_files_are_for_their_owner_alone(home: Home) -> None:
    home.ok("run", "hello")
    assert home.path.stat().st_mode & 0o777 == 0o700
    for path in home.path.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_version(home: Home) -> None:
    assert home.ok("--version") == f"holdfast {holdfast.__version__}\n"
    assert home.ok("version").startswith(f"holdfast {holdfast.__version__} (Python ")
    assert home.json("version")["holdfast"] == holdfast.__version__
    assert not home.path.exists()


def test_commands_can_share_a_store_from_any_directory(home: Home) -> None:
    home.path.mkdir()
    home.ok("run", "--key", "k", "--store", "sqlite:///here.db", "hello")
    assert (home.path.parent / "here.db").exists()
    assert not home.store.exists()
    assert os.listdir(home.path) == []


def test_doctor_says_who_holds_how_much(home: Home) -> None:
    home.ok("run", "hello")
    home.ok("run", "--owner", "bob", "hello " * 100)
    said = home.ok("doctor")
    assert said.index("bob: ") < said.index("default: ")
    assert "in 1 conversation\n" in said
    usage = home.json("doctor")["usage"]
    assert [(each["owner"], each["conversations"]) for each in usage] == [("bob", 1), ("default", 1)]
    assert usage[0]["bytes"] > 600


def test_doctor_warns_of_a_disk_that_is_almost_full(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.ok("run", "hello")
    assert "the store's disk" not in home.ok("doctor")
    free = home.json("doctor")["free_bytes"]
    assert free > 0
    monkeypatch.setattr("holdfast.domain.figures.LEAST_FREE_BYTES", free * 2)
    assert "! the store's disk has" in home.ok("doctor")


def test_doctor_finds_a_wrong_size_and_mends_it(home: Home) -> None:
    home.ok("run", "hello")
    connection = apsw.Connection(str(home.store))
    connection.execute("UPDATE conversations SET bytes = bytes + 7")
    connection.close()
    done = home.run("doctor")
    assert done.returncode == 1
    assert "✗ every conversation's size is the sum of the bytes of what is stored in it" in done.stdout
    assert "`holdfast doctor --repair` fixes this." in done.stdout
    assert "recounted the bytes of 1 conversation" in home.ok("doctor", "--repair")
    assert home.json("doctor")["ok"]


def test_a_full_quota_is_an_error_with_what_to_do(home: Home) -> None:
    home.environment["HOLDFAST_LIMITS__CONVERSATION_MB"] = "0.0001"
    home.ok("run", "--key", "k", "hello " * 10)
    done = home.run("run", "--key", "k", "more")
    assert done.returncode == 1
    assert "raise [limits] conversation_mb" in " ".join(done.stderr.split())


def test_doctor_shows_a_connector_that_cannot_reach_its_platform(home: Home) -> None:
    home.ok("run", "hello")
    connection = apsw.Connection(str(home.store))
    connection.execute(
        "INSERT INTO connectors (name, kind, state, problem, since) "
        "VALUES ('phone', 'telegram', 'down', 'Telegram cannot be reached', 0)"
    )
    connection.close()
    said = home.ok("doctor")
    assert "! connector phone: down (Telegram cannot be reached)" in said
    (state,) = home.json("doctor")["connectors"]
    assert (state["state"], state["problem"]) == ("down", "Telegram cannot be reached")
