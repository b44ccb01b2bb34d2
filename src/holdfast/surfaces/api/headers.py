"""A request's headers, read once: most requests are asked about a dozen of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from ...errors import BadInput


class Headers:
    """Headers by their names in small letters. Values that identify something are UTF-8 (`once`); any other
    is UTF-8, or what its bytes are in Latin-1 (`get`)."""

    __slots__ = ("_found", "_repeated")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._found: dict[bytes, bytes] = {}
        self._repeated: list[bytes] = []
        for name, value in raw:
            if name in self._found:
                self._repeated.append(name)
            else:
                self._found[name] = value

    def get(self, name: str, default: str = "") -> str:
        """The first header of this name; empty is like absent."""
        value = self._found.get(name.encode())
        if not value:
            return default
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")

    def once(self, name: str) -> str | None:
        """A header that says whose data it is or where it belongs. BadInput if it was sent more than once, or
        if two texts that look alike could be meant: it must be UTF-8 in NFC without invisible characters."""
        if self._repeated and name.encode() in self._repeated:
            raise BadInput(f"the header {name} was sent more than once; send it once")
        value = self._found.get(name.encode())
        return None if value is None else _unmistakable(name, value)


def _unmistakable(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise BadInput(f"the header {name} is not UTF-8; send its value encoded as UTF-8") from None
    if text.isascii() and text.isprintable():
        return text
    for character in text:
        if is_invisible(character):
            raise BadInput(
                f"the header {name} holds an invisible character, U+{ord(character):04X}; send it without"
            )
    if not unicodedata.is_normalized("NFC", text):
        raise BadInput(f"the header {name} is not in Unicode's normal form NFC; normalise it before sending")
    return text


# Characters that fonts draw as nothing though their category is that of a letter or a mark.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})


def is_invisible(character: str) -> bool:
    """True for control, format and unassigned characters, spaces other than U+0020, and blank letters."""
    if character == " ":
        return False
    code = ord(character)
    return (
        unicodedata.category(character) in _INVISIBLE
        or character in _BLANKS
        or 0xFE00 <= code <= 0xFE0F
        or 0xE0100 <= code <= 0xE01EF  # variation selectors
    )
