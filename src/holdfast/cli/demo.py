"""`holdfast demo`: shows the promises of holdfast in about a minute."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Annotated

import typer

from .context import CommandContext, command
from .format import Styled, complain, on_terminal, remark, say
from .groups import app
from .signals import Interrupts


@command(app, "demo", hides=("owner", "config", "store"))
async def demo(
    invocation: CommandContext,
    no_page: Annotated[
        bool, typer.Option("--no-page", help="End after the tour, without the page and its red button.")
    ] = False,
) -> int:
    """Show what survives kill -9, in about a minute.

    On real processes: kills the server in the middle of a reply, restarts it with nothing lost, lets the next
    server finish a reply, leaves no session open, compacts, resets although a preview server was
    forgotten, and writes a memory once. Each step prints its proof. A script answers instead of a model, and
    everything is in a temporary home: yours is not touched. On a terminal it ends with a page and a red
    button.

    \b
    Examples:
      holdfast demo
      holdfast demo --no-page
    """

    from ..demo.stage import Stage, WentWrong
    from ..demo.storyteller import Storyteller
    from ..demo.tour import Tour, keep_page

    began, toured = time.monotonic(), False
    with Interrupts() as interrupts:
        try:
            async with Storyteller() as teller, Stage(teller.url) as stage:
                try:
                    say("holdfast, on real processes, in ", Styled(str(stage.home), "bold"))
                    say(Styled("A script answers instead of a model; everything else is real.", "dim"))
                    await Tour(stage, teller).run()
                    toured = True
                    took = time.monotonic() - began
                    say()
                    say(Styled(f"Five promises kept, in {took:.0f} s.", "bold green"))
                    if not no_page and on_terminal() and sys.stdin.isatty():
                        await keep_page(stage)
                except (WentWrong, OSError) as error:
                    complain(f"the demo failed: {error}", _and_logged(stage.last_words()))
                    return 1
        except asyncio.CancelledError:
            remark("Ended; everything that the demo made is gone")
            return 0 if toured else interrupts.exit_code
    return 0


def _and_logged(words: str) -> str:
    return f"Last output of its programs:\n{words}" if words else ""
