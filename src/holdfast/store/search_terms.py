"""The words of a query and of a text, defined once for both engines.

All words must occur, each by prefix (`data` finds `database`), without case and accents; quotes keep a
phrase. An index stores every word of a message with a prefix for the message's owner. So a search reads only
the index entries of its owner's messages: its cost does not depend on what others have stored. Two owners may
have the same prefix; a message's owner is always read from its row.
"""

from __future__ import annotations

import base64
import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from ..domain.ids import unstorable
from ..errors import BadInput, SearchTimeout

MOST_CHARACTERS = 1_000
MOST_WORDS = 50
SEARCH_SECONDS = 2.0
"""Time limit of one owner's search, including the time in the queue."""
OPERATOR_SECONDS = 30.0
"""The same for a search over all owners, which only an operator can make."""
CATCH_UP_SECONDS = 5.0
"""How long a search may wait for a lagging index."""

LONGEST_LEXEME = 100
MOST_LEXEME_BYTES = 500_000  # a tsvector holds at most a megabyte
CHUNK = 65_536
"""Characters split into words at once; other threads can run between chunks."""

_TOKEN = re.compile(r"[^\W_]+")
_ASCII_GAPS = str.maketrans({chr(code): " " for code in range(128) if not chr(code).isalnum()})
"""What separates the words of an ASCII text: the same as by _TOKEN, in less than half the time."""
_BETWEEN = re.compile(r"[\s,.;:!?]")
_ACCENTS = re.compile("[\u0300-\u036f]+")


class Deadline:
    """The time at which a search gives up."""

    __slots__ = ("seconds", "until")

    def __init__(self, owner: str | None) -> None:
        self.seconds = OPERATOR_SECONDS if owner is None else SEARCH_SECONDS
        self.until = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    @property
    def passed(self) -> bool:
        return self.left <= 0

    def check(self) -> None:
        """Raises SearchTimeout once it has passed."""
        if self.passed:
            raise SearchTimeout(self.seconds)


@dataclass(frozen=True, slots=True)
class Term:
    """Words that follow each other; if `open`, the last one is a prefix."""

    tokens: tuple[str, ...]
    open: bool


def tokens_of(text: str) -> list[str]:
    """The words of a text, in order."""
    return [token for some in _tokens(text) for token in some]


def _tokens(text: str) -> Iterator[list[str]]:
    """The words of a text, chunk by chunk."""
    at = 0
    while at < len(text):
        between = _BETWEEN.search(text, at + CHUNK)
        end = between.end() if between else len(text)
        some = text[at:end]
        if some.isascii():
            yield some.lower().translate(_ASCII_GAPS).split()
        else:
            some = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", some)))
            yield _TOKEN.findall(some.casefold())
        at = end


def terms_of(words: str) -> list[Term]:
    """The terms of a query, without duplicates. BadInput if there are none, or too many."""
    if len(words) > MOST_CHARACTERS:
        raise BadInput(
            f"a search may have at most {MOST_CHARACTERS:,} characters, this one has {len(words):,}; "
            "search for a few words of what you look for"
        )
    words = words.replace("\x00", " ")
    fault = unstorable(words)
    if fault:
        raise BadInput(f"this search is not possible: it {fault}")
    terms: dict[Term, None] = {}
    for number, piece in enumerate(words.split('"')):
        for word in [piece] if number % 2 else piece.split():
            if tokens := tokens_of(word):
                terms[Term(tuple(tokens), number % 2 == 0)] = None
    if not terms:
        raise BadInput("a search needs at least one word")
    count = sum(len(term.tokens) for term in terms)
    if count > MOST_WORDS:
        raise BadInput(
            f"a search may have at most {MOST_WORDS} different words, this one has {count}; "
            "search for a few words of what you look for"
        )
    return list(terms)


def text_of(body: bytes) -> str:
    """The text of a message: its content, or the text parts of it."""
    try:
        content: Any = msgspec.json.decode(body).get("content")
    except (msgspec.DecodeError, RecursionError, AttributeError):
        return ""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return " ".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def holds(text: str, terms: Sequence[Term]) -> bool:
    """True if this text contains all of them."""
    tokens = tokens_of(text)
    return all(_holds(tokens, term) for term in terms)


def _holds(tokens: list[str], term: Term) -> bool:
    *before, last = term.tokens
    width = len(before)
    for place in range(width, len(tokens)):
        found = tokens[place].startswith(last) if term.open else tokens[place] == last
        if found and tokens[place - width : place] == before:
            return True
    return False


# --- the index ---------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def mark_of(owner: str) -> str:
    """Eight letters or digits: the prefix of every word of this owner's messages in an index."""
    return base64.b32encode(blake2b(owner.encode(), digest_size=5).digest()).decode().lower()


def marked(text: str, owner: str) -> str:
    """The words of a text as stored in an index, in order."""
    mark = mark_of(owner)
    return " ".join(mark + f" {mark}".join(some) for some in _tokens(text) if some)


def lexeme_of_conversation(conversation_id: str) -> str:
    """A conversation as one lexeme that cannot be a word."""
    return f"={blake2b(conversation_id.encode(), digest_size=12).hexdigest()}"


def lexeme_of_owner(owner: str) -> str:
    """An owner as one lexeme that cannot be a word."""
    return f"={mark_of(owner)}"


def lexemes_of(text: str, owner: str) -> set[str] | None:
    """The lexemes of a text for PostgreSQL's index; None: more words than a tsvector can hold."""
    mark = mark_of(owner)
    found = {mark + token[:LONGEST_LEXEME] for some in _tokens(text) for token in some}
    return found if sum(len(token.encode()) + 4 for token in found) <= MOST_LEXEME_BYTES else None


def tsquery_of(terms: Sequence[Term], owner: str, conversation_id: str | None) -> str:
    """A tsquery that matches every text of this owner with these terms, and few others."""
    mark = mark_of(owner)
    asked: dict[str, None] = {}
    if conversation_id is not None:
        asked[f"'{lexeme_of_conversation(conversation_id)}'"] = None
    for term in terms:
        for token in term.tokens[:-1]:
            asked[_lexeme(mark, token, False)] = None
        asked[_lexeme(mark, term.tokens[-1], term.open)] = None
    return " & ".join(asked)


def _lexeme(mark: str, token: str, is_open: bool) -> str:
    cut = token[:LONGEST_LEXEME]
    return f"'{mark}{cut}':*" if is_open and cut == token else f"'{mark}{cut}'"
