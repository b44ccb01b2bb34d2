"""`holdfast chat`: talk in the terminal."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from ..settings import home
from .context import EVERYBODY, CommandContext, command
from .groups import app
from .run import model_setting, model_usage


@command(app, "chat")
async def chat(
    invocation: CommandContext,
    key: Annotated[
        str | None,
        typer.Option(help="Go on with the conversation of this key, or begin it; else 'cli:<you>'."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Go on with this session, conversation, alias or key; it must exist."
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Where it comes from; else read off the key, else 'cli'.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="auto|local|scripted|URL|NAME", help="Who answers.")
    ] = None,
) -> int:
    """Talk in the terminal; /help there lists the commands.

    The session lives as long as this process. Ctrl-C interrupts a reply and keeps what it said. Kill it, and
    the next chat goes on where it was, the reply that was cut short marked; /retry takes it up. Lines of a
    pipe are messages, one by one.

    \b
    Examples:
      holdfast chat
      holdfast chat --key cli:ada --model http://localhost:11434/v1
      holdfast chat --resume sess_3f2a…
    """
    from ..chat.chat import chat as talk
    from ..chat.input import lines_of
    from ..chat.terminal import ChatTerminal

    if invocation.owner_name == EVERYBODY:
        invocation.wrong_usage("a chat belongs to one owner; name it with --owner NAME")
    if key is not None and resume is not None:
        invocation.wrong_usage("name the conversation by --key or by --resume, not by both")
    with model_usage(invocation):
        invocation.overrides = {"model": model_setting(model)} if model is not None else {}
    invocation.start_logging("error")  # a warning would be written over the line that is being typed
    if key is None and resume is None:
        key = f"cli:{user()}"
    if source is None:
        source = "" if resume or (key and ":" in key) else "cli"
    desk = ChatTerminal(lines_of(home()))

    def work() -> Coroutine[Any, Any, int]:
        return talk(invocation, desk, key, resume, source)

    return desk.serve(work)  # the chat runs in its own loop and thread: this thread reads the keyboard


def user() -> str:
    """The user name for the default session key."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        import os

        return str(os.getuid())
