"""`scripts/setup` on machines that lack something, with real installers. What it says is one sentence, and a
set-up that stopped goes on from there.

The package index is the one that this machine uses, or a port on which nobody listens. What was fetched once
comes from uv's cache.
"""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = "http://127.0.0.1:9/simple"
NEEDED = ("Makefile", "holdfast", "LICENSE", "README.md", "pyproject.toml", "requirements", "scripts", "src")
ENGINE = re.compile(r"^xllamacpp==(\S+)", re.MULTILINE)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout that was never set up, with the uv that this one uses."""
    made = tmp_path / "a tree"
    made.mkdir()
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, made / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, made / name)
    if (ROOT / "build/uv").is_dir():
        shutil.copytree(ROOT / "build/uv", made / "build/uv")
    return made


def environment(**changed: str) -> dict[str, str]:
    """This process's, but for what other tests or the user have set for installers."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**kept, "TERM": "dumb", **changed}


def set_up(tree: Path, what: str = "run", **changed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["scripts/setup", what],
        cwd=tree,
        env=environment(**changed),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def without_uv(tree: Path) -> None:
    """As on a machine for which there is none: the index has no such version."""
    shutil.rmtree(tree / "build", ignore_errors=True)
    lock = tree / "requirements/uv.lock"
    lock.write_text(re.sub(r"^uv==\S+", "uv==0.0.1", lock.read_text(), flags=re.MULTILINE))


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What a failed set-up said: its last line, all before which is progress."""
    assert done.returncode == 1, done.stderr
    *before, last = done.stderr.strip().splitlines()
    assert all(re.match(r"Setting up|Updating|Fetching|There is no uv", line) for line in before), before
    assert last.startswith("holdfast: ")
    return last


def test_without_a_network_it_says_so(tree: Path, tmp_path: Path) -> None:
    nowhere = {"UV_DEFAULT_INDEX": NOBODY, "PIP_INDEX_URL": NOBODY, "UV_CACHE_DIR": str(tmp_path / "cache")}
    assert "the package index cannot be reached" in sentence(set_up(tree, **nowhere))
    shutil.rmtree(tree / "build")
    done = set_up(tree, **nowhere)
    if shutil.which("uv") is None:
        assert "Fetching uv" in done.stderr
    assert "the package index cannot be reached" in sentence(done)


def test_a_proxy_that_does_not_answer_is_named(tree: Path, tmp_path: Path) -> None:
    done = set_up(tree, HTTPS_PROXY="http://127.0.0.1:9", UV_CACHE_DIR=str(tmp_path / "cache"))
    assert "HTTPS_PROXY" in sentence(done)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("error: failed to write to file `/x/a`: No space left on device (os error 28)", "the disk is full"),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 122] Disk quota exceeded",
            "disk is full",
        ),
        ("  cause: invalid peer certificate: UnknownIssuer", "the package index's certificate"),
        ("  cause: dns error\n  cause: failed to lookup address information", "cannot be reached"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "sent another file"),
        ("  cause: HTTP status client error (403 Forbidden) for url (https://pypi.org/simple/x/)", "refused"),
        ("error: failed to create directory `/x`: Permission denied (os error 13)", "cannot be written"),
    ],
)
def test_a_known_cause_is_one_sentence(tree: Path, tmp_path: Path, said: str, expected: str) -> None:
    """Each as an installer has said it."""
    uv = tmp_path / "bin/uv"
    uv.parent.mkdir()
    uv.write_text(
        '#!/bin/sh\nif [ "$1" = venv ]; then for last; do :; done; mkdir -p "$last/bin"; exit; fi\n'
        f"cat >&2 <<'END'\n{said}\nEND\nexit 2\n"
    )
    uv.chmod(0o755)
    assert expected in sentence(set_up(tree, PATH=f"{uv.parent}:{os.environ['PATH']}"))


@pytest.mark.parametrize("version", [None, "3.10.9"])
def test_without_a_new_enough_python_it_says_what_to_install(
    tree: Path, tmp_path: Path, version: str | None
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "dirname", "cat", "uname", "mkdir", "sed", "grep", "tail"):
        (programs / name).symlink_to(str(shutil.which(name)))
    if version:
        (programs / "python3").write_text("#!/bin/sh\nexit 1 # it is older\n")
        (programs / "python3").chmod(0o755)
    said = sentence(set_up(tree, PATH=str(programs)))
    assert "Python 3.11 or newer is needed" in said
    assert "python3-venv" in said


def test_pips_own_settings_do_not_break_it(tree: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text(
        "[global]\nuser = true\ntarget = /nowhere\nrequire-virtualenv = true\nno-binary = :all:\n"
        "index-url = https://mirror.invalid/from/a/file\n[install]\nprefix = /nowhere\n"
    )
    shown = subprocess.run(
        ["python3", "scripts/pip_settings.py"],
        cwd=tree,
        env={"HOME": str(home), "PATH": os.environ["PATH"], "PIP_TARGET": "/x", "PIP_PROXY": "http://p:1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert {
        "export HTTPS_PROXY=http://p:1",
        "export PIP_CONFIG_FILE=/dev/null",
        "export PIP_INDEX_URL=https://mirror.invalid/from/a/file",
        "export PIP_PROXY=http://p:1",
        "export UV_DEFAULT_INDEX=https://mirror.invalid/from/a/file",
        "unset PIP_PROXY",
        "unset PIP_TARGET",
    } <= set(shown)
    assert not [line for line in shown if re.match(r"export PIP_(USER|TARGET|PREFIX|REQUIRE|NO_BIN)", line)]


def test_a_set_up_that_was_killed_goes_on_from_there(tree: Path) -> None:
    """Killed as soon as the first packages are there, again and again, then left alone."""
    packages = tree / ".venv/lib"
    seen = 0
    for _ in range(3):
        running = subprocess.Popen(
            ["scripts/setup", "run"],
            cwd=tree,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while running.poll() is None and len(list(packages.glob("python*/site-packages/*"))) <= seen:
            time.sleep(0.005)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        seen = len(list(packages.glob("python*/site-packages/*")))
    (site,) = packages.glob("python*/site-packages")
    # As a kill in the middle of a copy leaves it, which the ones above may have missed.
    for half in (site / "rich", site / "jinja2"):
        half.mkdir(exist_ok=True)
        for file in [*half.glob("_*.py"), *half.glob("c*.py")]:
            file.unlink()
    (tree / ".venv/unfinished").touch()
    done = set_up(tree)
    assert done.returncode == 0, done.stderr
    assert "Updating .venv" in done.stderr, "it did not begin again"
    command = [str(tree / ".venv/bin/holdfast"), "--help"]
    assert subprocess.run(command, env=environment(), capture_output=True, check=True).stdout
    assert (site / "rich/console.py").exists()
    assert not (tree / ".venv/unfinished").exists()


@contextmanager
def index_without_the_engine() -> Iterator[str]:
    """The index of this machine, but for the engine's wheels, as Alpine's pip and uv see it."""
    real = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "/xllamacpp" not in self.path:
                self.send_response(302)
                self.send_header("Location", real.rstrip("/") + self.path.removeprefix("/simple"))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            with urllib.request.urlopen(real.rstrip("/") + "/xllamacpp/") as answer:
                page = answer.read().decode()
            body = re.sub(r"<a [^>]*>[^<]*linux[^<]*</a>", "", page).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the test shows what the installer says."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()


def test_without_a_wheel_of_the_engine_it_serves_and_says_how_to_get_a_model(tree: Path) -> None:
    with index_without_the_engine() as index:
        done = set_up(tree, UV_DEFAULT_INDEX=index, PIP_INDEX_URL=index, UV_NO_CACHE="1")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "no small model" in line]
    assert "HOLDFAST_MODEL__BASE_URL" in line
    assert not list((tree / ".venv/lib").glob("python*/site-packages/xllamacpp*"))
    (tree / ".venv/bin/holdfast").stat()
    again = subprocess.run(
        ["make", "-q", ".venv/run.stamp"], cwd=tree, env=environment(), capture_output=True, check=False
    )
    assert again.returncode == 0, "and it does not try again at every start"
