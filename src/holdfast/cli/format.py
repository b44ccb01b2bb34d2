"""Output of commands: times, numbers, tables and styled text, on stdout and stderr."""

from __future__ import annotations

import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..domain.ids import short


def ago(then: datetime | None, now: datetime) -> str:
    """Time since, in one unit: `3 min ago`."""
    if then is None:
        return "never"
    return f"{span(now - then)} ago" if now - then >= timedelta(seconds=1) else "just now"


def span(time: timedelta) -> str:
    seconds = int(time.total_seconds())
    for size, name in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            number = seconds // size
            return f"{number} {name}{'s' if name == 'day' and number != 1 else ''}"
    return f"{seconds} s"


def took(time: timedelta) -> str:
    seconds = time.total_seconds()
    return f"{seconds:.1f} s" if 0 <= seconds < 60 else span(time)


def moment(then: datetime | None, now: datetime) -> str:
    """A time on this machine's clock, and how long ago it was."""
    if then is None:
        return "—"
    return f"{then.astimezone():%Y-%m-%d %H:%M:%S} ({ago(then, now)})"


def clock(then: datetime, now: datetime) -> str:
    """A time on this machine's clock, as short as possible."""
    local = then.astimezone()
    return f"{local:%H:%M:%S}" if local.date() == now.astimezone().date() else f"{local:%Y-%m-%d %H:%M}"


def count(number: int, noun: str) -> str:
    """`1 session`, `2 sessions`, `3 replies`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}es" if noun.endswith("s") else f"{number:,} {noun}s"


def money(amount: float) -> str:
    """An amount in the money of `[model.prices]`, with as many digits as small ones need."""
    return f"{amount:,.2f}" if amount >= 0.1 or not amount else f"{amount:.4f}"


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "—"


def size(number: int) -> str:
    amount = float(number)
    for unit in ("bytes", "KB", "MB", "GB"):
        if amount < 1024 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


if TYPE_CHECKING:
    from rich.console import Console

WIDE = 120

STATE_STYLES = {
    "active": "green",
    "idle": "",
    "orphaned": "red",
    "ended": "dim",
    "running": "green",
    "completed": "",
    "interrupted": "yellow",
    "failed": "red",
    "cancelled": "yellow",
    "alive": "green",
    "dead": "red",
    "reaped": "red",
    "left": "dim",
    "unknown": "yellow",
}


@dataclass(frozen=True)
class Styled:
    """A text and its style on a terminal."""

    text: str
    style: str = ""


Cell = str | Styled


NARROW = 12
"""Cells of at most this width are never wrapped in a table; wider ones get at least as much."""


@dataclass(frozen=True)
class Column:
    title: str
    right: bool = False
    whole: bool = False
    """Never truncated or wrapped on a terminal, such as an id that will be copied."""


def state(name: str) -> Styled:
    return Styled(name, STATE_STYLES.get(name, ""))


def on_terminal() -> bool:
    return sys.stdout.isatty()


def wide() -> bool:
    """True if there is room for optional columns."""
    return not on_terminal() or console().width >= WIDE


def harmless(text: str) -> str:
    """Escape control characters except newline and tab, so that a terminal shows escape sequences as text."""
    if text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else f"\\x{ord(c):02x}"
        for c in text.replace("\r\n", "\n")
    )


def one_line(text: str) -> str:
    return " ".join(harmless(text).split())


def print_json(value: Any) -> None:
    """Print the one JSON document of a command on stdout."""
    import msgspec

    document = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.flush()
    sys.stdout.buffer.write(document + b"\n")
    sys.stdout.buffer.flush()


def say(*parts: Cell, fits: bool = False, indent: int = 0) -> None:
    """Print a line on stdout. `fits`: on a terminal it is wrapped between words, so it cannot be copied as
    one line. `indent`: the same, with each line moved to the right."""
    if on_terminal() and indent:
        from rich.padding import Padding

        console().print(Padding(_text(parts), (0, 0, 0, indent), expand=False))
    elif on_terminal():
        console().print(_text(parts), soft_wrap=not fits)
    else:
        write(" " * indent + "".join(_plain(part) for part in parts) + "\n")


def note(sentence: str) -> None:
    """Print a side note on stderr."""
    _to_stderr(Styled(f"({sentence})", "dim"))


def complain(error: Exception | str, next_step: str = "") -> None:
    """Print an error and the next step on stderr."""
    sentence = sentences(str(error), next_step or next_step_after(error))
    _to_stderr(Styled("Error: ", "bold red"), sentence)


def _to_stderr(*parts: Cell) -> None:
    with suppress(OSError):  # the terminal was closed
        if sys.stderr.isatty():
            console(stderr=True).print(_text(parts), soft_wrap=True)
        else:
            print(harmless("".join(_plain(part) for part in parts)), file=sys.stderr)


def remark(*pieces: str) -> None:
    """Print the outcome of the command on stderr."""
    _to_stderr(sentences(*pieces))


def hint(line: str) -> None:
    """Print a line on stderr as it is, such as a command to copy."""
    _to_stderr(line)


def mute() -> None:
    """Discard further output, also what is flushed at exit: stdout has no reader any more."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def next_step_after(error: Exception | str) -> str:
    """The next step at a command line, for errors whose text does not name one."""
    from ..errors import ConversationBusy, NotFound, StoreBusy

    match error:
        case NotFound(what="API key"):
            return "`holdfast keys list` lists them."
        case NotFound(what="memory"):
            return "`holdfast memories` lists them; another owner's needs --owner NAME."
        case NotFound(what="flush of session"):
            return "It was too short, was continued, or memory is off; see `holdfast sessions show`."
        case NotFound(what="process"):
            return "`holdfast ps` lists them; another owner's needs --owner NAME."
        case NotFound(what="turn"):
            return "`holdfast turns` lists those not ended, `holdfast sessions turns ID` all of a session."
        case NotFound(what="notice"):
            return "`holdfast notices` lists them; another owner's needs --owner NAME."
        case NotFound(what="pairing code" | "pairing"):
            return "`holdfast pair list` lists them."
        case NotFound():
            return "`holdfast sessions` lists them; another owner's needs --owner NAME."
        case ConversationBusy():
            return f"Or stop it: holdfast sessions cancel {error.conversation_id}"
        case StoreBusy():
            return "Try again; `holdfast nodes` lists the processes that use the store."
        case _:
            return ""


def sentences(*pieces: str) -> str:
    """Join the pieces; each gets a full stop if it does not end as a sentence."""
    ended = [piece if piece[-1] in '.!?`"' else f"{piece}." for piece in (p.strip() for p in pieces) if piece]
    return " ".join(ended)


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> None:
    """Print rows under their titles."""
    rows = list(rows)
    if on_terminal():
        _rich_table(columns, rows)
    else:
        _plain_table([column.title for column in columns], [column.right for column in columns], rows)


def facts(pairs: Iterable[tuple[str, Cell]]) -> None:
    """Print names and values, one pair per line."""
    pairs = list(pairs)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        say(Styled(f"  {name:<{width}}  ", "dim"), value)


def _plain_table(titles: Sequence[str], right: Sequence[bool], rows: Sequence[Sequence[Cell]]) -> None:
    lines = [[title.upper() for title in titles]]
    lines += [[_in_table(cell).text for cell in row] for row in rows]
    widths = [max(width_of(line[number]) for line in lines) for number in range(len(titles))]
    for line in lines:
        padded = [
            " " * (widths[n] - width_of(cell)) + cell
            if right[n]
            else cell + " " * (widths[n] - width_of(cell))
            for n, cell in enumerate(line)
        ]
        write("  ".join(padded).rstrip() + "\n")


def _rich_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """A table as wide as the terminal. If it does not fit without wrapping, ids are shortened, which commands
    take too."""
    from rich.table import Table

    widths, fixed = _widths(columns, rows)
    if rows and sum(widths) + 2 * (len(widths) - 1) > console().width:
        rows = _with_short_ids(rows)
        widths, fixed = _widths(columns, rows)
    if rows and _least(widths, fixed) > console().width:
        _stacked(columns, rows)
        return
    grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column, width, stays in zip(columns, widths, fixed, strict=True):
        grid.add_column(
            column.title.upper(),
            justify="right" if column.right else "left",
            no_wrap=stays,
            overflow="fold" if column.whole else "ellipsis",
            min_width=width if stays else None,
        )
    for row in rows:
        grid.add_row(*(_text([_in_table(cell)]) for cell in row))
    console().print(grid)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> tuple[list[int], list[bool]]:
    """The width that each column would take, and whether it must have it."""
    widths = [
        max(width_of(column.title), *(width_of(_in_table(row[n]).text) for row in rows), 0)
        for n, column in enumerate(columns)
    ]
    return widths, [column.whole or width <= NARROW for column, width in zip(columns, widths, strict=True)]


def _least(widths: Sequence[int], fixed: Sequence[bool]) -> int:
    """The columns of a terminal that a table needs."""
    needed = sum(width if stays else NARROW for width, stays in zip(widths, fixed, strict=True))
    return needed + 2 * (len(widths) - 1)


def _with_short_ids(rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    """The rows with shortened ids, unless two of them would look the same."""
    ids = {_plain(cell) for row in rows for cell in row if short(_plain(cell)) != _plain(cell)}
    beginnings = Counter(map(short, ids))
    return [[_short_cell(cell, beginnings) for cell in row] for row in rows]


def _short_cell(cell: Cell, beginnings: Mapping[str, int]) -> Cell:
    text = short(_plain(cell))
    if beginnings.get(text) != 1:
        return cell
    return Styled(text, cell.style) if isinstance(cell, Styled) else text


def _stacked(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print each row as a paragraph, for a terminal that is too narrow for a table: the first column, and
    below it the others with their titles."""
    from rich.padding import Padding

    for row in rows:
        first, *others = (_in_table(cell) for cell in row)
        say(Styled(first.text, first.style or "bold"))
        pieces: list[Cell] = []
        for column, cell in zip(columns[1:], others, strict=True):
            if cell.text:
                title = f"{column.title}\u00a0" if column.title else ""
                pieces += [Styled("   " if pieces else ""), Styled(title, "dim"), cell]
        console().print(Padding(_text(pieces), (0, 0, 0, 2)), soft_wrap=False)


def _in_table(cell: Cell) -> Styled:
    """The cell on one line, with its indentation."""
    styled = cell if isinstance(cell, Styled) else Styled(cell)
    indent = len(styled.text) - len(styled.text.lstrip(" "))
    return Styled(" " * indent + one_line(styled.text), styled.style)


def width_of(text: str) -> int:
    """Columns that a text takes: wide characters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def _text(parts: Iterable[Cell]) -> Any:
    from rich.text import Text

    text = Text()
    for part in parts:
        styled = part if isinstance(part, Styled) else Styled(part)
        text.append(harmless(styled.text), styled.style)
    return text


def _plain(cell: Cell) -> str:
    return cell.text if isinstance(cell, Styled) else cell


def write(text: str) -> None:
    """Write to stdout and flush, also to a pipe. Characters that its encoding lacks are escaped."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()
