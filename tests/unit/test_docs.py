"""The documentation against the code: what there is, is documented; what is documented, is there and runs.

The pages are read as text. What exists and has no row or heading fails, and so does a row or heading for what
no longer exists.
"""

from __future__ import annotations

import ast
import asyncio
import enum
import importlib.util
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import apsw
import msgspec
import pytest
import typer.main

import holdfast
from holdfast import app, errors, settings, sync
from holdfast import session as handles
from holdfast.domain.api_keys import TOOLS
from holdfast.domain.events import EVENT_MEANINGS, Event, EventType
from holdfast.domain.messages import Message
from holdfast.domain.processes import PROCESS_TRANSITIONS
from holdfast.domain.sessions import Session, SessionState
from holdfast.domain.turns import TRANSITIONS
from holdfast.server.schemas import ListObject
from holdfast.session_messages import SessionMessages
from holdfast.store.queries import migrations, schema
from holdfast.store.store import Store
from holdfast.wiring import toolbox_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


# --- reading pages -------------------------------------------------------------------------------------


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def snippets(text: str, *languages: str) -> Iterator[tuple[str, str]]:
    """The fenced blocks in these languages, in order: language and text."""
    for _, language, body in FENCE.findall(text):
        if language in languages:
            yield language, body


def prose(text: str) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", text)


def sections(text: str) -> dict[str, str]:
    """What stands below each heading, up to the next heading of the same or a higher level."""
    text = prose(text)
    found = list(HEADING.finditer(text))
    result = {}
    for number, heading in enumerate(found):
        ends = (later.start() for later in found[number + 1 :] if len(later[1]) <= len(heading[1]))
        result[heading[2]] = text[heading.end() : next(ends, len(text))]
    return result


def rows(text: str) -> dict[str, str]:
    """Table rows by the code in their first cell; a cell may name several."""
    found = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", line.split(" |")[0]):
                found[name] = line
    return found


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def missing(wanted: set[str], found: set[str]) -> dict[str, set[str]]:
    """What is only on one side; empty if they agree."""
    sides = {"undocumented": wanted - found, "documented, but not there": found - wanted}
    return {side: names for side, names in sides.items() if names}


# --- links ---------------------------------------------------------------------------------------------


def dead_links(path: Path) -> list[str]:
    dead = []
    for target in LINK.findall(prose(path.read_text("utf-8"))):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in map(slug, sections(file.read_text("utf-8")))):
            dead.append(target)
    return dead


FIRST_PAGES = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")]


@pytest.mark.parametrize("path", [*FIRST_PAGES, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_is_dead(path: Path) -> None:
    assert dead_links(path) == []


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# Some `code`, here\n```\n# no heading\n[x](in-a-fence.md)\n```\n")
    text = "[a](there.md#some-code-here) [b](https://example.com/x) [c](gone.md) [d](there.md#no-heading)"
    (tmp_path / "page.md").write_text(text)
    assert dead_links(tmp_path / "page.md") == ["gone.md", "there.md#no-heading"]
    assert dead_links(tmp_path / "there.md") == []


def test_every_page_can_be_reached_from_the_index() -> None:
    linked = {(DOCS / target).resolve() for target in LINK.findall(page("index.md"))}
    assert {path for path in PAGES if path.name != "index.md"} - linked == set()


# --- what a stranger reads first -----------------------------------------------------------------------


@pytest.mark.parametrize(("name", "size", "lines"), [("README.md", 9_000, 120), ("CHANGELOG.md", 4_000, 80)])
def test_what_is_read_first_stays_short(name: str, size: int, lines: int) -> None:
    """Nobody reads more, and lines are not glued together to stay below."""
    text = (ROOT / name).read_text("utf-8")
    assert len(text.encode()) <= size
    assert len(text.splitlines()) <= lines
    assert [line for line in text.splitlines() if len(line) > 130] == []


def first_cells(table: str) -> list[str]:
    """The first cell of each row below the head of a table."""
    found = [line.split(" | ")[0].strip("| ") for line in table.splitlines() if line.startswith("| ")]
    return found[1:]


def test_the_readme_promises_only_what_is_guaranteed_and_tested() -> None:
    promised = first_cells(sections((ROOT / "README.md").read_text("utf-8"))["What you may rely on"])
    assert len(promised) == 6
    assert {each.strip("*") for each in promised} - set(guarantees()) == set()


NUMBER = re.compile(r"\d[\d.,]*\d|\d")


def test_the_figures_of_the_readme_are_the_recorded_ones_and_name_what_prints_them() -> None:
    part = sections((ROOT / "README.md").read_text("utf-8"))["Figures"]
    assert len(first_cells(part)) == 5
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(first_cells(part)) <= {f"`make {target}`" for target in targets}
    recorded = set(NUMBER.findall(page("figures.md")))
    assert [number for number in NUMBER.findall(part) if number not in recorded] == []


# --- reference -----------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """A setting's default as the page writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def test_every_setting_is_documented_with_its_default_and_its_variable() -> None:
    found = {name: row for name, row in rows(page("reference/settings.md")).items() if "." in name}
    known = {f"{s}.{f.name}": f for s, kind in settings.SECTIONS.items() for f in fields(kind)}
    assert missing(set(known), set(found)) == {}
    for name, setting in known.items():
        assert f"| `{shown(settings.default_of(setting))}` |" in found[name], name
        assert f"| `HOLDFAST_{name.upper().replace('.', '__')}` |" in found[name], name
        for choice in setting.metadata.get("choices", ()):
            assert f"`{choice}`" in found[name], f"{name} = {choice}"


TYPES = {
    str: "text",
    int: "whole number",
    float: "number, fractions allowed",
    bool: "yes or no",
    tuple: "list of texts",
    dict: "table",
}


def test_every_setting_is_documented_with_its_type() -> None:
    text = sections(page("reference/settings.md"))["Types"]
    written = {
        name: line.split(" | ")[0].strip("| ")
        for line in text.splitlines()
        for name in re.findall(r"`([^`]+)`", line)
    }
    known = {
        f"{section}.{each.name}": TYPES[type(settings.default_of(each))]
        for section, kind in settings.SECTIONS.items()
        for each in fields(kind)
    }
    assert written == known


def test_every_limit_of_a_setting_is_documented() -> None:
    found = rows(page("reference/settings.md"))
    for section, kind in settings.SECTIONS.items():
        for each in fields(kind):
            row, limits = found[f"{section}.{each.name}"], each.metadata
            if "above" in limits:
                assert re.search(rf"Above {limits['above']}\b|At least twice", row), each.name
            if limits.get("at_least"):
                assert re.search(rf"at least {limits['at_least']}\b", row, re.IGNORECASE), each.name


def server_tools() -> dict[str, dict[str, Any]]:
    """The parameters of every tool that the server can offer, by name."""
    chosen = settings.AgentSettings(tools=TOOLS)
    nothing = cast("Any", None)
    offered = toolbox_of(chosen, nothing, nothing, {}).schemas(frozenset(TOOLS), {})
    return {each["function"]["name"]: each["function"]["parameters"] for each in offered}


def test_every_tool_is_documented_with_its_parameters_and_actions() -> None:
    tools = server_tools()
    assert set(tools) == set(TOOLS)
    table = rows(sections(page("explanation/tools.md"))["What each does"])
    signatures = {re.split(r"\W", name)[0]: name for name in table if "(" in name}
    assert missing(set(tools), set(signatures)) == {}
    for name, parameters in tools.items():
        written = re.findall(r"\w+", signatures[name].replace("=false", ""))[1:]
        if not signatures[name].endswith("…)"):
            assert missing(set(parameters["properties"]), set(written)) == {}, name
        assert set(written) <= set(parameters["properties"]), name
        for action in parameters["properties"].get("action", {}).get("enum", ()):
            assert f"`{action}`" in table[signatures[name]], f"{name} {action}"
        assert f"`{name}`" in rows(page("reference/settings.md"))["agent.tools"], name


def test_no_page_names_a_tool_that_does_not_exist_or_denies_one_that_does() -> None:
    existing = {*TOOLS, *rows(page("reference/settings.md"))}
    for path in [ROOT / "README.md", *PAGES]:
        text = re.sub(r"\s+", " ", prose(path.read_text("utf-8")))
        named = {name for pair in re.findall(r"tool `(\w+)`|`(\w+)` tool\b", text) for name in pair if name}
        assert named <= set(TOOLS), path
        denied = re.findall(r"[^.]*\b(?:does not exist|not (?:yet )?implemented|coming soon)\b[^.]*", text)
        assert [each for each in denied if any(f"`{name}`" in each for name in existing)] == [], path


def named_tests(cell: str) -> list[str]:
    return re.findall(r"`([^`]+\.py::\w+)`", cell)


def guarantees() -> dict[str, str]:
    """Each statement of the table of tests, with its cell of tests."""
    text = sections(page("guarantees.md"))["The tests"]
    found = re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE)
    return {first.strip(): rest for first, rest in found if first != "statement"}


def test_every_promise_names_tests_that_exist() -> None:
    """So that nothing is promised that no test would miss."""
    text = prose(page("guarantees.md"))
    promises = {name.rstrip(".") for name in re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE)}
    table = guarantees()
    assert len(promises) > 30
    assert missing(promises, set(table)) == {}
    assert [name for name, cell in table.items() if not named_tests(cell)] == ["Platforms"]
    for test in {test for cell in table.values() for test in named_tests(cell)}:
        file, _, name = test.partition("::")
        source = (ROOT / "tests" / file).read_text("utf-8")
        assert re.search(rf"^(?:async )?def {name}\(", source, re.MULTILINE), test


def test_every_event_is_documented_with_its_data() -> None:
    found = {name: row for name, row in rows(page("reference/events.md")).items() if "." in name}
    assert missing(set(EventType), set(found)) == {}
    for type_, meaning in EVENT_MEANINGS.items():
        _, _, data = meaning.partition("data: ")
        for name in filter(None, data.split(", ")):
            assert f"`{name}`" in found[type_], f"{type_}: {name}"


def error_classes() -> dict[str, str]:
    """Every error by name, with the name of the one it is a kind of."""
    found = {errors.HoldfastError.__name__: ""}
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.HoldfastError) and value.__bases__:
            found[name] = found.get(name, value.__bases__[0].__name__)
    return found


def drawn_tree(text: str) -> dict[str, str]:
    """The tree of a drawing: each name with the one it hangs on."""
    above: list[str] = []
    found = {}
    for line in text.splitlines():
        if drawn := re.match(r"([│├└─ ]*)(\w+)", line):
            depth = len(drawn[1]) // 4
            above[depth:] = [drawn[2]]
            found[drawn[2]] = above[depth - 1] if depth else ""
    return found


def test_the_tree_of_errors_is_drawn_as_it_is_and_each_is_explained() -> None:
    text = page("reference/errors.md")
    ((_, tree),) = snippets(text, "")
    assert drawn_tree(tree) == error_classes()
    assert missing(set(error_classes()) - {"HoldfastError"}, set(rows(text))) == {}


def transitions_in(text: str) -> set[tuple[str, str]]:
    return set(re.findall(r"^\| (\w+) \| (\w+) \|", text, re.MULTILINE)) - {("from", "to")}


def test_the_state_machines_are_the_ones_that_are_enforced() -> None:
    parts = sections(page("explanation/state-machines.md"))
    enforced = {(old.value, new.value) for old, following in TRANSITIONS.items() for new in following}
    assert transitions_in(parts["A turn"]) == enforced
    steps = {(old.value, new.value) for old, following in PROCESS_TRANSITIONS.items() for new in following}
    assert transitions_in(parts["A process"]) == steps
    assert missing(set(SessionState), set(rows(parts["What a reader sees"]))) == {}


def test_every_table_column_index_and_trigger_is_documented() -> None:
    database = apsw.Connection(":memory:")
    first, text = schema("holdfast.store.sqlite")
    database.execute(text)
    for number, text in migrations("holdfast.store.sqlite"):
        if number > first:
            database.execute(text)
    objects: list[Any] = database.execute(
        "SELECT type, name, tbl_name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"
    ).fetchall()
    headed = sections(page("reference/schema.md")).items()
    parts = {name.strip("`"): text for name, text in headed if name.startswith("`")}
    assert missing({name for kind, name, _ in objects if kind == "table"}, set(parts)) == {}
    for kind, name, table in objects:
        columns: list[Any] = database.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall()
        for wanted in [column for (column,) in columns] if kind == "table" else [name]:
            assert f"`{wanted}`" in parts[table], f"{table}: {wanted}"


# --- library -------------------------------------------------------------------------------------------


def signature(function: Callable[..., Any], name: str) -> str:
    """`name(a, *, b='x')`, without types."""
    parts: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = parameter.default
        if default is parameter.empty:
            parts.append(parameter.name)
        else:
            written = repr(str(default) if isinstance(default, enum.Enum) else default)
            parts.append(f"{parameter.name}={written}")
    return f"{name}({', '.join(part for part in parts if part not in ('self', 'tx'))})"


def members(kind: type) -> Iterator[str]:
    """Public names of a class: signatures of its methods, names of everything else."""
    for name, value in vars(kind).items():
        if not name.startswith("_"):
            yield signature(value, name) if inspect.isfunction(value) else name
    for name in getattr(kind, "__dataclass_fields__", ()):
        yield name


def test_every_public_name_is_documented() -> None:
    source = (ROOT / "src/holdfast/__init__.py").read_text("utf-8")
    names = {*re.findall(r"from \.\w+ import (\w+) as", source), "__version__"}
    assert "open" in names
    assert [name for name in names if not hasattr(holdfast, name)] == []
    assert [name for name in names if f"`holdfast.{name}`" not in page("reference/library.md")] == []


@pytest.mark.parametrize(
    ("section", "kinds"),
    [
        ("`Holdfast`", (app.Holdfast,)),
        ("`LiveSession`", (handles.LiveSession, SessionMessages)),
        ("`LiveTurn`", (handles.LiveTurn,)),
        ("Blocking", (sync.BlockingHoldfast, sync.BlockingSession, sync.BlockingTurn)),
        ("`Message`", (Message,)),
        ("`Session`", (Session,)),
        ("`Event`", (Event,)),
    ],
)
def test_every_member_is_documented_with_its_signature(section: str, kinds: tuple[type, ...]) -> None:
    text = sections(page("reference/library.md"))[section]
    assert [member for kind in kinds for member in members(kind) if f"`{member}`" not in text] == []


def test_the_front_door_is_documented_with_its_signatures() -> None:
    text = sections(page("reference/library.md"))["Opening"]
    for name in ("open", "open_sync"):
        assert f"`{signature(getattr(holdfast, name), name)}`" in text


def test_every_verb_of_the_store_is_documented_and_where_it_has_a_signature_it_is_right() -> None:
    text = sections(page("reference/library.md"))["Store"]
    for member in (member for part in Store.__mro__[:-2] for member in members(part)):
        name = member.partition("(")[0]
        written = re.findall(rf"`({name}(?:\(.*?\))?)`", text)
        assert written, name
        assert set(written) <= {name, member}


# --- HTTP ----------------------------------------------------------------------------------------------


def test_every_route_is_documented() -> None:
    from holdfast.server.server import ROUTES

    text = prose(page("reference/http.md"))
    written = set(re.findall(r"`((?:GET|POST|PATCH|DELETE) /[^`\s?]*)`", text))
    known = {f"{route.method} {re.sub(r':path}', '}', route.path)}" for route in ROUTES}
    assert missing(known, written) == {}


def objects_script() -> Any:
    found = importlib.util.spec_from_file_location("objects", ROOT / "scripts" / "objects.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_object_is_documented_field_by_field() -> None:
    script = objects_script()
    assert len(script.structs()) > 30
    assert page("reference/objects.md") == script.page(), "run scripts/objects.py"


@pytest.mark.parametrize("name", ["http", "http-conversations", "http-responses"])
def test_every_printed_object_has_the_fields_of_one_that_exists(name: str) -> None:
    known = [(set(each.__struct_fields__), required_of(each)) for each in objects_script().structs()]
    known.append((set(ListObject.__struct_fields__), set(ListObject.__struct_fields__)))
    for _, text in snippets(page(f"reference/{name}.md"), "json"):
        fields = set(json.loads(text))
        assert any(required <= fields <= all_fields for all_fields, required in known), text


def required_of(struct: type[msgspec.Struct]) -> set[str]:
    return {each.name for each in msgspec.structs.fields(struct) if each.required}


def test_every_figure_is_documented() -> None:
    from holdfast.server.metrics import Metrics

    kinds = {"counter": "_total", "histogram": "", "gauge": ""}
    known = {
        f"{metric.name}{kinds[metric.type]}"
        for metric in Metrics().registry.collect()
        if metric.name.startswith("holdfast_")
    }
    text = sections(page("reference/http.md"))["Metrics"]
    assert missing(known, {name.partition("{")[0] for name in rows(text)}) == {}


# --- commands ------------------------------------------------------------------------------------------


def commands(command: Any, path: str = "holdfast") -> Iterator[tuple[str, Any]]:
    """Every command below this one, by what one types."""
    for name, below in getattr(command, "commands", {}).items():
        yield f"{path} {name}", below
        yield from commands(below, f"{path} {name}")


def test_every_command_and_option_is_documented() -> None:
    from holdfast.cli.groups import app as cli

    text = page("reference/commands.md")
    parts = {
        " ".join(word for word in name.strip("`").split() if word.islower()): body
        for name, body in sections(text).items()
        if name.startswith("`")
    }
    root = typer.main.get_command(cli)
    known = dict(commands(root))
    assert missing(set(known), set(parts)) == {}
    for_all = text[: text.index("## ")]
    of_all = (
        "--owner",
        "--config",
        "--store",
        "--version",
        "--help",
        "--install-completion",
        "--show-completion",
    )
    shared = {name for name in of_all if name in for_all}
    for path, command in [("holdfast", root), *known.items()]:
        for option in (name for each in command.params for name in each.opts if name.startswith("-")):
            assert option in shared or re.search(rf"`{option}\b", parts[path]), f"{path} {option}"


# --- what is printed must run --------------------------------------------------------------------------


async def model(messages: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Calls a tool when it is asked for the time, and else just answers."""
    last = messages[-1]
    if last["role"] == "user" and "what time" in str(last["content"]):
        call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"role": "assistant", "content": "Noted."}


async def stream(messages: list[Mapping[str, Any]]) -> AsyncIterator[str]:
    for piece in ("Once ", "upon ", "a ", "time"):
        yield piece


async def run_tool(call: Mapping[str, Any]) -> str:
    return "noon"


ELSEWHERE = {
    *("tutorial.md", "use-any-openai-client.md"),
    *("openai-agents.md", "langgraph.md", "claude-agent-sdk.md", "google-adk.md"),
    "pydantic-ai.md",
}
"""Programs that need a server: tests/acceptance/test_tutorial.py, tests/integration/test_client_pages.py; or
a framework: tests/integration/adapters."""

FRAGMENTS = [
    pytest.param(body, id=f"{path.stem}-{number}")
    for path in PAGES
    if path.name not in ELSEWHERE
    for number, (_, body) in enumerate(snippets(path.read_text("utf-8"), "python"), 1)
]


async def create(**_: Any) -> Any:
    """As `client.chat.completions.create` of the openai SDK."""
    from openai.types.chat import ChatCompletion

    message = {"role": "assistant", "content": "What holds the seaweed."}
    return ChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "my-model",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        }
    )


SDK = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
STAND_INS = {"model": model, "stream": stream, "run_tool": run_tool, "client": SDK}


@pytest.mark.parametrize("fragment", FRAGMENTS)
async def test_a_fragment_runs_as_printed(
    fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an open store, a session of three messages, and stand-ins for a model and a tool."""
    monkeypatch.chdir(tmp_path)
    code = compile(fragment, "fragment", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with holdfast.open("sqlite:///fragment.db", settings={"server": {"busy_wait_seconds": 1}}) as hf:
        session = await hf.session(key="cli:ada")
        async with session.turn("hello") as turn:
            await turn.append("Hello")
            await turn.append("Yes?")
        names = {"holdfast": holdfast, "hf": hf, "session": session}
        running = eval(code, {**names, **STAND_INS})
        if inspect.iscoroutine(running):
            async with asyncio.timeout(60):
                await running
