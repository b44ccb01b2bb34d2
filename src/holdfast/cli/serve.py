"""`holdfast serve`: checks the settings and the API key, prints the start lines, and runs `server.server`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..dependencies import untested
from ..errors import BadSetting
from ..local_server import local_key, note_address, take_back_address
from ..settings import Settings, home, is_postgres
from .context import After, CommandContext, carry_out, command, program
from .format import on_terminal, write
from .groups import app
from .run import model_setting, model_usage

if TYPE_CHECKING:
    from ..app import Operations
    from ..models.base import Model
    from ..server.server import Listening
    from ..server.workers.worker import Worker

log = logging.getLogger(__name__)

SHORTEST_KEY = 20
"""Minimum length of $HOLDFAST_API_KEY that cannot be guessed over a network."""
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")

NO_SHARED_MODEL = (
    "the local model runs inside the server, and each worker would load it again; set [server] workers = 1 "
    "(--workers 1), or give the model a server of its own, such as Ollama, and name it with --model URL"
)


@command(app, "serve", fast_loop=True, hides=("owner",))
async def serve(
    invocation: CommandContext,
    host: Annotated[str | None, typer.Option(metavar="H", help="The address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(metavar="P", min=0, max=65535, help="The port to listen on; 0: any.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=64, help="How many processes serve the port, each a node."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="auto|local|scripted|URL|NAME", help="The model: auto, local, a URL or a name."),
    ] = None,
) -> int | After:
    """Serve the OpenAI API; every conversation is kept.

    Any OpenAI client works with only its base URL changed. On 127.0.0.1, the default, the first start makes a
    key for this user, and `holdfast env` prints it; any other address needs one beforehand: `holdfast keys
    create`. Ctrl-C or SIGTERM lets running turns finish for a few seconds; partial replies are kept.

    With --workers, the first process supervises the others: one that dies is replaced, and its turns are
    marked interrupted or retried.

    \b
    Examples:
      holdfast serve
      holdfast serve --model http://localhost:11434/v1
      holdfast serve --port 9000 --store sqlite:///agent.db
      holdfast serve --workers 4 --store postgresql://agent@localhost/agent
    """
    server: dict[str, Any] = {"host": host, "port": port, "workers": workers}
    invocation.overrides = {"server": {name: value for name, value in server.items() if value is not None}}
    if model is not None:
        with model_usage(invocation):
            invocation.overrides["model"] = model_setting(model)
    settings = invocation.settings
    if invocation.owner_name is not None:
        raise BadSetting("a server has no owner: each request's API key has an owner")
    invocation.start_logging(settings.log.level)
    warn_of_versions(settings)
    if settings.server.workers > 1:
        return lambda: supervise(invocation, settings)
    url = ""

    def note(listening: Listening) -> None:
        nonlocal url
        url = listening.url
        note_address(home(), url)

    try:
        return await answer(invocation, settings, note)
    finally:
        if url:
            take_back_address(home(), url)


def warn_of_versions(settings: Settings) -> None:
    """Log if a package is not a version that holdfast was tested with, before it is imported."""
    used = ["otel"] if settings.otel.endpoint else []
    if is_postgres(settings.store.url):
        used.append("postgres")
    if problem := untested(used):
        log.warning(problem)


def supervise(invocation: CommandContext, settings: Settings) -> int:
    """Serve with several workers, as their supervisor; returns the exit code. Not inside an event loop,
    because it forks."""
    from ..app import import_engine
    from ..dashboard.pages import environment
    from ..os_support import hide_from_own_user
    from ..server.server import GRACE_SECONDS, Listening, bound
    from ..server.workers.supervisor import WorkerSupervisor

    if settings.model.kind == "local":
        raise BadSetting(NO_SHARED_MODEL)
    import_engine(settings)
    environment()  # imported before the workers are forked, so that they share its memory
    hide_from_own_user()
    listening = bound(settings.server.host, settings.server.port)
    url = Listening(settings.server.host, listening.getsockname()[1], "").url

    def run(worker: Worker) -> int:
        return carry_out(answer(invocation, settings, worker=worker), fast_loop=True)

    try:
        return WorkerSupervisor(
            settings.server.workers,
            listening,
            run,
            leave_seconds=2 * settings.server.drain_seconds + GRACE_SECONDS,
            stale_seconds=settings.lease.stale_seconds,
            on_serving=lambda: note_address(home(), url),
        ).run()
    finally:
        take_back_address(home(), url)


async def answer(
    invocation: CommandContext,
    settings: Settings,
    note: Callable[[Listening], None] = lambda listening: None,
    worker: Worker | None = None,
) -> int:
    """Serve until stopped, as the only process or as one worker; returns the exit code. `note` is called when
    the server listens, before its start lines are printed."""
    from ..app import ModelWatch
    from ..models.choose import choose_from
    from ..models.effective_window import WindowOrigin, window_of
    from ..server.server import serve as serve_until_stopped

    with model_usage(invocation):
        answers = await choose_from(settings.model)
    watch = ModelWatch(answers)
    try:
        if worker is not None and _is_local(answers):
            raise BadSetting(NO_SHARED_MODEL)
        health = await watch.check_once()
        if health.is_up:
            window = await window_of(answers, settings.model)
            tokens = f"up; {window.tokens:,} tokens of context"
            if window.origin is WindowOrigin.ASSUMED:
                tokens += " assumed: the model does not report it; set [model] context_window"
        else:
            tokens = f"DOWN, and checked again every few seconds: {health.problem}"

        async def announce(listening: Listening) -> None:
            note(listening)
            if worker is not None and not worker.is_first_start:
                return
            if settings.log.format == "json" and not on_terminal():  # one parser reads all that is printed
                log.info(
                    "serving %s; %s; %s; store %s",
                    listening.url,
                    answers.description,
                    tokens,
                    listening.location,
                )
                return
            await say_hello(listening, settings, answers, tokens)
            if listening.backlog is not None:
                write(f"  memory {listening.backlog}\n")

        return await serve_until_stopped(
            settings, answers, watch=watch, prepare=keys_are_ready, announce=announce, worker=worker
        )
    finally:
        await answers.close()


def _is_local(model: Model) -> bool:
    from ..models.local import LocalModel
    from ..models.measured import innermost

    return isinstance(innermost(model), LocalModel)


async def keys_are_ready(hf: Operations, settings: Settings) -> None:
    """Ensure that there is a usable API key: on loopback the local key, elsewhere one created beforehand."""

    given = os.environ.get("HOLDFAST_API_KEY", "").strip()
    is_short = 0 < len(given) < SHORTEST_KEY
    advice = f"use at least {SHORTEST_KEY}, such as those that `openssl rand -hex 32` prints"
    if settings.server.host in LOOPBACK:
        if is_short:
            log.warning("HOLDFAST_API_KEY has only %d characters and can be guessed; %s", len(given), advice)
        await hf.ensure_local_key()
    elif is_short:
        raise BadSetting(
            f"{settings.server.host} can be reached from other machines, and HOLDFAST_API_KEY, an admin key, "
            f"has only {len(given)} characters; {advice}, or unset it and use `holdfast keys create`"
        )
    elif not given and not any(key.revoked_at is None for key in await hf.keys(None)):
        raise BadSetting(
            f"{settings.server.host} can be reached from other machines, and there is no API key yet; make "
            "one with `holdfast keys create`, or set HOLDFAST_API_KEY"
        )


def command_here() -> str:
    """How this command can be called again in this shell: `holdfast` only if it is on the PATH."""
    import shutil
    import sys

    called = program()
    return called if called != "holdfast" or shutil.which("holdfast") else sys.argv[0]


async def say_hello(listening: Listening, settings: Settings, model: Model, tokens: str) -> None:
    """Print the model, the store and how to log in. The key and the login link go only to a terminal."""
    from ..dashboard.browser_sessions import login_link

    write(f"holdfast answers at {listening.url}/v1\n")
    if settings.server.host in ("0.0.0.0", "::"):
        hosts = settings.server.allowed_hosts
        names = "any host name" if not hosts or "*" in hosts else f"the names {', '.join(hosts)}"
        write(f"  net    every address of this machine, port {listening.port}; by IP address or {names}\n")
    write(f"  model  {model.description}; {tokens}\n")
    write(f"  store  {listening.location}\n")
    if settings.server.workers > 1:
        write(f"  work   {settings.server.workers} workers, each a node of the store\n")
    token = local_key(home()) if settings.server.host in LOOPBACK else None
    if token is None:
        write("  keys   those of `holdfast keys list`, and $HOLDFAST_API_KEY if it is set\n")
    elif on_terminal():
        write(f"  key    {token}\n")
        write(f"  page   {login_link(listening.url, home())}  (logs your browser in, once)\n")
        write(f'  try    eval "$({command_here()} env)", then any OpenAI client; Ctrl-C stops\n')
    else:
        write("  key    `holdfast env` prints it\n")
        write(f"  page   {listening.url}/  (log in with the key)\n")
