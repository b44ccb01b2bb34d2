"""`holdfast run`: one turn by the configured model, streamed to stdout."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ..domain.conversations import Address
from ..domain.ids import new_id
from ..domain.messages import instruction
from ..domain.new_messages import user_message
from ..domain.sessions import EndReason
from ..domain.turns import TurnBegun, TurnRequest
from ..errors import BadSetting, LeaseLost, ModelError, TurnStopped
from .context import CommandContext, command
from .format import complain, harmless, mute, note, on_terminal, remark, write
from .groups import app
from .signals import Interrupts

if TYPE_CHECKING:
    from ..app import Holdfast, Outcome
    from ..models.base import Chunk, Model
    from ..session import LiveSession

KINDS = ("auto", "local", "scripted")
_ADDRESS = re.compile(
    r"\A(?:(localhost|\[[0-9a-fA-F:.]+\]|\d+\.\d+\.\d+\.\d+)(:\d+)?(/.*)?"
    r"|[\w.-]+\.[A-Za-z]+:\d+(/.*)?"
    r"|[\w.-]+:\d+/.*"
    r"|[^\s/]+/(.*/)?v\d+/?)"
)
"""Matches an address without a scheme: an unmistakable host, a port, or a path that ends like an API's."""
SAY_WAITING_SECONDS = 1.0
LONGEST_WAIT = 60.0
"""How many seconds a model that is over its rate limit may ask a person to wait."""


@command(app, "run")
async def run(
    invocation: CommandContext,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT|-", help="The prompt; - or none: read from stdin."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Continue the conversation of this key, or begin it.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue the conversation of this id.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Source label; default: the first part of the key, else 'cli'.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="auto|local|scripted|URL|NAME", help="The model: auto, local, a URL or a name."),
    ] = None,
) -> int:
    """Send a message and print the reply as it streams.

    One turn of a session that ends with it. The message is on disk before the model is called, and the
    reply is saved every half second: after a stop or a kill, continue with the same key.

    \b
    Examples:
      holdfast run --key cli:ada "my name is Ada"
      holdfast run --key cli:ada "what is my name?"
      git diff | holdfast run --model http://localhost:11434/v1 -
    """

    if invocation.of_everybody:
        invocation.wrong_usage("a turn belongs to one owner; name it with --owner NAME")
    if key is not None and resume is not None:
        invocation.wrong_usage("name the conversation by --key or by --resume, not by both")
    words = spoken(prompt, invocation)
    with model_usage(invocation):
        invocation.overrides = {"model": model_setting(model)} if model is not None else {}
    if source is None:
        source = "" if resume or (key and ":" in key) else "cli"
    invocation.start_logging("error")  # what a warning of a failed turn says is in its error
    logging.getLogger("holdfast.models.choose").setLevel(logging.WARNING)  # that another model answers
    with Interrupts() as interrupts:
        return await _Run(invocation, interrupts).turn(words, key, resume, source)


def spoken(prompt: str | None, invocation: CommandContext) -> str:
    """The message to send; from stdin if the prompt is `-`, or absent and stdin is a pipe."""
    if prompt is None and sys.stdin.isatty():
        invocation.wrong_usage('no prompt given; for example: holdfast run "hello"')
    if prompt is None or prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            invocation.wrong_usage(f"stdin is not UTF-8 text: {error.reason} at byte {error.start}")
    if not prompt.strip():
        invocation.wrong_usage("the prompt is empty")
    return prompt


def model_setting(value: str) -> dict[str, str]:
    """The settings of `--model`: a kind, a URL, or a model name. BadSetting for a URL without scheme."""

    if value in KINDS:
        return {"kind": value}
    if "://" in value:
        return {"kind": "openai", "base_url": value}
    if _ADDRESS.fullmatch(value):
        raise BadSetting(
            f"--model {value} looks like an address without its scheme; write http://{value} or "
            f"https://{value}. If it is a model's name, set [model] name (HOLDFAST_MODEL__NAME)"
        )
    return {"name": value}


@contextmanager
def model_usage(invocation: CommandContext) -> Iterator[None]:
    """Treat an invalid `--model` or `[model]` as wrong usage: exit 2, with what to do."""

    try:
        yield
    except BadSetting as error:
        invocation.wrong_usage(str(error))


class _Run:
    """One `holdfast run`, from choosing the model to the exit code."""

    def __init__(self, invocation: CommandContext, interrupts: Interrupts) -> None:
        self._invocation = invocation
        self._interrupts = interrupts
        self._voice = ReplyPrinter(nobody_listens=interrupts.stop)
        self._session: LiveSession | None = None
        self._begun = False
        self._answered = False

    async def turn(self, words: str, key: str | None, resume: str | None, source: str) -> int:

        from ..settings import home
        from .server_model import ServerModel, model_beside

        try:
            settings = self._invocation.settings
            with model_usage(self._invocation):
                model = await model_beside(settings, home(), longest_wait=LONGEST_WAIT)
            if isinstance(model, ServerModel) and sys.stderr.isatty():
                note(model.description)
            try:
                async with self._invocation.node(existing=resume is not None) as node:
                    if resume is not None:
                        # Resolved first: the library would create a session for an unknown name.
                        resume = (await node.resolve_name(node.owner, resume)).conversation.id
                    self._session = await node.session(key, id=resume, source=source)
                    await self._answer(node, model, words)
            finally:
                self._voice.finish()
                await model.close()
        except asyncio.CancelledError:
            return self._stopped()
        except (LeaseLost, TurnStopped):
            complain("the turn was ended elsewhere; its partial reply is kept", self._resume_hint())
            return 1
        except ModelError as error:
            complain(error, f"Your message is kept. {self._resume_hint()}" if self._begun else "")
            return 1
        return 0

    async def _answer(self, node: Holdfast, model: Model, words: str) -> None:

        from ..app import RunningTurn, TurnSpec, Unanswered, answer_with, finished

        assert self._session is not None
        settings = self._invocation.settings
        name, wait = settings.model.name or None, settings.server.busy_wait_seconds
        prompt = settings.agent.system_prompt
        request = TurnRequest(
            turn_id=new_id("turn"),
            owner=node.owner,
            node_id=node.node_id,
            address=Address(id=self._session.conversation_id),
            messages=(user_message(words),),
            attached=True,
            model=name,
        )
        order = TurnSpec(
            request,
            self._voice,
            (instruction(prompt),) if prompt else (),
            model=name,
            tools=frozenset(settings.agent.tools),
        )
        answer_with(node, model)
        busy = f"the conversation is busy with another turn; waiting up to {wait:g} s"
        waiting = asyncio.get_running_loop().call_later(SAY_WAITING_SECONDS, note, busy)
        try:
            running = await node.runner.begin(order, wait)
            waiting.cancel()
            assert isinstance(running, RunningTurn)
            self._begun = True
            outcome = await running.ended()
        finally:
            waiting.cancel()
        if isinstance(outcome, Unanswered):
            raise outcome.error
        self._answered = True
        # Only a session opened by this run ends with it; one that was open before stays open.
        await finished(node.stop(EndReason.COMPLETED))

    def _stopped(self) -> int:
        """The exit code after a signal, or when stdout has no reader any more."""

        if self._answered:
            return 0
        if self._interrupts.number is None:
            return 141
        if self._begun:
            remark("Interrupted; the partial reply is kept", self._resume_hint())
        else:
            remark("Interrupted before the reply began")
        return self._interrupts.exit_code

    def _resume_hint(self) -> str:
        assert self._session is not None
        return f"Continue with: {self._invocation.speaking(self._session.id, self._session.key)}"


class ReplyPrinter:
    """Renders a turn for `run`: the reply on stdout as it streams, with escape sequences made harmless."""

    numbered = False
    apart = False

    def __init__(self, nobody_listens: Callable[[], None]) -> None:
        self._nobody_listens = nobody_listens
        self._muted = False
        self._last = "\n"

    def begin(self, begun: TurnBegun) -> Sequence[bytes]:
        return ()

    def add(self, chunk: Chunk) -> Sequence[bytes]:
        self.say(chunk)
        return ()

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        if spoke:
            self._write("\n\n")
        return ()

    def moved(self, begun: TurnBegun) -> None:
        return None

    def end(self, outcome: Outcome) -> Sequence[bytes]:
        self.finish()
        return ()

    def say(self, chunk: Chunk) -> None:

        text = chunk.adds.get("content", "")
        if text:
            self._write(harmless(text) if on_terminal() else text)

    def finish(self) -> None:
        """End the line, unless the reply did."""
        if not self._last.endswith("\n"):
            self._write("\n")

    def _write(self, text: str) -> None:

        if self._muted:
            return
        try:
            write(text)
            self._last = text
        except OSError:  # the pipe's reader exited, or the terminal was closed
            self._muted = True
            mute()
            self._nobody_listens()
