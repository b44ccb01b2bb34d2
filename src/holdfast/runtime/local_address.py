"""The local address: where this home's server listens now, whatever the settings say of it.

A server notes it in `server.url` in the home when it listens, and takes the note back when it leaves; of
several, the last that has come. What a killed server left is found out by whoever reads it: an address at
which nobody listens is none. It is a help for people, no truth: a home that cannot be written to has no note.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

FILE_NAME = "server.url"
PATIENCE_SECONDS = 1.0


def note_address(home: Path, url: str) -> None:
    """From now on this is where the home's server listens."""
    draft = home / f".{FILE_NAME}.{os.getpid()}"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{url}\n")
        os.replace(draft, home / FILE_NAME)
    except OSError as error:
        log.warning(
            "`holdfast env` will not find this server: %s cannot be written (%s)", home, error.strerror
        )


def take_back_address(home: Path, url: str) -> None:
    """This server has left; what another has noted since stays."""
    try:
        if _noted(home) == url:
            (home / FILE_NAME).unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s could not be removed (%s)", home / FILE_NAME, error.strerror)


def local_address(home: Path) -> str | None:
    """Where the home's server listens, if one does."""
    try:
        url = _noted(home)
    except OSError:
        return None
    return url if url and _somebody_listens(url) else None


def _noted(home: Path) -> str | None:
    try:
        return (home / FILE_NAME).read_bytes().decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None


def _somebody_listens(url: str) -> bool:
    try:
        place = urlsplit(url)
        with socket.create_connection((place.hostname or "", place.port or 0), PATIENCE_SECONDS):
            return True
    except (OSError, ValueError):
        return False
