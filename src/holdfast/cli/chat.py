"""`holdfast chat`: talk in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from ..settings import home
from .context import CommandContext, command
from .groups import app
from .run import model_setting, model_usage


@command(app, "chat")
async def chat(
    invocation: CommandContext,
    key: Annotated[
        str | None,
        typer.Option(help="Continue the conversation of this key, or begin it; default: cli:<you>."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Continue this session, conversation, alias or key; it must exist."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Source label; default: the first part of the key, else 'cli'.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="auto|local|scripted|URL|NAME", help="The model: auto, local, a URL or a name."),
    ] = None,
) -> int:
    """Chat in the terminal.

    The session ends with this process. Ctrl-C interrupts a reply and keeps the partial reply. After a kill
    the next chat continues the conversation and shows the partial reply, marked; /retry generates it again.
    In a pipe each line is one message. /help in the chat lists its commands.

    If a server of the same home runs, its model is asked and none is loaded here, unless a URL is named.

    \b
    Examples:
      holdfast chat
      holdfast chat --key cli:ada --model http://localhost:11434/v1
      holdfast chat --resume sess_3f2a…
    """
    from ..chat.chat import chat as talk
    from ..chat.terminal import input_of

    if invocation.of_everybody:
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
    return await talk(invocation, input_of(home()), key, resume, source)


def user() -> str:
    """The user name for the default session key."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        import os

        return str(os.getuid())
