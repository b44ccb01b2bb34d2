"""Turns that wait until their conversation is free, and what a request does that finds it busy."""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import replace

from .messages import NewMessage
from .turns import Turn, TurnRequest
from .value import Value


class WhenBusy(StrEnum):
    """What a request does while another turn holds its conversation."""

    WAIT = "wait"
    QUEUE = "queue"
    """Its messages are stored as a queued turn."""
    STEER = "steer"
    """Its messages join the running turn at its next step; if there is none, they are a queued turn."""
    INTERRUPT = "interrupt"
    REJECT = "reject"


QUEUES = frozenset({WhenBusy.QUEUE, WhenBusy.STEER})


def can_queue(request: TurnRequest) -> bool:
    """True: the request adds messages of the user to a conversation, whatever it holds by then."""
    return (
        bool(request.messages)
        and request.branch is None
        and not request.regenerates
        and all(message.role == "user" for message in request.messages)
    )


class QueuedTurn(Value, frozen=True):
    """A turn that has not begun, and its place in the queue of its conversation."""

    turn: Turn
    messages: tuple[NewMessage, ...]
    position: int
    """1: it is the next."""
    steers: bool = False
    behind: str | None = None
    """The turn that it waits for: the running one, or the one before it in the queue."""


class Steered(Value, frozen=True):
    """Messages that joined a running turn."""

    turns: tuple[str, ...]
    last_seq: int


class Cancelled(Value, frozen=True):
    """What a cancel ended."""

    turn: Turn | None
    """The turn that ran, or that was named; None: none ran."""
    stopped: bool
    """False: that turn had ended before."""
    withdrawn: int
    """How many queued turns were withdrawn with it."""

    @property
    def queue_sentence(self) -> str:
        """What became of the queue; empty if nothing was queued."""
        if not self.withdrawn:
            return ""
        return f"{self.withdrawn} queued turn{'s were' if self.withdrawn > 1 else ' was'} withdrawn"


def as_joined(turn: Turn, other: Turn) -> Turn:
    """A turn whose messages joined `other`, with that one's state."""
    return replace(
        turn,
        status=other.status,
        session_id=other.session_id,
        ended_at=other.ended_at,
        error=other.error,
        usage=other.usage,
        recovery=other.recovery,
    )
