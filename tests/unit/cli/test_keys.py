"""`holdfast keys` and `holdfast env`."""

from __future__ import annotations

import hashlib
import socket
import stat
import threading
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import apsw
import pytest

from holdfast.cli.env import address
from holdfast.domain.api_keys import parse_token
from holdfast.local_server import note_address
from holdfast.settings import load
from tests.unit.cli.conftest import Home

LIMITS = ("requests_per_minute", "requests_per_day", "tokens_per_minute", "tokens_per_day")
FIELDS = {
    *("id", "owner", "scope", "tools", "created_at", "revoked_at", "store"),
    *("name", "expires_at", "last_used_at", *LIMITS, "webhook"),
}


def secret_in(text: str) -> str:
    token = parse_token(text)
    assert token is not None
    return token.secret


def test_a_key_is_shown_once_and_only_its_hash_is_kept(home: Home) -> None:
    made = home.json("keys", "create")
    assert set(made) == {"id", "key", "owner", "scope", "tools"}
    assert (made["owner"], made["scope"], made["tools"]) == ("default", "chat", [])
    secret = secret_in(made["key"])
    connection = apsw.Connection(str(home.store), flags=apsw.SQLITE_OPEN_READONLY)
    kept = connection.execute("SELECT secret_hash FROM api_keys").get
    connection.close()
    assert kept == hashlib.sha256(secret.encode()).digest()
    assert secret not in home.ok("keys", "list") + home.ok("keys", "list", "--json")


def test_without_json_the_key_alone_goes_to_stdout(home: Home) -> None:
    done = home.run("keys", "create", "--owner", "ada", "--tools", " search, memory,")
    assert done.returncode == 0
    token = parse_token(done.stdout.strip())
    assert token is not None
    assert f"{token.key_id}: owner ada, scope chat, tools memory, search." in done.stderr
    assert token.secret not in done.stderr


def test_a_key_can_be_made_that_keeps_nothing(home: Home) -> None:
    assert home.json("keys", "create", "--store", "never")["store"] == "never"
    (listed,) = home.json("keys", "list")["data"]
    assert listed["store"] == "never"


def test_a_key_has_a_name_an_expiry_and_limits(home: Home) -> None:
    given = {name: number for number, name in enumerate(LIMITS, 1)}
    options = [text for name, most in given.items() for text in (f"--{name.replace('_', '-')}", str(most))]
    made = home.json("keys", "create", "--name", "Ada's laptop", "--expires", "1.5", *options)
    (listed,) = home.json("keys", "list")["data"]
    for each in (made, listed):
        assert {name: each[name] for name in LIMITS} == given
        assert each["name"] == "Ada's laptop"
    lasts = datetime.fromisoformat(listed["expires_at"]) - datetime.fromisoformat(listed["created_at"])
    assert lasts == timedelta(days=1.5)
    assert made["expires_at"] == listed["expires_at"]
    assert listed["last_used_at"] is None
    shown = home.ok("keys")
    assert all(word in shown for word in ("Ada's laptop", "4 tokens/day", "never", "valid for"))
    home.json("keys", "create")
    plain = home.json("keys")["data"][1]
    assert [plain[name] for name in ("name", "expires_at", *LIMITS)] == [None] * 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--expires", "0"], "more than 0"),
        (["--expires", "nan"], "more than 0"),
        (["--tokens-per-day", "-1"], "--tokens-per-day"),
        (["--name", "two\nlines"], "one line"),
        (["--name", "x" * 101], "100 characters"),
    ],
)
def test_impossible_terms_are_wrong_usage_and_make_no_key(home: Home, options: list[str], said: str) -> None:
    done = home.run("keys", "create", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert home.json("keys")["data"] == []


@pytest.mark.parametrize("scope", ["chat", "bridge", "admin"])
def test_a_key_has_the_owner_scope_and_tools_that_were_named(home: Home, scope: str) -> None:
    made = home.json("keys", "create", "--owner", "team", "--scope", scope, "--tools", "terminal,search")
    (listed,) = home.json("keys", "list")["data"]
    assert set(listed) == FIELDS
    for each in (made, listed):
        assert (each["owner"], each["scope"], each["tools"]) == ("team", scope, ["search", "terminal"])
    assert listed["id"] == made["id"]
    assert listed["store"] == "always"
    assert listed["revoked_at"] is None


def test_keys_of_all_owners_are_listed_unless_one_is_named(home: Home) -> None:
    ids = {owner: home.json("keys", "create", "--owner", owner)["id"] for owner in ("ada", "bob")}
    assert [key["id"] for key in home.json("keys")["data"]] == [*ids.values()]
    assert [key["id"] for key in home.json("keys", "list", "--owner", "*")["data"]] == [*ids.values()]
    assert [key["id"] for key in home.json("keys", "--owner", "bob")["data"]] == [ids["bob"]]
    assert home.json("keys", "--owner", "default")["data"] == []
    shown = home.ok("keys")
    assert all(word in shown for word in ("ada", "bob", *ids.values()))


def test_a_key_is_revoked_for_good_and_revoking_twice_is_revoking_once(home: Home) -> None:
    made = home.json("keys", "create", "--owner", "ada")
    assert home.ok("keys", "revoke", made["id"]) == f"{made['id']} of ada is revoked.\n"
    (revoked,) = home.json("keys")["data"]
    assert revoked["revoked_at"] is not None
    assert home.ok("keys", "revoke", made["id"]) == f"{made['id']} of ada was revoked already.\n"
    assert home.json("keys", "revoke", made["id"]) == revoked
    assert "revoked" in home.ok("keys")


def test_an_unknown_key_and_another_owners_are_refused_in_the_same_words(home: Home) -> None:
    made = home.json("keys", "create", "--owner", "ada")
    never = home.run("keys", "revoke", "key_never", "--owner", "bob")
    others = home.run("keys", "revoke", made["id"], "--owner", "bob")
    assert (never.returncode, others.returncode) == (1, 1)
    assert others.stderr == never.stderr.replace("key_never", made["id"])
    assert "holdfast keys list" in never.stderr
    assert home.json("keys")["data"][0]["revoked_at"] is None


def test_listing_makes_nothing(home: Home) -> None:
    assert home.json("keys")["data"] == []
    assert "holdfast keys create" in home.run("keys").stderr
    assert home.run("keys", "revoke", "key_1").returncode == 1
    assert not home.path.exists()


def test_wrong_usage_names_what_there_is(home: Home) -> None:
    assert "terminal, process, memory, search" in home.run("keys", "create", "--tools", "shell").stderr
    said = home.run("keys", "create", "--scope", "root").stderr
    assert all(scope in said for scope in ("chat", "bridge", "admin"))


# --- env -----------------------------------------------------------------------------------------------


def test_env_gives_the_address_and_the_local_key(home: Home) -> None:
    variables = home.json("env")
    assert set(variables) == {"OPENAI_BASE_URL", "OPENAI_API_KEY"}
    assert variables["OPENAI_BASE_URL"] == "http://127.0.0.1:8377/v1"
    kept = home.path / "api.key"
    assert kept.read_text() == variables["OPENAI_API_KEY"] + "\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert home.json("env") == variables
    (key,) = home.json("keys")["data"]
    assert (key["owner"], key["scope"]) == ("default", "admin")


def test_env_makes_another_when_the_local_key_was_revoked(home: Home) -> None:
    before = home.json("env")["OPENAI_API_KEY"]
    home.ok("keys", "revoke", home.json("keys")["data"][0]["id"])
    after = home.json("env")["OPENAI_API_KEY"]
    assert after != before
    assert [bool(key["revoked_at"]) for key in home.json("keys")["data"]] == [True, False]


def test_env_prints_exports_and_nothing_else(home: Home) -> None:
    key = home.json("env")["OPENAI_API_KEY"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        note_address(home.path, f"http://127.0.0.1:{port}")
        done = home.run("env")
    assert done.stdout == f"export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1\nexport OPENAI_API_KEY={key}\n"
    assert done.stderr == ""


def test_env_says_aside_that_no_server_listens(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = home.run("env", HOLDFAST_SERVER__PORT=str(port))
    assert done.returncode == 0, "a shell with `set -e` goes on"
    assert done.stdout.startswith(
        f"export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1\nexport OPENAI_API_KEY="
    )
    assert f"No server listens at http://127.0.0.1:{port}/v1" in done.stderr and " serve" in done.stderr
    assert home.json("env")["OPENAI_API_KEY"] in done.stdout


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8377/v1"),
        ("0.0.0.0", "http://127.0.0.1:8377/v1"),
        ("::", "http://127.0.0.1:8377/v1"),
        ("::1", "http://[::1]:8377/v1"),
        ("[::1]", "http://[::1]:8377/v1"),
        ("agent.lan", "http://agent.lan:8377/v1"),
    ],
)
def test_the_address_is_one_that_a_client_can_reach(host: str, url: str) -> None:
    assert address(load(environment={}, given={"server": {"host": host}})) == url


def test_a_port_that_is_not_known_before_the_start_is_not_guessed(home: Home) -> None:
    done = home.run("env", HOLDFAST_SERVER__PORT="0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "start it first: `holdfast serve`" in done.stderr
    assert not home.path.exists()


def test_env_says_that_the_server_there_is_another_s(home: Home) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = home.run("env", HOLDFAST_SERVER__PORT=str(server.server_port))
        server.shutdown()
    assert done.returncode == 0 and done.stdout.count("export ") == 2
    assert "does not accept this key: it belongs to another home" in done.stderr
