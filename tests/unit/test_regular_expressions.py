"""No regular expression of the code takes more than linear time, whatever text it is given.

Every pattern in `src` is found by reading the code, so a new one is covered the day it is written. Each runs
over texts that are made from the pattern itself: its characters repeated, its repetitions drawn out and then
not followed by what they wait for, its literals again and again. Time is the CPU's, so another program on the
machine changes nothing.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import time
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import sre_constants as sre
    import sre_parse

ROOT = Path(__file__).parents[2] / "src"
USES = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
FLAGS = {"compile": 1, "match": 2, "fullmatch": 2, "search": 2, "sub": 4, "subn": 4, "split": 3}
SHORT = (16, 20, 24, 400)
"""Characters. What is exponential or cubic is caught here: it would not come back from a longer text."""
MIDDLE = 2_000
LONG = (6_000, 25_000, 100_000)
"""Only the texts that took longest at 2,000 characters are tried at these."""
TRIED_AT_LONG = 16
MOST_CPU_SECONDS = 0.5
"""Of one run. A linear pattern needs milliseconds for 100,000 characters."""
MOST_CPU_SECONDS_SHORT = 0.02
"""A linear pattern needs microseconds for 400 characters."""
MEASURABLE_SECONDS = 0.03
"""Below this a ratio of two times says nothing."""
MOST_GROWTH = 3.0
"""Twice the text takes twice the time; four times would be quadratic."""

MENTIONS_RE = re.compile(r"\bre\b")
"""Most files have none: they are not parsed."""

Pattern = re.Pattern[Any]


def patterns_in(path: Path) -> Iterator[tuple[int, Pattern]]:
    """Every regular expression in a file, with its line. One that is put together at run time is refused."""
    text = path.read_text()
    if not MENTIONS_RE.search(text):
        return
    tree = ast.parse(text)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.module != "re", f"{path}:{node.lineno}: write `import re`, so that this test sees it"
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in USES
        ):
            continue
        given = {word.arg: word.value for word in node.keywords}
        source = node.args[0] if node.args else given["pattern"]
        place = FLAGS.get(node.func.attr, 2)
        flags = node.args[place] if len(node.args) > place else given.get("flags")
        try:
            names = vars(importlib.import_module(name))
            compiled = re.compile(_value(source, names), _value(flags, names) if flags is not None else 0)
        except NameError as error:
            raise AssertionError(
                f"{path}:{node.lineno}: this pattern is put together at run time ({error}); write it as a "
                "constant, or do without a regular expression: nothing can tell how long it takes"
            ) from error
        yield node.lineno, compiled


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "<pattern>", "eval"), names)


@cache
def all_patterns() -> list[Any]:
    return [
        pytest.param(pattern, id=f"{path.relative_to(ROOT / 'holdfast')}:{line}")
        for path in sorted(ROOT.rglob("*.py"))
        for line, pattern in patterns_in(path)
    ]


# --- hostile texts -----------------------------------------------------------------------------------

SAMPLES = {
    sre.CATEGORY_DIGIT: "1",
    sre.CATEGORY_NOT_DIGIT: "a",
    sre.CATEGORY_SPACE: " \n",
    sre.CATEGORY_NOT_SPACE: "a",
    sre.CATEGORY_WORD: "a_1",
    sre.CATEGORY_NOT_WORD: "-",
}
ANY = "a1 \n-:\"'[{<=,./*@"


def _members(items: Any) -> tuple[str, bool]:
    """Some characters a class is made of, and whether it is all others that it stands for."""
    found, negated = "", False
    for op, value in items:
        if op is sre.NEGATE:
            negated = True
        elif op is sre.LITERAL:
            found += chr(value)
        elif op is sre.RANGE:
            found += chr(value[0]) + chr(value[1])
        elif op is sre.CATEGORY:
            found += SAMPLES[value]
    return found, negated


def _characters(items: Any, alphabet: str) -> str:
    """Characters of `alphabet` (and of its own) that a class matches."""
    members, negated = _members(items)
    if not negated:
        return members
    excluded = re.compile("[" + "".join(map(re.escape, members)) + "]")
    return "".join(character for character in dict.fromkeys(ANY + alphabet) if not excluded.match(character))


def alphabet_of(tree: Any) -> str:
    """Every character the pattern names, and one of each kind that it names."""
    found = ""
    for op, value in tree:
        if op in (sre.LITERAL, sre.NOT_LITERAL):
            found += chr(value)
        elif op is sre.IN:
            found += _members(value)[0]
        elif op is sre.ANY:
            found += "a."
        for inner in _inside(op, value):
            found += alphabet_of(inner)
    return "".join(dict.fromkeys(found))


def _inside(op: Any, value: Any) -> list[Any]:
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, getattr(sre, "POSSESSIVE_REPEAT", None)):
        return [value[2]]
    if op is sre.SUBPATTERN:
        return [value[3]]
    if op is sre.BRANCH:
        return list(value[1])
    if op in (sre.ASSERT, sre.ASSERT_NOT):
        return [value[1]]
    if op is getattr(sre, "ATOMIC_GROUP", None):
        return [value]
    return []


def exemplars(tree: Any, alphabet: str) -> Iterator[tuple[str, str]]:
    """Pairs of a text that leads up to a repetition and one that the repetition takes again and again; the
    last pair leads through the whole pattern."""
    ways = [""]
    for op, value in tree:
        if op is sre.LITERAL:
            ways = [way + chr(value) for way in ways]
        elif op is sre.NOT_LITERAL:
            ways = [way + ("a" if chr(value) != "a" else "b") for way in ways]
        elif op is sre.ANY:
            ways = [way + "a" for way in ways]
        elif op is sre.IN:
            some = _characters(value, alphabet)[:1]
            ways = [way + some for way in ways]
        elif op is sre.SUBPATTERN or op is sre.BRANCH or op is getattr(sre, "ATOMIC_GROUP", None):
            inner = [list(exemplars(each, alphabet)) for each in _inside(op, value)]
            for way in ways:
                for each in inner:
                    yield from ((way + before, pumped) for before, pumped in each[:-1])
            ways = [way + each[-1][0] for way in ways for each in inner][:12]
        elif _inside(op, value) and op not in (sre.ASSERT, sre.ASSERT_NOT):
            least, most, inner_tree = value
            each = list(exemplars(inner_tree, alphabet))
            single = inner_tree[0] if len(inner_tree) == 1 else None
            units = [each[-1][0]]
            if single is not None and single[0] is sre.IN:
                units += list(_characters(single[1], alphabet))
            elif single is not None and single[0] is sre.ANY:
                units += list(alphabet + ANY)
            for way in ways:
                yield from ((way + before, pumped) for before, pumped in each[:-1])
                if most > 3:
                    yield from ((way, unit) for unit in dict.fromkeys(units) if unit)
            ways = [way + units[0] * max(least, 1 if most else 0) for way in ways]
    for way in ways[:-1]:
        yield way, way
    yield ways[-1], ways[-1]


def hostile_texts(pattern: Pattern) -> Iterator[tuple[str, str]]:
    """What to begin a text with and what to repeat in it."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = sre_parse.parse(source, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else 0)
    alphabet = alphabet_of(tree)
    seen: set[tuple[str, str]] = set()
    for before, unit in exemplars(tree, alphabet):
        # Drawn out once; and the way up to it again and again, each time a little further from a match.
        for text in ((before, unit), ("", before + unit), ("", before[:-1]), (before, before[:-1])):
            if text[1] and text not in seen:
                seen.add(text)
                yield text
    for one in dict.fromkeys(alphabet + ANY):
        if ("", one) not in seen:
            yield "", one
    for one, other in itertools.permutations(alphabet[:5], 2):
        yield "", one + other


def text_of(size: int, before: str, unit: str, end: str) -> str:
    return before + unit * (max(0, size - len(before)) // len(unit)) + end


def cpu_seconds(pattern: Pattern, text: str) -> float:
    given: Any = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
    began = time.thread_time()
    for _ in pattern.finditer(given):
        pass
    pattern.fullmatch(given)
    return time.thread_time() - began


def slow_on(pattern: Pattern) -> str | None:
    """A text that this pattern takes too long for, if there is one among the hostile ones."""
    texts = [(before, unit, end) for before, unit in hostile_texts(pattern) for end in ("", "\x00")]
    took: dict[tuple[str, str, str], float] = {}
    for size in (*SHORT, MIDDLE):
        most = MOST_CPU_SECONDS_SHORT if size in SHORT else MOST_CPU_SECONDS
        for text in texts:
            took[text] = cpu_seconds(pattern, text_of(size, *text))
            if took[text] > most and cpu_seconds(pattern, text_of(size, *text)) > most:
                return f"{took[text]:.2f} s for {size} characters of {text}"
    for text in sorted(texts, key=took.__getitem__, reverse=True)[:TRIED_AT_LONG]:
        for size in LONG:
            if is_slow(pattern, text, size):
                return f"more than linear time for {size} characters of {text}"
    return None


def is_slow(pattern: Pattern, text: tuple[str, str, str], size: int) -> bool:
    """Measured again where it looks so: a linear run that was disturbed is fast the second time."""
    whole, half = text_of(size, *text), text_of(size // 2, *text)
    if (took := cpu_seconds(pattern, whole)) > MOST_CPU_SECONDS:
        return cpu_seconds(pattern, whole) > MOST_CPU_SECONDS
    return took > MEASURABLE_SECONDS and all(
        cpu_seconds(pattern, whole) > MOST_GROWTH * cpu_seconds(pattern, half) for _ in range(3)
    )


# --- the tests ---------------------------------------------------------------------------------------


def test_the_patterns_of_the_code_are_found() -> None:
    found = [param.values[0].pattern for param in all_patterns()]
    assert len(found) > 20
    assert any("bearer" in str(pattern) for pattern in found)


@pytest.mark.parametrize("pattern", all_patterns())
def test_a_pattern_takes_linear_time_on_hostile_texts(pattern: Pattern) -> None:
    assert slow_on(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"sk-abc(?:[^\s\"']*\w)?|[^\s\"']*[*.…]+wxyz\b",
        r"(\w+)[\"']?\s*:\s*[\"']?([\w.]+)",
        r"\[(\d+) earlier messages? (?:was|were) left out here, [^\]]*\]\s*\Z",
        r"(?P<before>://[^/?#@\s]*?:)[^/?#@\s]*(?=@)",
        r"\s+$",
        r"(a+)+b",
        rb"[^,]*;",
    ],
)
def test_patterns_that_overlap_are_caught(pattern: Any) -> None:
    assert slow_on(re.compile(pattern)) is not None
