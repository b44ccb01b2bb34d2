"""The tree of commands: `holdfast`, and its groups `sessions`, `keys`, `memories`, `import` and `config`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .context import Config, Owner, StoreUrl

HELP_OPTIONS = ["--help", "-h"]


ORDER = (
    *("serve", "demo", "chat", "run", "env", "models", "keys", "sessions", "why"),
    *("ps", "logs", "stop", "pin", "memories", "notices", "sweep", "nodes"),
    *("doctor", "backup", "restore", "migrate", "import", "config", "version"),
    *("list", "show", "messages", "turns", "lineage", "stats", "search"),
    *("end", "cancel", "resume", "fork", "delete", "export"),
    *("hermes", "file"),
    *("create", "revoke"),
    *("trust", "untrust"),
    *("edit", "forget", "retry", "skip", "delivered"),
)


def _begins_with_options(args: list[str]) -> bool:
    """True if no subcommand is named."""
    return not args or (args[0].startswith("-") and args[0] not in HELP_OPTIONS)


class InOrder(TyperGroup):
    """Lists commands in the order of ORDER: those a newcomer needs come first."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


class ListsByDefault(InOrder):
    """`holdfast sessions --state idle` is `holdfast sessions list --state idle`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and _begins_with_options(args):  # completion: offer the subcommands
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0].startswith(("sess_", "conv_", "turn_")):
            ctx.fail(f"{args[0]!r} is not a command. Did you mean `holdfast sessions show {args[0]}`?")
        return super().resolve_command(ctx, args)


class ShowsByDefault(InOrder):
    """`holdfast config --json` is `holdfast config show --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and _begins_with_options(args):
            args = ["show", *args]
        return super().parse_args(ctx, args)


class ReadsFiles(InOrder):
    """`holdfast import conversations.jsonl` is `holdfast import file conversations.jsonl`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["file", *args]
        return super().parse_args(ctx, args)


def say_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="holdfast",
    cls=InOrder,
    help="Durable sessions for LLM agents: conversations that survive crashes and restarts.",
    epilog='Begin with: holdfast serve, or: holdfast run --key cli:ada "my name is Ada"',
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # importing rich takes longer than all the other imports here
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_OPTIONS, "max_content_width": 100},
)

sessions = typer.Typer(
    cls=ListsByDefault,
    help="List sessions, look at them, act on them.",
    epilog="Without a subcommand it lists: holdfast sessions --state idle --source cli",
    rich_markup_mode=None,
)

keys = typer.Typer(
    cls=ListsByDefault,
    help="API keys: who may ask the server, and as whom.",
    epilog="Without a subcommand it lists: holdfast keys --owner ada",
    rich_markup_mode=None,
)

memories = typer.Typer(
    cls=ListsByDefault,
    help="What was remembered of ended sessions, and flushes that failed.",
    epilog="Without a subcommand it lists: holdfast memories --key cli:ada",
    rich_markup_mode=None,
)


notices = typer.Typer(
    cls=ListsByDefault,
    help="What people should be told, such as that their chat was reset.",
    epilog="Without a subcommand it lists: holdfast notices --undelivered",
    rich_markup_mode=None,
)


settings = typer.Typer(
    cls=ShowsByDefault,
    help="The settings in effect, and which settings files are trusted.",
    epilog="Without a subcommand it shows the settings: holdfast config --json",
    rich_markup_mode=None,
)


imports = typer.Typer(
    cls=ReadsFiles,
    help="Import conversations of a Hermes home or an export file.",
    epilog="A file needs no subcommand: holdfast import conversations.jsonl",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def holdfast(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Say which holdfast this is.", callback=say_version, is_eager=True),
    ] = False,
    owner: Owner = None,
    config: Config = None,
    store: StoreUrl = None,
) -> None:
    context.obj = {"owner": owner, "config": config, "store": store}
