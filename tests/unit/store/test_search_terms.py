"""What words mean to a search; and that the index never hides what the words would find."""

import re

import pytest

from holdfast.errors import BadInput
from holdfast.store.search_terms import (
    LONGEST_LEXEME,
    Term,
    holds,
    lexeme_of_conversation,
    lexeme_of_owner,
    lexemes_of,
    mark_of,
    marked,
    terms_of,
    text_of,
    tokens_of,
    tsquery_of,
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


def test_an_ascii_text_has_the_same_words_as_beside_other_characters() -> None:
    text = "".join(f"{chr(code)}Ab{chr(code)}{chr(code)}9 " for code in range(128))
    assert tokens_of(text) == tokens_of(f"{text} \N{SNOWMAN}")


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
    cut, mark = "x" * LONGEST_LEXEME, mark_of("ada")
    query = tsquery_of(terms_of(f'kelp "ebb and" {long}'), "ada", "conv_1")
    scope = f"'{lexeme_of_conversation('conv_1')}'"
    assert query == f"{scope} & '{mark}kelp':* & '{mark}ebb' & '{mark}and' & '{mark}{cut}'"
    indexed = lexemes_of(f"ebb and kelp {long} more", "ada")
    assert indexed is not None
    assert {mark + word for word in ("ebb", "and", "kelp", cut)} <= indexed


def test_the_words_of_two_owners_are_not_the_same_in_an_index() -> None:
    ada, bob = (lexemes_of("kelp and tide", owner) or set() for owner in ("ada", "bob"))
    assert not ada & bob
    assert set(marked("kelp and tide", "ada").split()) == ada
    assert all(re.fullmatch("[a-z2-7]{8}", mark_of(owner)) for owner in ("ada", "", "ä" * 512, "a b/c"))


@pytest.mark.parametrize("text", ["kelp " * 60_000, "kelp" * 60_000, "Crème. " * 40_000, "\n" * 200_000, ""])
def test_a_long_text_has_the_words_that_its_parts_have(text: str) -> None:
    whole = re.findall(r"[^\W_]+", text.casefold().replace("è", "e"))
    assert tokens_of(text) == whole
    assert marked(text, "ada").split() == [mark_of("ada") + token for token in whole]


def test_a_search_has_a_limit_of_characters_and_of_different_words() -> None:
    terms_of("kelp " * 200)
    terms_of(" ".join(f"w{number}" for number in range(50)))
    with pytest.raises(BadInput, match="at most 1,000 characters, this one has 1,001"):
        terms_of("x" * 1_001)
    with pytest.raises(BadInput, match="at most 50 different words, this one has 51"):
        terms_of(" ".join(f"w{number}" for number in range(51)))
    with pytest.raises(BadInput, match="at most 50"):
        terms_of('"' + "a b " * 100 + '"')


def test_scopes_are_no_words_and_not_each_other() -> None:
    assert lexeme_of_owner("ada") != lexeme_of_conversation("ada")
    assert len(lexeme_of_owner("ä" * 512)) < 40
    assert lexeme_of_owner("ada").startswith("=")


def test_a_text_with_too_many_words_is_said_to_be_so() -> None:
    assert lexemes_of(" ".join(f"word{number}" for number in range(1000)), "ada") is not None
    assert lexemes_of(" ".join(f"word{number}" for number in range(60_000)), "ada") is None


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
