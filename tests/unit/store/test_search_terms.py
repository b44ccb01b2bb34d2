"""What words mean to a PostgreSQL search; and that the index never hides what the words would find."""

import pytest

from holdfast.errors import BadInput
from holdfast.store.postgres.words import (
    LONGEST_LEXEME,
    Term,
    holds,
    lexeme_of_conversation,
    lexeme_of_owner,
    lexemes_of,
    query_of,
    terms_of,
    text_of,
    tokens_of,
)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The Tide", ["the", "tide"]),
        ("Crème brûlée", ["creme", "brulee"]),
        ("Straße", ["strasse"]),
        ("a-b_c d/e", ["a", "b", "c", "d", "e"]),
        ("user@example.org", ["user", "example", "org"]),
        ("がか", ["がか"]),  # marks that make another letter are no accents
        ("日本語 のテキスト", ["日本語", "のテキスト"]),
        ("...", []),
    ],
)
def test_tokens_are_words_without_case_and_accents(text: str, tokens: list[str]) -> None:
    assert tokens_of(text) == tokens


@pytest.mark.parametrize(
    ("words", "terms"),
    [
        ("kelp tide", [Term(("kelp",), True), Term(("tide",), True)]),
        ('"ebb and" flow', [Term(("ebb", "and"), False), Term(("flow",), True)]),
        ("user@example.org", [Term(("user", "example", "org"), True)]),
        ('unclosed "phrase here', [Term(("unclosed",), True), Term(("phrase", "here"), False)]),
        ("kelp kelp", [Term(("kelp",), True)]),
    ],
)
def test_terms_are_beginnings_and_quotes_keep_a_phrase(words: str, terms: list[Term]) -> None:
    assert terms_of(words) == terms


@pytest.mark.parametrize("words", ["", " ", '""', "***", "\x00", "\ud800"])
def test_a_search_without_a_word_is_refused(words: str) -> None:
    with pytest.raises(BadInput):
        terms_of(words)


@pytest.mark.parametrize(
    ("text", "words", "found"),
    [
        ("the database of tides", "data", True),
        ("the database of tides", "base", False),
        ("the database of tides", '"database of"', True),
        ("the database of tides", '"database tides"', False),
        ("the database of tides", '"data of"', False),
        ("kelp", '"kelp kelp"', False),
        ("kelp kelp", '"kelp kelp"', True),
        ("user at example org", "user@example", False),
        ("user@example.organic", "user@example.org", True),
    ],
)
def test_a_text_holds_terms(text: str, words: str, found: bool) -> None:
    assert holds(text, terms_of(words)) is found


def test_the_query_asks_for_no_more_than_the_terms_do() -> None:
    long = "x" * (LONGEST_LEXEME + 50)
    query = query_of(terms_of(f'kelp "ebb and" {long}'), [lexeme_of_owner("ada")])
    assert query == f"'{lexeme_of_owner('ada')}' & 'kelp':* & 'ebb' & 'and' & '{'x' * LONGEST_LEXEME}'"
    indexed = lexemes_of(f"ebb and kelp {long} more")
    assert indexed is not None
    assert {"ebb", "and", "kelp", "x" * LONGEST_LEXEME} <= indexed


def test_scopes_are_no_words_and_not_each_other() -> None:
    assert lexeme_of_owner("ada") != lexeme_of_conversation("ada")
    assert len(lexeme_of_owner("ä" * 512)) < 40
    assert lexeme_of_owner("ada").startswith("=")


def test_a_text_with_too_many_words_is_said_to_be_so() -> None:
    assert lexemes_of(" ".join(f"word{number}" for number in range(1000))) is not None
    assert lexemes_of(" ".join(f"word{number}" for number in range(60_000))) is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"content":"kelp"}', "kelp"),
        (b'{"content":[{"type":"text","text":"a"},"b",{"type":"image"},{"text":5}]}', "a b"),
        (b'{"content":null}', ""),
        (b"{}", ""),
        (b"[1]", ""),
        (b"no json", ""),
        (b'{"content":"nul \\u0000 byte"}', "nul \x00 byte"),
    ],
)
def test_the_text_of_a_message_is_its_content(body: bytes, text: str) -> None:
    assert text_of(body) == text
