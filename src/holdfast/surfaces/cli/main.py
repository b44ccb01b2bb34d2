"""The `holdfast` command's entry point, also `python -m holdfast`.

It imports nothing at its own import, so that Ctrl-C is quiet from the first moment.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 128 + n stopped by signal n."""
    try:
        from .commands import app

        app(prog_name="holdfast")
    except KeyboardInterrupt:
        sys.exit(130)
