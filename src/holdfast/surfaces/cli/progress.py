"""Shows on a terminal that long work goes on; anywhere else it shows nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner on stderr while the block runs."""
    if not sys.stderr.isatty():
        yield
        return
    from .output import console

    with console(stderr=True).status(f"{what} …"):
        yield
