"""`holdfast sessions end|cancel|resume|fork|title|compact|rewind|delete|export`: actions on a session."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..domain.headings import NO_HEADING
from ..domain.ids import new_id
from ..domain.rewinds import Rewound
from ..domain.sessions import FRESH_AFTER, Session
from ..errors import BadInput, HoldfastError
from ..os_support import exists
from ..server import objects
from .context import AsJson, CommandContext, IdOrKey, command
from .format import complain, count, print_json, remark, say
from .groups import sessions
from .signals import bar, busy

if TYPE_CHECKING:
    from ..app import Holdfast


LONGEST_NUMBER = 18
"""Digits of a message's number."""


class EndReasonOption(StrEnum):
    CLOSED = "closed"
    COMPLETED = "completed"
    NEW = "new"


@command(sessions, "end")
async def end(
    invocation: CommandContext,
    id_or_key: IdOrKey,
    reason: Annotated[
        EndReasonOption,
        typer.Option(help="Why; after 'new' the next message starts a new session, else it continues."),
    ] = EndReasonOption.CLOSED,
    as_json: AsJson = False,
) -> None:
    """End an open session.

    \b
    Examples:
      holdfast sessions end cli:ada
      holdfast sessions end cli:ada --reason new
    """

    async with invocation.existing(quiet=as_json) as opened:
        session = await opened.hf.current_session(opened.owner, id_or_key)
        ended = await opened.hf.end_session(opened.owner, session.id, reason.value)
        session = await opened.hf.find_session(opened.owner, session.id)
        if as_json:
            await _print_session(opened.hf, session)
        elif ended:
            say(f"{session.id} has ended: {session.end_reason}.")
        else:
            say(f"{session.id} had already ended: {session.end_reason}.")


@command(sessions, "cancel")
async def cancel(invocation: CommandContext, id_or_key: IdOrKey, as_json: AsJson = False) -> None:
    """Cancel the running turn and withdraw those queued after it.

    \b
    Example:
      holdfast sessions cancel cli:ada
    """

    async with invocation.existing(quiet=as_json) as opened:
        cancelled = await opened.hf.cancel_running(opened.owner, id_or_key)
        turn = cancelled.turn
        if as_json:
            session = await opened.hf.current_session(opened.owner, id_or_key)
            print_json(objects.turn(turn) if turn else objects.nothing_cancelled(session, cancelled))
            return
        if turn and cancelled.stopped:
            say(f"{turn.id} was cancelled; its partial reply is kept.")
        elif turn:
            say(f"{turn.id} was no longer running: {turn.status.value}.")
        else:
            say("No turn is running there.")
        if cancelled.withdrawn:
            say(f"{cancelled.queue_sentence}.")


@command(sessions, "resume")
async def resume(invocation: CommandContext, id_or_key: IdOrKey, as_json: AsJson = False) -> None:
    """Continue from an older session.

    Opens a new session, detached, with the context of exactly this session. If a newer one
    is open, it ends as 'new'.

    \b
    Example:
      holdfast sessions resume sess_3f2a…
    """

    async with invocation.node(existing=True, quiet=as_json) as node:
        session = await node.session_named(invocation.owner, id_or_key)
        resumed = await node.resume_session(session.owner, session.id)
        if as_json:
            await _print_session(node, resumed)
        elif resumed.id == session.id:
            say(f"{session.id} is open already.")
        else:
            say(f"{resumed.id} continues {session.id}.")
        if not as_json:
            say(f"Send it a message with: {invocation.speaking(resumed.id, resumed.key, resumed.owner)}")


@command(sessions, "fork")
async def fork(
    invocation: CommandContext,
    id_or_key: IdOrKey,
    up_to: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only up to message number N.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The new conversation's key.")] = None,
    as_json: AsJson = False,
) -> None:
    """Begin a new conversation with a copy of a session's context.

    The session itself stays as it is.

    \b
    Examples:
      holdfast sessions fork cli:ada --key cli:ada:experiment
      holdfast sessions fork sess_3f2a… --up-to 4
    """

    async with invocation.node(existing=True, quiet=as_json) as node:
        session = await node.session_named(invocation.owner, id_or_key)
        forked = await node.fork_session(session.owner, session.id, up_to=up_to, key=key)
        if as_json:
            await _print_session(node, forked)
        else:
            say(f"{forked.id} in {forked.conversation_id} begins as a copy of {session.id}.")
            say(f"Send it a message with: {invocation.speaking(forked.id, forked.key, forked.owner)}")


@command(sessions, "title")
async def title(
    invocation: CommandContext,
    id_or_key: IdOrKey,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TITLE…]", help="The new title; without it, print it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Name a conversation, or print its name.

    A title that you set is never replaced by one that the model makes.

    \b
    Examples:
      holdfast sessions title cli:ada Holidays in Brittany
      holdfast sessions title sess_3f2a61bc
    """

    async with invocation.existing(quiet=as_json) as opened:
        session = await opened.hf.session_named(opened.owner, id_or_key)
        if words:
            await opened.hf.set_title(opened.owner, session.conversation_id, " ".join(words))
            session = await opened.hf.find_session(opened.owner, session.id)
        if as_json:
            await _print_session(opened.hf, session)
            return
        headings = await opened.hf.headings_of([session])
        first_words = headings[session.conversation_id].first_words
        say(session.title or first_words or "It has no title and no messages yet.")


@command(sessions, "compact")
async def compact(
    invocation: CommandContext,
    id_or_key: IdOrKey,
    model: Annotated[
        str | None,
        typer.Option(metavar="auto|local|URL|NAME", help="Model for the summary; default: the settings'."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replace older messages of a context by a summary, now.

    The messages stay readable; only what the model is given changes. A new session continues.

    \b
    Examples:
      holdfast sessions compact cli:ada
      holdfast sessions compact sess_3f2a61bc --json
    """

    from ..app import answer_with
    from ..models.choose import choose_from
    from .run import LONGEST_WAIT, model_setting, model_usage

    with model_usage(invocation):
        invocation.overrides = {"model": model_setting(model)} if model is not None else {}
        answers = await choose_from(invocation.settings.model, longest_wait=LONGEST_WAIT)
    try:
        async with invocation.node(existing=True, quiet=as_json) as node:
            answer_with(node, answers)
            before = await node.resolve_name(invocation.owner, id_or_key)
            tip = before.tip
            if tip.ended and tip.end_reason not in FRESH_AFTER:  # its context continues: so does the session
                tip = await node.resume_session(tip.owner, tip.id)
            try:
                with busy("writing a summary"):
                    session = await node.compact(tip.owner, tip.id)
            except HoldfastError:
                if tip.id != before.tip.id:
                    await node.end_session(tip.owner, tip.id)
                raise
            if as_json:
                await _print_session(node, session)
            else:
                say(f"{session.id} continues {before.tip.id}, with a summary of its older messages.")
    finally:
        await answers.close()


@command(sessions, "rewind")
async def rewind(
    invocation: CommandContext,
    id_or_key: IdOrKey,
    message_or_turn: Annotated[
        str | None, typer.Argument(help="A message's id or number, or a turn's id: its end.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="ID", help="The same, as an option.")] = None,
    as_json: AsJson = False,
) -> None:
    """Continue from an earlier message; what followed stays readable.

    What followed leaves the context. Rewinding to a later message brings it back. Refused while a turn runs.

    \b
    Examples:
      holdfast sessions rewind cli:ada 4
      holdfast sessions rewind cli:ada --to turn_3f2a…
    """

    named = message_or_turn or to
    if named is None or (message_or_turn and to):
        invocation.wrong_usage("name the message or turn to continue from, once")
    async with invocation.existing(quiet=as_json) as opened:
        target: str | int = int(named) if named.isdecimal() and len(named) <= LONGEST_NUMBER else named
        target = await opened.full_id(target) if isinstance(target, str) else target
        done = await opened.hf.rewind(opened.owner, id_or_key, target)
        if as_json:
            await _print_session(opened.hf, done.session)
        else:
            say(rewound_sentence(done))


def rewound_sentence(done: Rewound) -> str:
    """What a rewind has done, for a person."""
    left, restored = count(done.left, "message"), count(done.restored, "message")
    changed = f"{left} left the context" + (f", {restored} came back" if done.restored else "")
    at = f"message {done.to}" if done.to else "the beginning"
    return f"{done.session.id} continues from {at}: {changed}. All of them stay readable."


@command(sessions, "delete")
async def delete(
    invocation: CommandContext,
    id_or_key: IdOrKey,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Delete a whole conversation permanently.

    The one the session belongs to, with every session and message in it; a running turn is cancelled.

    \b
    Examples:
      holdfast sessions delete cli:ada
      holdfast sessions delete conv_9c41… --yes
    """

    async with invocation.existing() as opened:
        place = await opened.hf.resolve_name(opened.owner, id_or_key)
        conversation = place.conversation
        line = await opened.hf.line(opened.owner, conversation.id)
        name = f"{conversation.id} ({conversation.key})" if conversation.key else conversation.id
        holds = f"{count(len(line), 'session')}, {count(conversation.last_seq, 'message')}"
        if not yes:
            if not sys.stdin.isatty():
                complain(f"this would delete {name} permanently", "Use --yes to confirm.")
                return 2
            if not typer.confirm(f"Delete {name}, {holds}, permanently?"):
                say("Nothing was deleted.")
                return 1
        await opened.hf.delete_conversation(opened.owner, conversation.id)
        say(f"{name} is deleted: {holds}.")
        return 0


async def _print_session(hf: Holdfast, session: Session) -> None:

    states, flushes = await hf.states_of([session]), await hf.flushes_of([session])
    headings = await hf.headings_of([session])
    heading = headings.get(session.conversation_id, NO_HEADING)
    print_json(objects.session(session, states[session.id], flushes.get(session.id), heading=heading))


@command(sessions, "export")
async def export(
    invocation: CommandContext,
    id_or_key: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID_OR_KEY]", help="The conversation that this session id, key or alias leads to."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Export everything (default).")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; it must not exist yet.")
    ] = None,
) -> None:
    """Write conversations as JSON Lines, with everything in them.

    `holdfast import FILE` imports them into another store.

    \b
    Examples:
      holdfast sessions export cli:ada > ada.jsonl
      holdfast sessions export --all -o conversations.jsonl
    """

    if id_or_key is not None and everything:
        invocation.wrong_usage("name one conversation or pass --all, not both")
    _require_new(output)
    async with invocation.existing(quiet=True) as opened:
        chosen = None
        if id_or_key is not None:
            chosen = (await opened.hf.resolve_name(opened.owner, id_or_key)).conversation.id
        lines = opened.hf.exported(opened.owner, chosen)
        if output is None:
            async for line in lines:
                sys.stdout.buffer.write(line + b"\n")
            return
        with bar("No file was left.") as shows:
            whole = 1 if id_or_key is not None else (await opened.hf.statistics(opened.owner)).conversations
            conversations = await _write(output, lines, lambda done: shows("exporting", done, whole))
        remark(f"{count(conversations, 'conversation')} exported to {output}")


def _require_new(target: Path | None) -> None:

    if target is not None and exists(target):
        raise BadInput(f"{target} exists already; an export never overwrites a file")


async def _write(target: Path, lines: AsyncIterator[bytes], exported: Callable[[int], None]) -> int:
    """Write a file atomically, readable only by its owner; returns the number of conversations. `exported` is
    called with the number so far."""

    partial = target.with_name(f"{target.name}.{new_id('partial')}")
    number = 0
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            async for line in lines:
                if line.startswith(b'{"record":"conversation"'):
                    exported(number)
                    number += 1
                file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, target)
    except OSError as error:
        raise BadInput(f"cannot write {target} ({error.strerror}); nothing was left behind") from error
    finally:
        partial.unlink(missing_ok=True)
    return number
