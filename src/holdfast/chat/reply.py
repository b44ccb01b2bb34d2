"""Shows a reply on a terminal while it streams: Markdown, tables and code, with a spinner until it ends.

A block that later text cannot change is printed once. The last block is redrawn as it grows, below the
printed ones and never higher than the screen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..cli.format import console, harmless

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.text import Text

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAMES_PER_SECOND = 10
ROOM = 4
"""Rows of the screen that a growing block leaves free."""
CODE_THEME = "ansi_dark"


class ReplyView:
    """One reply. `add` its text, then `finish`."""

    def __init__(self, doing: str = "") -> None:
        self.doing = doing
        """What the reply waits for, such as a tool; shown with the spinner."""
        self._screen = console()
        self.growing = ""
        self._pieces = 0
        self.printed = False
        self._began = time.monotonic()
        self._live: Live | None = None

    def start(self) -> None:
        from rich.live import Live

        self._live = Live(
            get_renderable=lambda: _Growing(self),
            console=self._screen,
            auto_refresh=False,  # a thread that draws would race with what is printed above
            transient=True,
        )
        self._live.start()
        self._screen.show_cursor(True)  # a killed chat must not leave the terminal without one

    def add(self, text: str) -> None:
        """Add text of the reply. Control characters are escaped."""
        self._pieces += 1
        self.growing += harmless(text)
        done = settled(self.growing)
        block, self.growing = self.growing[:done], self.growing[done:]
        if block.strip():
            self._print(block)
        self.draw()

    def draw(self) -> None:
        """Redraw the spinner and the growing block; called a few times a second."""
        if self._live is not None:
            self._live.refresh()

    def finish(self) -> None:
        """Print what is left; later text begins a new reply."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        block, self.growing = self.growing, ""
        if block.strip():
            self._print(block)

    @property
    def status(self) -> str:
        """`⠹ 3 s · 12 tokens`; a token is taken for each piece the model sent."""
        passed = time.monotonic() - self._began
        parts = [f"{passed:.0f} s"]
        if self.doing:
            parts.insert(0, self.doing)
        if self._pieces:
            parts.append(f"{self._pieces} tokens")
        return f"{FRAMES[int(passed * FRAMES_PER_SECOND) % len(FRAMES)]} {' · '.join(parts)}"

    def _print(self, block: str) -> None:
        from rich.text import Text

        if self.printed:
            self._screen.print()
        self.printed = True
        for line in rendered(block, self._screen, self._screen.options):
            self._screen.print(line if line.plain.strip() else Text(), soft_wrap=True)


class _Growing:
    def __init__(self, view: ReplyView) -> None:
        self._view = view

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        lines = list(rendered(self._view.growing, screen, options))
        if lines and self._view.printed:
            lines.insert(0, Text())
        yield from lines[-max(1, screen.height - ROOM) :]
        yield Text(self._view.status, "dim", no_wrap=True, overflow="crop")


def rendered(block: str, screen: Console, options: ConsoleOptions) -> Iterator[Text]:
    """The lines of this Markdown, without blank ones at its ends and without trailing blanks."""
    from rich.markdown import Markdown
    from rich.text import Text

    if not block.strip():
        return
    lines = [
        Text.assemble(*((segment.text, segment.style or "") for segment in line if not segment.control))
        for line in screen.render_lines(
            Markdown(block, code_theme=CODE_THEME, hyperlinks=False), options, pad=False
        )
    ]
    for line in lines:
        line.rstrip()
    while lines and not lines[0].plain:
        lines.pop(0)
    while lines and not lines[-1].plain:
        lines.pop()
    yield from lines


def settled(text: str) -> int:
    """How many characters at its beginning are Markdown blocks that added text cannot change."""
    from markdown_it import MarkdownIt

    blocks = [
        token.map[0]
        for token in MarkdownIt("commonmark").enable("table").parse(text)
        if token.level == 0 and token.map is not None and token.nesting >= 0
    ]
    if len(blocks) < 2:
        return 0
    return sum(len(line) + 1 for line in text.split("\n")[: blocks[-1]])
