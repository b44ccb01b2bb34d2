"""A clock that stops while any process of this machine waits for a processor.

For promises in seconds, such as "settled within 2 s": other work on the machine must not break them. Linux
counts the time during which a process waited (`/proc/pressure/cpu`); where it does not, this is the ordinary
monotonic clock. A wait that is bounded by this clock needs a bound in real time too: it hardly moves on a
machine that is always busy.
"""

from __future__ import annotations

import time
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")


def now() -> float:
    """Seconds; only differences mean anything."""
    return time.monotonic() - waited()


def waited() -> float:
    """Seconds since the machine started during which some process was ready and had no processor."""
    try:
        some = PRESSURE.read_text().splitlines()[0]
    except (OSError, IndexError):
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6
