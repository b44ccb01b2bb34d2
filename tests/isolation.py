"""Tests never read the user's home, settings or keys: neither here nor in the processes they start.

Imported before anything else of the tests. HOME and HOLDFAST_HOME point into a directory of this run. All
other HOLDFAST_… and OPENAI_… variables are removed, except those of the test suite itself (HOLDFAST_TEST_…).
Caches of tools that tests start stay where they are; HOLDFAST_TEST_CACHE is the tests' own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

MARK = "HOLDFAST_TEST_RUN"
"""Set once the environment is clean: workers and child processes inherit it."""


def isolate() -> None:
    if os.environ.get(MARK) and os.environ.get("HOLDFAST_HOME", "").startswith(os.environ[MARK]):
        return
    user = Path.home()
    os.environ.setdefault("PLAYWRIGHT_BROWSERS_PATH", str(user / ".cache" / "ms-playwright"))
    os.environ.setdefault("UV_CACHE_DIR", str(user / ".cache" / "uv"))
    os.environ.setdefault("HOLDFAST_TEST_CACHE", os.environ.get("XDG_CACHE_HOME") or str(user / ".cache"))
    os.environ.setdefault("npm_config_cache", str(user / ".npm"))
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_", "OPENAI_")) and not name.startswith("HOLDFAST_TEST_"):
            del os.environ[name]
    for name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS"):  # a `make` of a test is not a part of `make test`
        os.environ.pop(name, None)
    run = tempfile.mkdtemp(prefix="holdfast-tests-")
    atexit.register(shutil.rmtree, run, ignore_errors=True)
    for name, place in (("HOME", "user"), ("HOLDFAST_HOME", "home")):
        os.makedirs(os.path.join(run, place), mode=0o700)
        os.environ[name] = os.path.join(run, place)
    os.environ[MARK] = run


isolate()
