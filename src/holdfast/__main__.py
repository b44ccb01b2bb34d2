"""`python -m holdfast` is the `holdfast` command."""

from __future__ import annotations

from .surfaces.cli.main import main

if __name__ == "__main__":
    main()
