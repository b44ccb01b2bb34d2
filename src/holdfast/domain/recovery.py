"""Automatic retries of unanswered turns: the stored request, and when a server retries it or gives it up.

A turn is *waiting* if a server will retry it: its stored status is interrupted or failed, and it has a time
at which it is due. Every reader sees it as running until it is answered or given up.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from .value import Value

REQUEST_KEPT = timedelta(hours=24)
"""How long the request of a turn that failed or was interrupted is kept, so that a retry sends the same."""


class Origin(StrEnum):
    """Who waits for a turn's answer."""

    FOREGROUND = "foreground"
    """A client, with an open connection."""
    BACKGROUND = "background"
    """A client that asks later."""
    QUEUED = "queued"
    CONNECTOR = "connector"
    PROGRAM = "program"
    """The program that runs the turn: no server can retry it."""


NEVER, ALL = "never", "all"


def is_covered(policy: str, origin: Origin, wanted: bool | None = None) -> bool:
    """True: a turn of this origin is retried automatically. `policy`: `[turns] recover`; `wanted`: what the
    request says, which overrides it, but not `never`."""
    if policy == NEVER or origin is Origin.PROGRAM:
        return False
    if wanted is not None:
        return wanted
    return policy == ALL or origin is not Origin.FOREGROUND


PATIENT = frozenset({Origin.BACKGROUND, Origin.QUEUED, Origin.CONNECTOR})
"""No connection waits for these: they wait until the model can answer."""


class Cause(StrEnum):
    """Why a turn is waiting."""

    DEATH = "death"
    STOP = "stop"
    MODEL = "model"
    RETRY = "retry"
    """A person has asked for another attempt."""


class StoredRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is needed to ask the model again, on any node. Holds no key, only the key's id."""

    surface: str
    """The API that the client used: `chat`, `responses` or `anthropic`."""
    body: msgspec.Raw
    """The request's fields without its messages, which are stored as messages."""
    instructions: tuple[msgspec.Raw, ...] = ()
    """The messages that go before the context, the server's own prompt included, as they were."""
    key_id: str = ""
    """The API key that the request came with; empty: none was needed."""
    tools: tuple[str, ...] = ()
    """Without a key: the server tools that the turn may use."""
    headers: dict[str, str] = {}
    """Headers for a model that speaks the client's API: its version and features."""

    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found

    def first_messages(self) -> tuple[bytes, ...]:
        return tuple(bytes(each) for each in self.instructions)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(StoredRequest)


def encoded_request(
    surface: str,
    body: bytes,
    instructions: tuple[bytes, ...] = (),
    key_id: str = "",
    headers: dict[str, str] | None = None,
    tools: tuple[str, ...] = (),
) -> bytes:
    """A StoredRequest as it is stored."""
    raw = tuple(msgspec.Raw(each) for each in instructions)
    return _encode(StoredRequest(surface, msgspec.Raw(body), raw, key_id, tools, headers or {}))


def decoded_request(stored: bytes) -> StoredRequest:
    return _decoder.decode(stored)


class RequestToStore(Value, frozen=True):
    """What `begin_turn` stores of a request besides its messages."""

    request: bytes | None = None
    """A StoredRequest; None: nothing is kept, and the turn cannot be retried."""
    origin: Origin = Origin.PROGRAM
    recover: bool = False
    """True: the policy covers this turn."""


NOT_STORED = RequestToStore()


class Recovery(Value, frozen=True):
    """What is stored of a turn's attempts."""

    origin: Origin | None = None
    """None: the turn is older than this record."""
    recover: bool = False
    tries: int = 1
    """Attempts begun since the last stored step."""
    all_tries: int = 1
    stops: int = 0
    refusals: int = 0
    refused_since: datetime | None = None
    step_seq: int = 0
    due_at: datetime | None = None
    """Not None: the turn is waiting, and is retried from then on."""
    cause: Cause | None = None
    """Why it is waiting; or, if it is not, which fault of a server ended it."""

    @property
    def waits(self) -> bool:
        return self.due_at is not None

    @property
    def is_patient(self) -> bool:
        """True: no connection waits for the answer, so the turn waits out a model that cannot answer."""
        return self.origin in PATIENT


NO_RECOVERY = Recovery()


# --- decisions -------------------------------------------------------------------------------------------

ALONE_FROM = 3
"""From this attempt on a turn is retried alone on its node, so that one that kills its server does not use
up the attempts of others."""
DEATH_SECONDS = (0, 2, 4, 8, 10)
FIRST_REFUSAL_SECONDS = 1.0
LONGEST_REFUSAL_SECONDS = 60.0
PASSING = frozenset({408, 429, 500, 502, 503, 504, 529})
"""HTTP statuses of a model that may answer later. No status at all is a connection that failed."""


class RecoveryRules(Value, frozen=True):
    """`[turns]`, as far as it concerns turns without an answer."""

    recover: str = "background"
    max_attempts: int = 5
    max_deaths: int = 20
    recover_for: timedelta = timedelta(hours=24)
    retry_model: bool = True
    retry_for: timedelta = timedelta(hours=6)


def parked(
    known: Recovery, cause: Cause, now: datetime, *, progressed: bool, last_seq: int, delay: timedelta
) -> Recovery:
    """The record of a turn whose attempt has just ended, and which will be retried.

    `progressed`: the result of a server tool was stored since the last time, which renews the attempts.
    `last_seq`: everything stored up to there is accounted for. `delay`: for a refusal of the model. Only a
    death counts as an attempt; an orderly stop or a refusal gives it back.
    """
    tries = 1 if progressed else known.tries
    seen = replace(known, tries=tries, step_seq=last_seq, cause=cause)
    if cause is Cause.DEATH:
        wait = DEATH_SECONDS[min(max(tries, 1), len(DEATH_SECONDS)) - 1]
        return replace(seen, refusals=0, refused_since=None, due_at=now + timedelta(seconds=wait))
    seen = replace(seen, tries=max(0, tries - 1), all_tries=max(0, known.all_tries - 1))
    if cause is Cause.STOP:
        return replace(seen, stops=known.stops + 1, due_at=now)
    is_first = progressed or known.refused_since is None
    return replace(
        seen,
        refusals=1 if is_first else known.refusals + 1,
        refused_since=now if is_first else known.refused_since,
        due_at=now + delay,
    )


def refusal_delay(known: Recovery, retry_after: float | None, jitter: float) -> timedelta:
    """How long to wait after the model's refusal: as long as it asks, else one second, doubled up to a minute
    at each further refusal. `jitter`: from -1 to 1, for up to a fifth more or less."""
    if retry_after is not None and retry_after >= 0:
        return timedelta(seconds=min(retry_after, 86_400.0))
    doubled = FIRST_REFUSAL_SECONDS * 2 ** min(known.refusals, 10)
    return timedelta(seconds=min(doubled, LONGEST_REFUSAL_SECONDS) * (1 + jitter / 5))


def is_passing(status: int | None) -> bool:
    """True: a model that refused with this status may answer later."""
    return status is None or status in PASSING


def refuses_name(
    status: int | None, *, name: str | None, said: str, code: str | None, spoke: bool, origin: Origin | None
) -> bool:
    """True: the model's server says that it does not know the name that a waiting client gave. What was asked
    is then no part of any conversation: the client corrects the name and asks again. Who does not wait (a
    queue, a chat of a connector, a background request, a program) finds the message where it was put. A 404
    that does not speak of the name, such as that of a wrong address, is a failure like any other."""
    if status != 404 or not name or spoke or origin is not Origin.FOREGROUND:
        return False
    return code == "model_not_found" or name in said


def runs_alone(known: Recovery) -> bool:
    """True: its next attempt runs alone on its node."""
    return known.tries + 1 >= ALONE_FROM


def reason_to_give_up(
    known: Recovery, rules: RecoveryRules, started_at: datetime, ended_at: datetime | None, now: datetime
) -> str | None:
    """Why a waiting turn is given up instead of retried, as a sentence; None: it is retried."""
    if known.cause is Cause.RETRY:
        return None
    last = f", last at {ended_at:%H:%M:%S} UTC" if ended_at else ""
    again = "A manual retry is possible."
    if known.cause is Cause.MODEL:
        if known.refused_since is not None and now - known.refused_since >= rules.retry_for:
            return f"Given up: the model has refused for {_span(rules.retry_for)}{last}. {again}"
    elif rules.recover == NEVER:
        return "Not retried: [turns] recover = never."
    elif known.tries >= rules.max_attempts:
        return f"Given up after {known.tries} attempts: a server died during each of them{last}. {again}"
    elif known.all_tries >= rules.max_deaths:
        return f"Given up after {known.all_tries} attempts in all: a server died during each{last}. {again}"
    if now - started_at >= rules.recover_for:
        return f"Given up: the turn is older than {_span(rules.recover_for)}. {again}"
    return None


KEY_REVOKED = "Not retried: the key it came with was revoked."
SUPERSEDED = "Not retried: the conversation has continued without it."
NO_REQUEST = "Not retried: its stored request cannot be read."


def waiting_sentence(
    known: Recovery, ended_at: datetime | None, why: str | None, most: int | None = None
) -> str:
    """What a waiting turn waits for, for people. `most`: `[turns] max_attempts`."""
    number = f"attempt {known.tries + 1}" + (f" of {most}" if most else "")
    at = f" at {ended_at:%H:%M:%S} UTC" if ended_at else ""
    due = f"{known.due_at:%H:%M:%S} UTC" if known.due_at else "once"
    match known.cause:
        case Cause.MODEL:
            since = f" since {known.refused_since:%H:%M} UTC" if known.refused_since else ""
            times = f"{known.refusals} time{'s' if known.refusals != 1 else ''}"
            said = f": {why.rstrip('.')}" if why else ""
            return f"The model refused{said}; it is called again at {due} (refused {times}{since})."
        case Cause.RETRY:
            return f"A person asked for another attempt; a server will retry it ({number})."
        case Cause.STOP:
            return f"Its server was stopped{at}; another will retry it ({number})."
    if runs_alone(known):
        return f"{known.tries} servers died while it ran; it waits to be retried alone ({number})."
    return f"Its server died{at}; another will retry it ({number})."


def _span(time: timedelta) -> str:
    hours = time.total_seconds() / 3600
    return f"{hours:g} hour{'' if hours == 1 else 's'}"
