"""`holdfast run`: one turn by the configured model, streamed to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .invocation import EVERYBODY, Invocation, command
from .tree import app

if TYPE_CHECKING:
    from ...app import Holdfast
    from ...handles import LiveSession
    from ...models.base import Chunk, Model
    from .interrupts import Interrupts

KINDS = ("auto", "local", "scripted")
SAY_WAITING_SECONDS = 1.0


@command(app, "run")
async def run(
    invocation: Invocation,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT|-", help="What to say; - or nothing: read it from stdin."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Go on with the conversation of this key, or begin it.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with the conversation this id belongs to.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Where it comes from; else read off the key, else 'cli'.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="auto|local|scripted|URL|NAME", help="Who answers.")
    ] = None,
) -> int:
    """Say something and print the answer, as it comes.

    One turn of a session that ends with it. What you say is on disk before the model is asked, and what it
    answers is never further than half a second ahead of the disk: stop it, kill it, and go on with the same
    key.

    \b
    Examples:
      holdfast run --key cli:ada "my name is Ada"
      holdfast run --key cli:ada "what is my name?"
      git diff | holdfast run --model http://localhost:11434/v1 -
    """
    from .interrupts import Interrupts

    if invocation.owner_name == EVERYBODY:
        invocation.wrong_usage("a turn belongs to one owner; name it with --owner NAME")
    if key is not None and resume is not None:
        invocation.wrong_usage("name the conversation by --key or by --resume, not by both")
    words = spoken(prompt, invocation)
    invocation.overrides = {"model": model_setting(model)} if model is not None else {}
    if source is None:
        source = "" if resume or (key and ":" in key) else "cli"
    with Interrupts() as interrupts:
        return await _Run(invocation, interrupts).turn(words, key, resume, source)


def spoken(prompt: str | None, invocation: Invocation) -> str:
    """What is to be said; from stdin if the prompt is `-`, or absent and somebody pipes."""
    if prompt is None and sys.stdin.isatty():
        invocation.wrong_usage('there is nothing to say; for example: holdfast run "hello"')
    if prompt is None or prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            invocation.wrong_usage(f"stdin is not UTF-8 text: {error.reason} at byte {error.start}")
    if not prompt.strip():
        invocation.wrong_usage("there is nothing to say: the prompt is empty")
    return prompt


def model_setting(value: str) -> dict[str, str]:
    """Which settings `--model` stands for: a kind, an address, or a model's name."""
    if value in KINDS:
        return {"kind": value}
    if "://" in value:
        return {"kind": "openai", "base_url": value}
    return {"name": value}


class _Run:
    """One `holdfast run`, from choosing the model to the exit code."""

    def __init__(self, invocation: Invocation, interrupts: Interrupts) -> None:
        self._invocation = invocation
        self._interrupts = interrupts
        self._session: LiveSession | None = None
        self._turn_id: str | None = None
        self._voice = Voice(interrupts.stop)

    async def turn(self, words: str, key: str | None, resume: str | None, source: str) -> int:
        import asyncio

        from ...errors import HoldfastError, LeaseLost, ModelError
        from .output import complain

        try:
            model = await chosen_model(self._invocation)
            try:
                owner = self._invocation.owner
                assert owner is not None
                async with self._invocation.node(owner) as node:
                    self._session = await node.session(key, id=resume, source=source)
                    return await self._answer(node, model, words)
            finally:
                await model.close()
        except asyncio.CancelledError:
            self._voice.end()
            if self._voice.unheard:
                raise BrokenPipeError from None
            if self._interrupts.number is None:
                raise
            complain("interrupted" + (f"; what was said is kept. {self._go_on()}" if self._turn_id else ""))
            return self._interrupts.exit_code
        except LeaseLost:
            self._voice.end()
            complain(f"the turn was ended by someone else; what was said is kept. {self._go_on()}")
        except ModelError as error:
            self._voice.end()
            complain(error, f"Your message is kept. {self._go_on()}" if self._turn_id else "")
        except HoldfastError:
            self._voice.end()
            raise
        return 1

    async def _answer(self, node: Holdfast, model: Model, words: str) -> int:
        from ...domain.sessions import EndReason
        from ...runtime.turn_runner import TurnRunner

        assert self._session is not None
        settings = self._invocation.settings
        waiting = self._say_if_waiting(settings.server.busy_wait_seconds)
        try:
            live = self._session.turn(words, model=settings.model.name or None)
            async with live as turn:
                waiting.cancel()
                self._turn_id = turn.id
                await TurnRunner(node.store).answer(
                    turn,
                    model,
                    instructions=settings.agent.system_prompt,
                    name=settings.model.name or None,
                    listen=self._voice.say,
                )
        finally:
            waiting.cancel()
        self._voice.end()
        # Only a session that was opened for this run ends with it; one that was open before goes on.
        await node.stop(EndReason.COMPLETED)
        return 0

    def _say_if_waiting(self, seconds: float) -> Any:
        import asyncio

        from .output import note

        sentence = f"the conversation is busy with another turn; waiting up to {seconds:g} s"
        return asyncio.get_running_loop().call_later(SAY_WAITING_SECONDS, note, sentence)

    def _go_on(self) -> str:
        from .words import shell

        session = self._session
        assert session is not None
        name = f"--key {shell(session.key)}" if session.key else f"--resume {session.id}"
        owner = self._invocation.owner_name
        return f'Go on with: holdfast run {f"--owner {shell(owner)} " if owner else ""}{name} "…"'


class Voice:
    """The answer on stdout, piece by piece; harmless to a terminal. `stop`: what to do when nobody listens."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self.unheard = False
        """Has whoever read us left?"""
        self._last = "\n"

    def say(self, chunk: Chunk) -> None:
        from .output import harmless, on_terminal

        text = chunk.adds.get("content", "")
        if not text or self.unheard:
            return
        try:
            sys.stdout.write(harmless(text) if on_terminal() else text)
            sys.stdout.flush()
            self._last = text
        except BrokenPipeError:
            self.unheard = True
            self._stop()

    def end(self) -> None:
        """Begin a new line, unless the answer did."""
        if not self._last.endswith("\n") and not self.unheard:
            self._last = "\n"
            sys.stdout.write("\n")
            sys.stdout.flush()


async def chosen_model(invocation: Invocation) -> Model:
    """Who answers, by the settings."""
    import os

    from ...models.choose import choose

    settings = invocation.settings.model
    return await choose(
        settings.kind,
        settings.base_url,
        settings.name,
        os.environ.get(settings.api_key_env, ""),
        settings.timeout_seconds,
    )
