"""The context of one command call: the options that every command has, and what follows from them.

`command` registers an async function as a command: its first parameter is the `CommandContext`, the others
are its own options and arguments. Expected errors are printed to stderr in a sentence or two and set the exit
code.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..domain.maintenance import Swept
    from ..models.base import Model
    from ..settings import Settings

EVERYBODY = "*"

Owner = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The owner of the data; default: 'default'; '*': all owners."),
]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The settings file; default: holdfast.toml of the home.")
]
StoreUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The store, such as sqlite:///agent.db; default: [store] url."),
]
Hidden = Annotated[str | None, typer.Option(hidden=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
IdOrKey = Annotated[
    str, typer.Argument(metavar="ID_OR_KEY", help="A session, conversation or turn id, a key or an alias.")
]

After = Callable[[], int]
"""What a command does after its event loop has been closed; returns its exit code."""
Body = Callable[..., Coroutine[Any, Any, int | After | None]]


@dataclass
class CommandContext:
    context: typer.Context
    owner_name: str | None
    config: Path | None
    store_url: str | None
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings given by the command's own options."""

    @cached_property
    def settings(self) -> Settings:
        from ..settings import load

        given = {name: dict(section) for name, section in self.overrides.items()}
        if self.store_url is not None:
            given.setdefault("store", {})["url"] = self.store_url
        return load(self.config, given=given, given_by="the command line")

    @property
    def owner(self) -> str | None:
        """The owner whose data is read; None: all owners."""
        from ..domain.ids import DEFAULT_OWNER, check_name

        if self.owner_name == EVERYBODY:
            return None
        return DEFAULT_OWNER if self.owner_name is None else check_name("an owner", self.owner_name)

    @property
    def of_everybody(self) -> bool:
        return self.owner_name == EVERYBODY

    @property
    def location(self) -> str:
        """The store's location, for display."""
        from ..settings import store_location

        return store_location(self.settings.store.url)

    @property
    def exists(self) -> bool:
        """Whether there is a store. A database server counts as one: only connecting to it would show."""
        from ..os_support import exists
        from ..settings import database_path, is_postgres

        url = self.settings.store.url
        return is_postgres(url) or exists(database_path(url))

    # --- the store ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def reading(self, *, quiet: bool = False) -> AsyncIterator[Opened | None]:
        """The store, swept, without joining as a node. None if there is no store: reading creates none."""
        if not self.exists:
            self.start_logging()
            yield None
            return
        async with self.making(quiet=quiet) as opened:
            yield opened

    @asynccontextmanager
    async def making(self, *, quiet: bool = False) -> AsyncIterator[Opened]:
        """The same, but creates the store if there is none."""
        from ..app import Holdfast
        from ..domain.nodes import NodeKind

        self.start_logging()
        hf = Holdfast(self.settings, kind=NodeKind.CLI, sweep=False, catch_signals=False, joins=False)
        await hf.start()
        try:
            yield Opened(hf, self.owner, await sweep(hf, quiet=quiet))
        finally:
            await hf.stop()

    @asynccontextmanager
    async def existing(self, *, quiet: bool = False) -> AsyncIterator[Opened]:
        """The same, but raises BadInput if there is no store."""
        async with self.reading(quiet=quiet) as opened:
            if opened is None:
                raise self.nothing_yet()
            yield opened

    @asynccontextmanager
    async def node(
        self, *, existing: bool = False, quiet: bool = False, stays: bool = False, model: Model | None = None
    ) -> AsyncIterator[Holdfast]:
        """Join as a node; leaving the block ends what it holds.

        `existing`: the store must exist. `stays`: a long-running node, which keeps sweeping and supervises
        background processes. `model`: writes summaries and memories.

        Joining and leaving are not interrupted by a signal: nothing would close a half-open store.
        """
        from ..app import Holdfast, finished
        from ..domain.ids import DEFAULT_OWNER
        from ..domain.nodes import NodeKind

        self.start_logging()
        if existing and not self.exists:
            raise self.nothing_yet()
        owner = self.owner or DEFAULT_OWNER
        node = Holdfast(
            self.settings, owner=owner, kind=NodeKind.CLI, sweep=stays, catch_signals=False, model=model
        )
        try:
            await finished(node.start())
            if not stays:
                await sweep(node, quiet=quiet)
            yield node
        finally:
            await finished(node.stop())

    # --- text --------------------------------------------------------------------------------------

    def command(self, *words: str) -> str:
        """A command line to copy, for the same owner and store as this one: `holdfast sessions …`."""
        import shlex

        shared = (("--owner", self.owner_name), ("--config", self.config), ("--store", self.store_url))
        options = [word for option, value in shared if value is not None for word in (option, str(value))]
        return f"{program()} {shlex.join([*words, *options])}"

    def speaking(self, session_id: str, key: str | None, owner: str | None = None) -> str:
        """The command line that sends a message to this session's conversation."""
        mine = replace(self, owner_name=owner) if self.of_everybody else self
        return f'{mine.command("run", *(("--key", key) if key else ("--resume", session_id)))} "…"'

    def wrong_usage(self, sentence: str) -> NoReturn:
        """Print the usage and exit with 2."""
        self.context.fail(sentence)

    def date(self, text: str) -> datetime:
        """A date or time that was typed, in this machine's time zone unless it names one."""
        try:
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            self.wrong_usage(f"{text!r} is not a date such as 2026-03-01 or 2026-03-01T08:00")

    def nothing_yet(self) -> Exception:
        from ..errors import BadInput

        return BadInput(f"there is no store yet at {self.location}. `holdfast run` begins one")

    def start_logging(self, level: str = "warning") -> None:
        """Log to stderr, from this level on unless the settings name one. Commands report by their output."""
        from .logs import start_logging

        settings = self.settings
        start_logging(settings.log.level if "log.level" in settings.origins else level, settings.log.format)


@dataclass(frozen=True)
class Opened:
    """A store opened for one command, the owner whose data it reads, and the result of its first sweep."""

    hf: Holdfast
    owner: str | None
    swept: Swept

    async def full_id(self, name: str) -> str:
        """The id that `name` begins, if it is a shortened one. Raises AmbiguousId."""
        return await self.hf.full_id(self.owner, name)


async def sweep(hf: Holdfast, *, quiet: bool = False) -> Swept:
    """Sweep, and report on stderr what was due. A store error is reported and does not stop a reader."""
    from ..domain.maintenance import Swept
    from ..errors import StoreError
    from .format import count, note

    try:
        done = await hf.sweep()
    except StoreError as error:
        note(f"cleanup failed: {error}")
        return Swept()
    reaped = done.reaped
    if not quiet and (reaped.sessions or reaped.conversations):
        done_for = [
            f"{count(len(reaped.conversations), 'reply')} marked interrupted",
            f"{count(len(reaped.sessions), 'session')} ended",
        ]
        crashed = count(len(reaped.nodes), "crashed process")
        note(f"cleaned up after {crashed}: {', '.join(each for each in done_for if each[0] != '0')}")
    if not quiet and done.reset.reset:
        note(f"{count(len(done.reset.reset), 'session')} reset, as due")
    return done


# --- registering commands ------------------------------------------------------------------------------


def program() -> str:
    """How a person calls this command here: `./holdfast` in a checkout, if `holdfast` is not on the PATH."""
    import os
    import shutil

    here = Path("holdfast")
    if shutil.which("holdfast") is None and os.path.isfile(here) and os.access(here, os.X_OK):
        return "./holdfast"
    return "holdfast"


def command(
    group: typer.Typer,
    name: str,
    *,
    fast_loop: bool = False,
    passes_on: bool = False,
    hides: Collection[str] = (),
) -> Callable[[Body], Body]:
    """Register `body` as the command `name` of a group; its own options come first, then the shared ones.

    `fast_loop`: run it on uvloop, which takes longer to import than most commands take to run. `passes_on`:
    everything after its first argument belongs to another program, also what looks like an option. `hides`:
    shared options that have no effect on it; they are accepted, and not in its help.
    """

    def register(body: Body) -> Body:
        def call(context: typer.Context, **values: Any) -> None:
            above = context.find_root().obj or {}
            shared = {
                option: above.get(option) if (value := values.pop(option)) is None else value
                for option in ("owner", "config", "store")
            }
            invocation = CommandContext(context, shared["owner"], shared["config"], shared["store"])
            raise typer.Exit(carry_out(body(invocation, **values), fast_loop=fast_loop))

        parameter, kind = inspect.Parameter, inspect.Parameter.KEYWORD_ONLY
        _, *own = inspect.signature(body, eval_str=True).parameters.values()
        parameters = [
            parameter("context", kind, annotation=typer.Context),
            *(each.replace(kind=kind) for each in own),
            *(
                parameter(each, kind, default=None, annotation=Hidden if each in hides else annotation)
                for each, annotation in (("owner", Owner), ("config", Config), ("store", StoreUrl))
            ),
        ]
        call.__doc__ = body.__doc__
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        group.command(name, context_settings={"allow_interspersed_args": not passes_on})(call)
        return body

    return register


def carry_out(work: Coroutine[Any, Any, int | After | None], *, fast_loop: bool = False) -> int:
    """Run a command, then what it returns to be done without an event loop; returns its exit code. Expected
    errors are printed in a sentence or two."""
    import asyncio
    import sys

    from ..errors import HoldfastError
    from .format import complain, mute

    try:
        with asyncio.Runner(loop_factory=_uvloop if fast_loop else None) as runner:
            outcome = runner.run(work) or 0
        code = outcome if isinstance(outcome, int) else outcome()
        sys.stdout.flush()
        return code
    except HoldfastError as error:
        complain(error)
        return 1
    except BrokenPipeError:
        mute()
        return 141
    except OSError as error:  # a path that cannot be used, a full disk
        complain(f"{str(error.filename)[:200]}: {error.strerror}" if error.filename else str(error))
        return 1
    except UnicodeEncodeError:  # half a character in an argument or a path
        complain("an argument or a path of this command is not UTF-8 text")
        return 2


def _uvloop() -> Any:
    import uvloop

    return uvloop.new_event_loop()
