"""Scripts of the tree: what they fetch is pinned."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_that_a_script_fetches_is_pinned_by_hash() -> None:
    for script in filter(Path.is_file, (ROOT / "scripts").iterdir()):
        text = script.read_text()
        for command in re.findall(r"pip\"? install\b.*(?:\\\n.*)*", text):
            assert "--require-hashes" in command or "--no-deps" in command or ".lock" in command, (
                f"{script.name}: {command}"
            )


def test_the_fetched_uv_is_pinned() -> None:
    text = (ROOT / "requirements" / "uv.txt").read_text()
    assert re.search(r"^uv==\d+\.\d+\.\d+ \\$", text, re.MULTILINE)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", text)) >= 4
