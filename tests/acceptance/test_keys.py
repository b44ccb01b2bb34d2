"""API keys in real processes: made, listed, revoked, and taken over by a shell."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import urllib.request

from .command import Home, installed
from .serving import READY


def test_keys_are_made_listed_and_revoked_by_processes_of_their_own(home: Home) -> None:
    made = home.json("keys", "create", "--owner", "team", "--scope", "bridge", "--tools", "search")
    assert made["key"].startswith(f"hf_{made['id'].removeprefix('key_')}_")
    (listed,) = home.json("keys", "list")["data"]
    assert (listed["id"], listed["owner"], listed["scope"], listed["tools"]) == (
        *(made["id"], "team", "bridge"),
        ["search"],
    )
    assert made["key"] not in json.dumps(listed)
    secret = made["key"].removeprefix(f"hf_{made['id'].removeprefix('key_')}_").encode()
    files = [path for path in home.path.rglob("*") if path.is_file()]
    assert home.store in files
    assert not [path for path in files if secret in path.read_bytes()], "only its hash is kept"
    assert home.json("keys", "revoke", made["id"])["revoked_at"]
    assert home.json("keys")["data"][0]["revoked_at"]
    assert home.json("doctor")["ok"] is True


# `env` looks who answers at the server's address. At the default one a server of the user may run.
NO_SERVER = {"HOLDFAST_SERVER__PORT": "9"}


def test_a_shell_takes_over_what_env_prints(home: Home) -> None:
    script = 'eval "$("$@" env)" && printf "%s\\n%s" "$OPENAI_BASE_URL" "$OPENAI_API_KEY"'
    done = subprocess.run(
        ["sh", "-ec", script, "sh", *installed()],
        env={**home.environment, **NO_SERVER},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("No server listens at http://127.0.0.1:9/v1 yet.")
    assert done.stdout.splitlines() == ["http://127.0.0.1:9/v1", home.json("env")["OPENAI_API_KEY"]]
    assert stat.S_IMODE((home.path / "api.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700


def test_env_finds_a_server_that_was_given_its_port_by_an_option(home: Home) -> None:
    running = home.start("serve", "--port", "0")
    running.wait_for(READY)
    url = home.json("env")["OPENAI_BASE_URL"]
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/healthz", timeout=60) as answer:
        assert json.load(answer)["status"] == "ok"
    named = home.ok("env", env={"HOLDFAST_SERVER__PORT": "9000"})
    assert "http://127.0.0.1:9000/v1" in named
    running.send(signal.SIGKILL)
    running.end()
    assert home.json("env")["OPENAI_BASE_URL"] == "http://127.0.0.1:8377/v1", "what it left is no server"
    running = home.start("serve", "--port", "0")
    running.wait_for(READY)
    running.send(signal.SIGTERM)
    running.end()
    assert not (home.path / "server.url").exists()


def test_commands_that_ask_for_the_local_key_at_once_agree(home: Home) -> None:
    home.ok("keys", "create")
    running = [home.start("env", "--json", env=NO_SERVER) for _ in range(4)]
    told = [command.end() for command in running]
    assert [(code, err.count("\n"), "No server listens" in err) for code, _, err in told] == [
        (0, 1, True)
    ] * 4
    assert len({out for _, out, _ in told}) == 1
    assert len(home.json("keys")["data"]) == 2


def test_a_home_that_cannot_hold_the_key_is_named_without_a_traceback(home: Home) -> None:
    store = home.path.parent / "elsewhere.db"
    home.path.write_text("a file where the home should be")
    done = home.run("env", "--store", f"sqlite:///{store}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "api.key" in done.stderr
    assert "Traceback" not in done.stderr
