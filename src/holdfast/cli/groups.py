"""The tree of commands: `holdfast`, and its groups, such as `sessions`, `turns`, `keys` and `config`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info

from .commands import COMMANDS
from .context import Config, Owner, StoreUrl

HELP_OPTIONS = ["--help", "-h"]


class LazyCommands(MutableMapping[str, Any]):
    """The commands of a group in the order of `COMMANDS`; files are imported when looked up."""

    def __init__(self, group: str, loaded: Mapping[str, Any]) -> None:
        self._group = group
        self._loaded = dict(loaded)

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            module, _ = COMMANDS[self._group][name]
            import_module(f".{module}", __package__)
            for info in GROUPS[self._group].registered_commands:
                if info.name == name:
                    self._loaded[name] = get_command_from_info(
                        info, pretty_exceptions_short=False, rich_markup_mode=None
                    )
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS[self._group]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS[self._group])

    def __len__(self) -> int:
        return len(COMMANDS[self._group])


def _begins_with_options(args: list[str]) -> bool:
    """True if no subcommand is named."""
    return not args or (args[0].startswith("-") and args[0] not in HELP_OPTIONS)


class LazyGroup(TyperGroup):
    """A group whose help needs no command's file."""

    def __init__(self, *, commands: Any = None, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands(self.name or "", commands or {})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if self.name == "holdfast" and args[0] not in self.commands:
            groups = [group for group, names in COMMANDS.items() if group != "holdfast" and args[0] in names]
            if 0 < len(groups) <= 3:
                meant = " or ".join(f"`holdfast {group} {args[0]}`" for group in groups)
                ctx.fail(f"No such command {args[0]!r}. Did you mean {meant}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        lines = COMMANDS[self.name or ""]
        limit = formatter.width - 6 - max(map(len, lines))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, TyperCommand(name, help=line).get_short_help_str(limit))
                    for name, (_, line) in lines.items()
                ]
            )


class ListsByDefault(LazyGroup):
    """`holdfast sessions --state idle` is `holdfast sessions list --state idle`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and _begins_with_options(args):  # completion: offer the subcommands
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0].startswith(("sess_", "conv_", "turn_")):
            ctx.fail(f"{args[0]!r} is not a command. Did you mean `holdfast sessions show {args[0]}`?")
        return super().resolve_command(ctx, args)


class ShowsByDefault(LazyGroup):
    """`holdfast config --json` is `holdfast config show --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and _begins_with_options(args):
            args = ["show", *args]
        return super().parse_args(ctx, args)


class ReadsFiles(LazyGroup):
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
    cls=LazyGroup,
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
    help="List, show and manage sessions.",
    epilog="Lists by default. Example: holdfast sessions --state idle --json",
    rich_markup_mode=None,
)

turns = typer.Typer(
    cls=ListsByDefault,
    help="Running, waiting and queued turns.",
    epilog="Lists by default. Example: holdfast turns --waiting --json",
    rich_markup_mode=None,
)

keys = typer.Typer(
    cls=ListsByDefault,
    help="Create, list and revoke API keys.",
    epilog="Lists by default. Example: holdfast keys --owner ada --json",
    rich_markup_mode=None,
)

memories = typer.Typer(
    cls=ListsByDefault,
    help="Memories of ended sessions, and memory jobs that failed.",
    epilog="Lists by default. Example: holdfast memories --key cli:ada --json",
    rich_markup_mode=None,
)


notices = typer.Typer(
    cls=ListsByDefault,
    help="List notices for people, such as that their chat was reset.",
    epilog="Lists by default. Example: holdfast notices --undelivered --json",
    rich_markup_mode=None,
)


pair = typer.Typer(
    cls=ListsByDefault,
    help="List, approve and revoke people who wrote to a connector.",
    epilog="Lists by default. Example: holdfast pair --json",
    rich_markup_mode=None,
)


settings = typer.Typer(
    cls=ShowsByDefault,
    help="The settings in effect, and which settings files are trusted.",
    epilog="Shows the settings by default. Example: holdfast config --json",
    rich_markup_mode=None,
)


imports = typer.Typer(
    cls=ReadsFiles,
    help="Import conversations of a Hermes home or an export file.",
    epilog="Imports a file by default. Example: holdfast import conversations.jsonl",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def holdfast(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=say_version, is_eager=True),
    ] = False,
    owner: Owner = None,
    config: Config = None,
    store: StoreUrl = None,
) -> None:
    context.obj = {"owner": owner, "config": config, "store": store}


GROUPS = {
    "holdfast": app,
    "sessions": sessions,
    "turns": turns,
    "keys": keys,
    "memories": memories,
    "notices": notices,
    "pair": pair,
    "config": settings,
    "import": imports,
}
for _name, _group in GROUPS.items():
    if _group is not app:
        app.add_typer(_group, name=_name)
