"""The tests themselves: they pass whatever the user's home and shell hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast.settings import home

ROOT = Path(__file__).parents[2]

PROBE = """
import asyncio, os, subprocess, sys
import holdfast
from holdfast.settings import load


def test_settings_are_the_defaults(tmp_path):
    assert load().server.port == 8377
    assert not [name for name in os.environ if name.startswith("OPENAI_")]

    async def use():
        async with holdfast.open(f"sqlite:///{tmp_path}/agent.db") as hf:
            await hf.session("cli:ada")

    asyncio.run(use())
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run([sys.executable, "-m", "holdfast", "config"], env=kept, check=False)
    assert done.returncode == 0, "not even a process that lost HOLDFAST_HOME finds the user's"
"""


def test_no_test_reads_the_users_home() -> None:
    run = Path(os.environ["HOLDFAST_TEST_RUN"])
    assert home().is_relative_to(run)
    assert Path.home().is_relative_to(run)


def test_a_poisoned_home_changes_nothing(tmp_path: Path) -> None:
    user = tmp_path / "user"
    (user / ".holdfast").mkdir(parents=True, mode=0o700)
    (user / ".holdfast" / "holdfast.toml").write_text("[nonsense]\n")
    probes = tmp_path / "probes"
    probes.mkdir()
    (probes / "conftest.py").write_text("import tests.isolation\n")
    (probes / "test_probe.py").write_text(PROBE)
    shell = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    shell.pop("PYTEST_ADDOPTS", None)  # the probes have none of this run's plugins
    shell |= {
        "HOME": str(user),
        "HOLDFAST_CONFIG": str(user / ".holdfast" / "holdfast.toml"),
        "OPENAI_API_KEY": "sk-real",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(probes)],
        cwd=probes,
        env=shell,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
