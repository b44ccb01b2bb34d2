"""The `holdfast` command's entry point, also `python -m holdfast`."""

from __future__ import annotations

import gc
import signal


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 128 + n stopped by signal n.

    Ctrl-C ends a command at once and without a traceback, at any moment: the store loses nothing. Commands
    that need an orderly shutdown handle it themselves (`cli/signals.py`).
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(50_000, 20, 100)  # imports make many objects and no garbage
    from .cli.groups import app

    app(prog_name="holdfast")


if __name__ == "__main__":
    main()
