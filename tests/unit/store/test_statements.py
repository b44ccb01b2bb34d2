"""Statements are asked for by name: every engine must have each of them, and none that nobody asks for."""

import re
from pathlib import Path

import pytest

import holdfast.store.store
from holdfast.store.annotations import notes, notes_of, types
from holdfast.store.maintenance import INVARIANTS
from holdfast.store.queries import DIALECTS, blocks, combine, load, source

ENGINES = ("holdfast.store.sqlite", "holdfast.store.postgres")
SOURCE = Path(holdfast.store.store.__file__).parent


def asked_for(engine: str) -> set[str]:
    """By what all engines share, and by this one itself."""
    found = set(INVARIANTS)
    own = SOURCE / engine.rpartition(".")[2]
    for file in [*SOURCE.glob("*.py"), *own.rglob("*.py")]:
        found |= set(re.findall(r"\bQ\.(\w+)", file.read_text("utf-8")))
        found |= set(re.findall(r"STATEMENTS\[\"(\w+)\"\]", file.read_text("utf-8")))
    if engine == "holdfast.store.postgres":
        found |= {lock.name for said in notes(engine).values() for lock in said.locks}
    return found - {"__dict__"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_every_statement_that_is_asked_for(engine: str) -> None:
    assert asked_for(engine) - load(engine).keys() == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_has_a_statement_that_nobody_asks_for(engine: str) -> None:
    assert load(engine).keys() - asked_for(engine) == set()


def test_an_override_replaces_a_shared_statement_or_fragment() -> None:
    shared = "-- fragment: place\nno\n\n-- name: a\nSELECT {place};\n\n-- name: b\n-- Declared.\n"
    own = "-- override: place\nrank\n\n-- override: b\nSELECT {place}, {table};\n\n-- name: c\nSELECT 3;\n"
    assert combine(shared, own, "e") == {"a": "SELECT rank;", "b": "SELECT rank, {table};", "c": "SELECT 3;"}


@pytest.mark.parametrize(
    ("shared", "own", "complaint"),
    [
        ("-- name: a\nSELECT 1;\n\n-- name: a\nSELECT 2;\n", "", "a is defined twice"),
        ("-- name: a\nSELECT 1;\n\n-- fragment: a\nx\n", "", "a is defined twice"),
        ("-- name: a\nSELECT 1;\n", "-- name: a\nSELECT 2;\n", "e defines a, which is defined already"),
        ("", "-- name: a\nSELECT 1;\n\n-- name: a\nSELECT 2;\n", "e defines a, which is defined already"),
        ("-- name: a\nSELECT 1;\n", "-- override: b\nSELECT 2;\n", "e overrides b, which is not in sql/"),
        ("-- name: a\n-- Declared.\n\n-- name: b\nSELECT 1;\n", "", "e has no text for a"),
        ("-- override: a\nSELECT 1;\n", "", "a overrides nothing"),
    ],
)
def test_a_statement_defined_twice_missing_or_overriding_nothing_is_refused(
    shared: str, own: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        combine(shared, own, "e")


def without_space(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_override_differs_from_what_it_overrides(engine: str) -> None:
    """Otherwise the statement belongs in sql/ alone."""
    shared, own = (
        {block.name: without_space(block.text) for block in blocks(text)} for text in source(engine)
    )
    assert [name for name in own if shared.get(name) == own[name]] == []


def test_a_statement_that_only_one_engine_has_is_not_in_the_other() -> None:
    """Otherwise it is declared in sql/, and overridden by both."""
    sqlite, postgres = (
        {block.name for block in blocks(source(engine)[1]) if block.kind == "name"} for engine in ENGINES
    )
    assert sqlite & postgres == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_only_an_engine_s_own_statements_are_completed_by_their_callers(engine: str) -> None:
    """A misspelt fragment would be left in braces."""
    own = {block.name for block in blocks(source(engine)[1]) if block.kind == "name"}
    assert {name for name, text in load(engine).items() if "{" in text} <= own


def test_annotations_are_read_from_the_comments_above_a_statement() -> None:
    said = ["-- name: a", "-- locks: one(id=node) two(x, y)", "-- conversation in: column 3", "-- rows: any"]
    (block,) = blocks("\n".join([*said, "SELECT 1;"]))
    assert notes_of(block) == {
        "locks": (("one", (("id", "node"),)), ("two", (("x", "x"), ("y", "y")))),
        "conversation": 3,
        "rows": "any",
    }


@pytest.mark.parametrize(
    "note",
    ["rows: many", "scans: everything", "locks: lock_conversation", "conversation in: 1", "time: long"],
)
def test_an_annotation_that_means_nothing_is_refused(note: str) -> None:
    (block,) = blocks(f"-- name: a\n-- {note}\nSELECT 1;\n")
    with pytest.raises(ValueError, match=r"a: `.*` means nothing"):
        notes_of(block)


NOTE = r"^-- (?:locks|conversation in|rows|scans|time|plan|usually|many): "


@pytest.mark.parametrize("engine", ENGINES)
def test_every_annotation_is_read(engine: str) -> None:
    """One below a sentence would not be."""
    for block in (block for text in source(engine) for block in blocks(text)):
        assert len(re.findall(NOTE, block.body, re.MULTILINE)) == len(notes_of(block)), block.name


def parameters(text: str) -> set[str]:
    return set(re.findall(r"(?<![:\w]):([a-z_]+)", re.sub(r"^--.*", "", text, flags=re.MULTILINE)))


def test_every_lock_exists_and_is_given_all_it_needs_by_the_statement() -> None:
    statements, said = load("holdfast.store.postgres"), notes("holdfast.store.postgres")
    with_locks = {name: each.locks for name, each in said.items() if each.locks}
    assert len(with_locks) > 30
    for name, locks in with_locks.items():
        for lock, given in locks:
            assert parameters(statements[lock]) == {parameter for parameter, _ in given}, name
            assert {value for _, value in given} <= parameters(statements[name]), name


def test_what_is_found_by_a_name_is_locked_by_it() -> None:
    for name, said in notes("holdfast.store.postgres").items():
        assert said.conversation is None or said.locks, name


def test_a_statement_that_returns_rows_is_never_sent_without_waiting_for_them() -> None:
    for name, said in notes("holdfast.store.postgres").items():
        if said.rows and not name.startswith("lock_"):
            text = load("holdfast.store.postgres")[name]
            assert text.startswith(("INSERT", "UPDATE", "DELETE")) and "RETURNING" not in text, name


FILES = [*sorted((SOURCE / "sql").glob("*.sql")), SOURCE / "postgres" / "overrides.sql"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_file_gives_the_types_of_its_own_parameters(file: Path) -> None:
    text = file.read_text("utf-8")
    declared = re.findall(r"^-- (?:bigint|boolean|bytea): (.+)$", text, re.MULTILINE)
    names = [name for line in declared for name in line.split(", ")]
    used = parameters(text) | set(re.findall(r"%\((\w+)\)s", text))
    assert sorted(names) == sorted(used & types("holdfast.store.postgres").keys())


@pytest.mark.parametrize("engine", ENGINES)
def test_every_rule_of_a_dialect_is_still_needed(engine: str) -> None:
    shared = "".join(file.read_text("utf-8") for file in FILES[:-1])
    patterns, plain = DIALECTS[engine.rpartition(".")[2]]
    assert all(pattern.search(shared) for pattern, _ in patterns)
    assert all(words in shared for words, _ in plain)
