"""Scripts of the tree: what they fetch is pinned, and how they install it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_package_that_a_script_fetches_is_pinned_by_hash() -> None:
    for script in filter(Path.is_file, (ROOT / "scripts").iterdir()):
        text = script.read_text()
        for command in re.findall(r"pip\"? install\b(?:.*\\\n)*.*", text):
            assert "--require-hashes" in command or "--no-deps" in command or ".lock" in command, (
                f"{script.name}: {command}"
            )


def test_the_fetched_uv_is_pinned_for_every_platform() -> None:
    text = (ROOT / "requirements" / "uv.lock").read_text()
    assert re.search(r"^uv==\d+\.\d+\.\d+ \\$", text, re.MULTILINE)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", text)) >= 15


PYTHON = """
case "$1 $2" in
*_base_executable*) echo "$0" ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip")
    echo "$*" >>calls
    case "$*" in *--version* | *some.lock) ;; *) echo "ERROR: no such package" && exit 1 ;; esac
    ;;
*) exec "{real}" "$@" ;;
esac
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the functions, a python3 that records what it shall install, and a lock of no real uv."""
    tree = tmp_path / "tree"
    (tree / "requirements").mkdir(parents=True)
    (tree / "scripts").mkdir()
    for name in ("environments.sh", "pip_settings.py"):
        shutil.copy(ROOT / "scripts" / name, tree / "scripts")
    (tree / "requirements" / "uv.lock").write_text("uv==9.9.9 --hash=sha256:" + "0" * 64 + "\n")
    (tree / "some.lock").write_text("")
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "python3", PYTHON.format(real=sys.executable))
    return tree


def run(tree: Path, script: str) -> subprocess.CompletedProcess[str]:
    """This script with the functions, the fake python3 and, if there is one, the fake uv."""
    known = {"PATH": f"{tree.parent / 'bin'}:/usr/bin:/bin", "HOME": str(tree.parent)}
    return subprocess.run(
        ["sh", "-euc", f". scripts/environments.sh\n{script}"],
        check=False, cwd=tree, env=known, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def program(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


FILL = """
steps() { install -r some.lock; }
pick_python
find_uv
make_environment env
fill env steps
echo filled
"""


def test_without_any_uv_pip_makes_the_environment_and_one_line_says_so(tree: Path) -> None:
    done = run(tree, FILL)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "filled\n"
    assert (
        "There is no uv for this machine (build/setup-uv.log says why): pip installs instead" in done.stderr
    )
    assert "--target build/uv/new" in (tree / "calls").read_text(), "it tried to fetch one"
    assert (tree / "calls").read_text().endswith("--no-deps --no-compile -r some.lock\n")


def test_a_uv_that_fails_is_followed_by_pip(tree: Path) -> None:
    program(
        tree.parent / "bin" / "uv",
        'case $1 in venv) mkdir env ;; *) echo "no such index" >&2; exit 2 ;; esac',
    )
    done = run(tree, FILL)
    assert done.returncode == 0, done.stderr
    assert "uv failed (build/setup-env.log has what it said): trying pip, which is slower.\n" in done.stderr
    assert "no such index\n" in (tree / "build/setup-env.log").read_text()
    assert (tree / "calls").read_text().endswith("--no-deps --no-compile -r some.lock\n")


def test_a_uv_on_the_path_is_used_and_its_list_of_packages_left_out(tree: Path) -> None:
    program(
        tree.parent / "bin" / "uv",
        'mkdir -p env\necho "uv $*" >>calls\necho "Installed 2 packages" >&2\necho " + one==1" >&2',
    )
    done = run(tree, FILL)
    assert done.returncode == 0, done.stderr
    assert "pip install --python env/bin/python --no-deps -r some.lock" in (tree / "calls").read_text()
    assert "Installed 2 packages\n" in done.stderr
    assert "one==1" not in done.stderr.partition("Installed 2 packages\n")[2]


def test_what_pip_says_of_a_failure_is_shown_and_the_script_fails(tree: Path) -> None:
    done = run(tree, FILL.replace("some.lock", "other.lock"))
    assert done.returncode == 1
    assert "ERROR: no such package" in done.stderr
    assert "pip could not install that; what it said last is above, the rest in build/" in done.stderr


def test_a_second_set_up_waits_for_the_first(tree: Path) -> None:
    inner = "exec 9>held\nlock 9 now && echo taken || echo held"
    done = run(tree, f"pick_python\nexec 9>held\nlock 9\n(exec 9>&-\n{inner})\nexec 9>&-\n({inner})")
    assert done.stdout == "held\ntaken\n", done.stderr


def test_the_lines_of_pip_become_a_count(tree: Path) -> None:
    (tree / "some.lock").write_text("".join(f"p{n}==1\n" for n in range(45)))
    said = "".join(f"Collecting p{n}==1\n  Downloading it\n" for n in range(45))
    (tree / "said").write_text(f"{said}Installing collected packages: p0\n")
    done = run(tree, 'uv=\nprogress "pip install -r some.lock" <said')
    assert done.stderr.splitlines() == [
        "  20 of 45 packages",
        "  40 of 45 packages",
        "  installing 45 packages",
    ]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "which suite? bookworm, trixie or sid"),
        (["--nosuch", "trixie"], 2, "there is no option --nosuch"),
        (["--umask"], 2, "--umask needs a value"),
        (["trixie", "true"], 3, "mmdebstrap"),
    ],
)
def test_a_fresh_machine_that_cannot_be_made_says_what_is_missing(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    """3 tells .ci/run that this machine can make none, which is no failure."""
    for name in ("bash", "env", "dirname", "git"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [str(shutil.which("bash")), ROOT / "scripts/fresh-machine", *words],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("fresh-machine: ")
    assert said in done.stderr


def test_all_that_the_tests_need_is_named_at_once_as_one_line_to_paste(tmp_path: Path) -> None:
    """scripts/fresh-machine pastes that line, as a reader would."""
    for name in ("sh", "uname", "apt-get", "strace"):
        program(tmp_path / name, "echo Linux")
    (tmp_path / "sh").unlink()
    (tmp_path / "sh").symlink_to(str(shutil.which("sh")))
    program(tmp_path / "id", "echo 1000")
    done = subprocess.run(
        [str(shutil.which("sh")), ROOT / "scripts/need-tools", "curl", "strace", "browser"],
        env={"PATH": str(tmp_path)},
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.findall(r"^    (apt-get .*)$", done.stderr, re.MULTILINE) == [
        "apt-get update && apt-get install -y --no-install-recommends curl chromium-headless-shell"
    ]


def test_an_environment_that_cannot_be_made_is_a_sentence(tree: Path) -> None:
    program(tree.parent / "bin" / "uv", 'echo "error: No space left on device (os error 28)" >&2\nexit 2')
    done = run(tree, FILL)
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert said.startswith("holdfast: the disk is full")
