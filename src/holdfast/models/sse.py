"""Parses server-sent events from a byte stream, wherever the network split it.

Feed it what arrives; it returns the complete events, each as its name and its data, both as bytes: nothing is
decoded here. LF, CRLF and CR end a line, comments are dropped, several `data:` lines are one event. An event
may have about MAX_EVENT bytes and a stream MAX_STREAM: a server that never ends a line, or its answer, cannot
fill the memory.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import ModelError

MAX_EVENT = 16 * 2**20
MAX_STREAM = 256 * 2**20
"""About a million chunks. What can be stored of an answer is far less."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    name: bytes
    """Empty unless the server named it."""
    data: bytes


class EventReader:
    """Bytes in, events out; one for each response."""

    def __init__(self) -> None:
        self._cut: list[bytes] = []  # the pieces of a line that has not ended yet
        self._data: list[bytes] = []
        self._name = b""
        self._held = 0  # bytes since the last event
        self._left = MAX_STREAM
        self._after_cr = False  # a piece ended in CR: a following LF belongs to that line end
        self._begun = False

    def feed(self, piece: bytes) -> list[SseEvent]:
        """The events that this piece completes."""
        self._left -= len(piece)
        if self._left < 0:
            raise ModelError(f"the model sent more than {MAX_STREAM >> 20} MiB and did not end its answer")
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        if not piece:
            return []
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif self._begun and not self._cut and not self._data and piece.endswith(b"\n\n"):
            return self._whole(piece)
        *lines, begun = piece.split(b"\n")
        if lines and self._cut:
            lines[0] = b"".join((*self._cut, lines[0]))
            self._cut.clear()
        if begun:
            self._cut.append(begun)
        events: list[SseEvent] = []
        for line in lines:
            self._read(line, events)
        self._hold(len(piece))
        return events

    def _whole(self, piece: bytes) -> list[SseEvent]:
        """Fast path: the events of a piece that was split between events, as is usual."""
        events: list[SseEvent] = []
        for block in piece[:-2].split(b"\n\n"):
            if block.startswith(b"data: ") and b"\n" not in block and not self._name:
                events.append(SseEvent(b"", block[6:]))
            else:
                for line in block.split(b"\n"):
                    self._read(line, events)
                self._read(b"", events)
        self._held = 0
        return events

    def finish(self) -> list[SseEvent]:
        """The last event, if the stream ended without its empty line and it has data."""
        events: list[SseEvent] = []
        self._read(b"".join(self._cut), events)
        self._read(b"", events)
        self._cut.clear()
        return events

    def _read(self, line: bytes, events: list[SseEvent]) -> None:
        if not self._begun:
            self._begun = True
            line = line.removeprefix(BYTE_ORDER_MARK)
        if line.startswith(b"data:"):
            # One space after the colon belongs to the format, any further one to the data.
            self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
        elif not line:
            if self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                events.append(SseEvent(self._name, data))
                self._data.clear()
            self._name = b""
        elif line.startswith(b"event:"):
            self._name = line[6:].strip()
        # Anything else is a comment, an `id:`, a `retry:` or unknown, and not part of the answer.

    def _hold(self, size: int) -> None:
        self._held = self._held + size if self._cut or self._data else 0
        if self._held > MAX_EVENT:
            raise ModelError(
                f"the model sent {MAX_EVENT >> 20} MiB without ending an event; check [model] base_url"
            )
