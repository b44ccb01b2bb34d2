"""What the words of a search mean, and whether a text holds them: the one place that decides.

All words must be there, each from its beginning (`data` finds `database`), without case and accents; quotes
keep a phrase. The index only narrows down which messages are worth a look: a hit is a message whose text,
read from the table, passes `holds`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from ...domain.names import unstorable
from ...errors import BadInput

LONGEST_LEXEME = 100
MOST_LEXEME_BYTES = 500_000  # a tsvector holds no more than a megabyte
MOST_ASKED = 50

_TOKEN = re.compile(r"[^\W_]+")
_ACCENTS = re.compile("[\u0300-\u036f]+")


@dataclass(frozen=True, slots=True)
class Term:
    """Words that follow each other; of the last, if it is `open`, only the beginning."""

    tokens: tuple[str, ...]
    open: bool


def tokens_of(text: str) -> list[str]:
    if not text.isascii():
        text = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", text)))
    return _TOKEN.findall(text.casefold())


def terms_of(words: str) -> list[Term]:
    """A person's words. BadInput if there is none among them."""
    words = words.replace("\x00", " ")
    fault = unstorable(words)
    if fault:
        raise BadInput(f"the searched words cannot be looked up: it {fault}")
    terms: dict[Term, None] = {}
    for number, piece in enumerate(words.split('"')):
        for word in [piece] if number % 2 else piece.split():
            if tokens := tokens_of(word):
                terms[Term(tuple(tokens), number % 2 == 0)] = None
    if not terms:
        raise BadInput("a search needs at least one word")
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
    """Does this text hold all of them?"""
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


def lexeme_of_owner(owner: str) -> str:
    return _scope("o", owner)


def lexeme_of_conversation(conversation_id: str) -> str:
    return _scope("c", conversation_id)


def _scope(kind: str, name: str) -> str:
    """A name as one lexeme that no word can be, whatever characters it holds."""
    return f"={kind}{blake2b(name.encode(), digest_size=12).hexdigest()}"


def lexemes_of(text: str) -> set[str] | None:
    """What the index keeps of a text; None: it has more words than a tsvector can hold."""
    found = {token[:LONGEST_LEXEME] for token in tokens_of(text)}
    return found if sum(len(token.encode()) + 4 for token in found) <= MOST_LEXEME_BYTES else None


def query_of(terms: Sequence[Term], scopes: Sequence[str]) -> str:
    """A tsquery that every text with these terms passes, and few others do."""
    asked: dict[str, None] = dict.fromkeys(f"'{scope}'" for scope in scopes)
    for term in terms[:MOST_ASKED]:
        for token in term.tokens[:-1][:MOST_ASKED]:
            asked[_lexeme(token, False)] = None
        asked[_lexeme(term.tokens[-1], term.open)] = None
    return " & ".join(asked)


def _lexeme(token: str, is_open: bool) -> str:
    cut = token[:LONGEST_LEXEME]
    return f"'{cut}':*" if is_open and cut == token else f"'{cut}'"
