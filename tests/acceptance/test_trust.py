"""What a shell or a directory brings along: keys stay here, foreign settings are not used."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Home
from tests.acceptance.serving import serving

CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


@dataclass
class Capturing:
    """An upstream that answers everybody and keeps all it was sent, byte by byte."""

    url: str = ""
    received: list[bytes] = field(default_factory=list)

    @property
    def chats(self) -> int:
        return sum(b"/chat/completions" in each for each in self.received)

    def saw(self, text: str) -> bool:
        return any(text.encode() in each for each in self.received)


@pytest.fixture
def upstream() -> Iterator[Capturing]:
    captured = Capturing()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            captured.received.append(f"{self.command} {self.path}\n{self.headers}\n".encode() + body)
            said: Any = {"object": "list", "data": [{"id": "m", "object": "model"}]}
            content, kind = json.dumps(said).encode(), "application/json"
            if self.path.endswith("/chat/completions"):
                parts: list[dict[str, Any]] = [
                    {"delta": {"role": "assistant", "content": "aye"}, "index": 0, "finish_reason": None},
                    {"delta": {}, "index": 0, "finish_reason": "stop"},
                ]
                lines = [f"data: {json.dumps({**CHUNK, 'choices': [part]})}\n\n" for part in parts]
                content, kind = "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream"
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    captured.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield captured
    server.shutdown()
    server.server_close()


@pytest.fixture
def home(tmp_path: Path, forked: bool) -> Home:
    made = Home(tmp_path / "home", forked=forked)
    del made.environment["HOLDFAST_MODEL__KIND"]
    return made


def shell_after_env(home: Home) -> dict[str, str]:
    """What `eval "$(holdfast env)"` leaves in a shell."""
    exports = re.findall(r"^export (\w+)=(\S+)$", home.ok("env"), re.MULTILINE)
    assert {name for name, _ in exports} == {"OPENAI_BASE_URL", "OPENAI_API_KEY"}
    return dict(exports)


# --- keys of our own -----------------------------------------------------------------------------------


def test_run_chat_and_serve_never_send_a_key_of_ours_upstream(home: Home, upstream: Capturing) -> None:
    shell = {**shell_after_env(home), "HOLDFAST_MODEL__BASE_URL": upstream.url}
    key = shell["OPENAI_API_KEY"]
    assert key.startswith("hf_")
    done = home.run("run", "hello", env=shell)
    assert (done.returncode, done.stdout.strip()) == (0, "aye"), done.stderr
    assert "key of holdfast's own" in done.stderr and "api_key_env" in done.stderr
    done = home.run("chat", said="hello\n", env=shell)
    assert done.returncode == 0 and "aye" in done.stdout, done.stderr
    assert "key of holdfast's own" in done.stderr
    home.environment.update(shell)
    with serving(home) as server:
        assert server.say("hello")["choices"][0]["message"]["content"] == "aye"
    assert upstream.chats == 3
    assert not upstream.saw("hf_")
    assert not upstream.saw("Authorization")


def test_the_value_of_holdfast_api_key_is_never_sent_upstream(home: Home, upstream: Capturing) -> None:
    shell = {
        "HOLDFAST_API_KEY": "correct-horse-battery-staple",
        "HOLDFAST_MODEL__API_KEY_ENV": "HOLDFAST_API_KEY",
        "HOLDFAST_MODEL__BASE_URL": upstream.url,
    }
    assert home.ok("run", "hello", env=shell).strip() == "aye"
    assert upstream.chats == 1
    assert not upstream.saw("correct-horse")


def test_an_address_that_holds_a_key_of_ours_is_refused_without_showing_it(home: Home) -> None:
    key = shell_after_env(home)["OPENAI_API_KEY"]
    for name in ("HOLDFAST_MODEL__BASE_URL", "HOLDFAST_NOTIFY__WEBHOOK", "HOLDFAST_MEMORY__WEBHOOK"):
        for url in (f"http://u:{key}@127.0.0.1:9/v1", f"http://127.0.0.1:9/v1?key={key}"):
            done = home.run("run", "hello", env={name: url})
            assert done.returncode != 0
            assert "key of holdfast's own" in done.stderr
            assert key not in done.stderr


def test_another_key_is_sent_as_before(home: Home, upstream: Capturing) -> None:
    shell = {"OPENAI_API_KEY": "sk-mine", "HOLDFAST_MODEL__BASE_URL": upstream.url}
    assert home.ok("run", "hello", env=shell).strip() == "aye"
    assert upstream.saw("Bearer sk-mine")


# --- models that are not there -------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("run", "hello"), ("chat",), ("serve", "--port", "0")])
@pytest.mark.parametrize("model", ["gpt-4o", "localhost:1/v1"])
def test_a_model_that_cannot_be_served_is_refused_with_what_to_do(
    home: Home, command: tuple[str, ...], model: str
) -> None:
    done = home.run(*command, "--model", model, said="hello\n", env={"HOLDFAST_MODEL__KIND": "local"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "base_url" in done.stderr or f"http://{model}" in done.stderr
    assert not home.store.exists(), "nothing was begun"


def test_an_unknown_name_in_the_settings_is_refused_too(home: Home) -> None:
    environment = {"HOLDFAST_MODEL__KIND": "local", "HOLDFAST_MODEL__NAME": "gpt-4o"}
    done = home.run("run", "hello", env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing here serves the model 'gpt-4o'" in done.stderr


# --- settings of others --------------------------------------------------------------------------------


def test_a_cloned_repositorys_settings_are_used_only_after_they_are_trusted(
    home: Home, upstream: Capturing
) -> None:
    cloned = home.path.parent / "holdfast.toml"
    cloned.write_text(f'[model]\nbase_url = "{upstream.url}"\napi_key_env = "AWS_SECRET_ACCESS_KEY"\n')
    secret = {"AWS_SECRET_ACCESS_KEY": "hunter2", "HOLDFAST_MODEL__KIND": "scripted"}
    done = home.run("run", "hello", env=secret)
    assert done.returncode == 0
    assert upstream.received == []
    assert [line for line in done.stderr.splitlines() if str(cloned) in line and "config trust" in line]
    shown = home.json("config")
    assert shown["ignored_file"] == str(cloned)
    assert {each["name"]: each["origin"] for each in shown["data"]}["model.base_url"] == "default"
    assert f"{cloned} is not trusted" in home.ok("config")

    assert "model.base_url" in home.ok("config", "trust")
    assert home.json("config")["ignored_file"] is None
    home.ok("run", "hello", env={"AWS_SECRET_ACCESS_KEY": "hunter2"})
    assert upstream.saw("hunter2"), "the user has said so"
    cloned.write_text(cloned.read_text() + "# changed\n")
    assert home.json("config")["ignored_file"] == str(cloned)
    home.ok("config", "trust", str(cloned.parent))
    home.ok("config", "untrust")
    assert home.json("config")["ignored_file"] == str(cloned)
    assert home.run("config", "trust", "/no/such/file").returncode == 1


def test_a_home_that_others_can_write_to_is_refused(home: Home) -> None:
    home.path.mkdir()
    os.chmod(home.path, 0o777)
    done = home.run("env")
    assert done.returncode == 1
    assert f"chmod go-w {home.path}" in done.stderr
    assert list(home.path.iterdir()) == []


def test_the_upstreams_own_key_is_still_sent_after_holdfast_env(home: Home, upstream: Capturing) -> None:
    """As in a shell: `export OPENAI_API_KEY=…; eval "$(holdfast env)"; holdfast run …`, twice."""
    own = {"OPENAI_API_KEY": "sk-of-the-provider", "HOLDFAST_MODEL__BASE_URL": upstream.url}
    exports = home.ok("env", env=own)
    assert 'export HOLDFAST_UPSTREAM_API_KEY="$OPENAI_API_KEY"\n' in exports
    assert "sk-of-the-provider" not in exports
    shell = {**own, "HOLDFAST_UPSTREAM_API_KEY": own["OPENAI_API_KEY"], **shell_after_env(home)}
    assert "HOLDFAST_UPSTREAM_API_KEY" not in home.ok("env", env=shell)
    done = home.run("run", "hello", env=shell)
    assert (done.returncode, done.stdout.strip()) == (0, "aye"), done.stderr
    assert upstream.saw("sk-of-the-provider")
    assert not upstream.saw("hf_")
