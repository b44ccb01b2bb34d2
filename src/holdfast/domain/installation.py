"""The command that adds a package to the environment that holdfast runs in.

`pip install` alone may be another Python's, or there may be none: an environment that uv made has no pip,
and those of pipx and `uv tool` are not on the path. So the command names the environment, as far as can be
told how it was made.
"""

from __future__ import annotations

import shlex
from enum import StrEnum

from .value import Value


class Installer(StrEnum):
    """What made the environment and looks after it."""

    PIPX = "pipx"
    UV_TOOL = "uv tool"
    NONE = ""


class Installation(Value, frozen=True):
    """The environment of a running Python."""

    python: str
    """Path of its interpreter."""
    prefix: str
    """Path of its directory."""
    installer: Installer = Installer.NONE
    has_pip: bool = True
    uv: str = ""
    """How uv can be called; "" if it was not found."""


def install_command(installed: Installation, *arguments: str) -> str:
    """The command line that installs this into it; the arguments are those of `pip install`."""
    python = installed.python or "python3"
    pip = (python, "-m", "pip", "install", *arguments)
    if installed.installer is Installer.PIPX:
        name = installed.prefix.rstrip("/").rpartition("/")[2]
        return shlex.join(("pipx", "runpip", name, "install", *arguments))
    if installed.installer is Installer.UV_TOOL or (installed.uv and not installed.has_pip):
        uv = installed.uv or "uv"
        return shlex.join((uv, "pip", "install", "--python", installed.prefix, *arguments))
    if installed.has_pip:
        return shlex.join(pip)
    return f"{shlex.join((python, '-m', 'ensurepip'))} && {shlex.join(pip)}"
