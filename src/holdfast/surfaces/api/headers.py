"""A request's headers, read once: most requests are asked about a dozen of them."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import BadInput


class Headers:
    """Headers by their names in small letters. Values are UTF-8, or what the bytes say in Latin-1."""

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
        """A header that says whose data it is or where it belongs: said twice, it says nothing."""
        if self._repeated and name.encode() in self._repeated:
            raise BadInput(f"the header {name} was sent more than once; send it once")
        return self.get(name) if name.encode() in self._found else None
