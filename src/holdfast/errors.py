"""Every error that holdfast raises on purpose, in one tree.

    HoldfastError
    ├── BadInput                the input cannot be used; nothing was changed
    │   ├── AmbiguousId         a shortened id that may mean several objects
    │   ├── BadMessage          a body that is not an OpenAI message, or cannot be stored
    │   ├── BadSetting          an unknown or invalid setting
    │   ├── NotAllowed          the API key's scope does not permit this
    │   ├── SearchTimeout       a search exceeded its time limit
    │   └── TooLarge            larger than the store can hold or return in one piece
    │       └── ContextTooLarge a session's context is larger than any that is sent to a model
    ├── BadKey                  an unknown, wrong or revoked API key
    │   ├── KeyExpired          the key's expiry has passed
    │   └── KeyRevoked          the key was revoked after the request had arrived
    ├── RateLimited             the API key's requests or tokens of this minute or day are used up
    ├── NotFound                no such object for this owner
    ├── QuotaExceeded           a conversation or an owner has reached a storage limit; nothing was changed
    ├── Conflict                it conflicts with the current state; nothing was changed
    │   ├── ConversationBusy    another turn holds the conversation
    │   │   └── NestedTurn      the caller's own turn holds it: waiting would deadlock
    │   ├── QueueFull           as many turns are queued in a conversation as may be
    │   ├── LeaseLost           another holder has the lease now: this write came too late
    │   ├── RequestMismatch     a request key used again with another body
    │   ├── TurnSuperseded      a retry of a turn that is no longer the newest
    │   ├── ToolCallClosed      a result for a tool call that is no longer awaited
    │   ├── ConnectorLost       another node runs the connector now: this write came too late
    │   ├── NotCompacted        a context is unchanged: there is nothing to gain, or not now
    │   └── IllegalTransition   a transition that the state machine does not have
    ├── NodeReaped              this node was reaped as dead; it must register again
    ├── ModelError              the model did not answer
    ├── TurnStopped             a turn was interrupted or cancelled before its answer was complete
    └── StoreError              the store cannot do it
        ├── StoreUnusable       it cannot be opened (not ours, newer, read-only, network disk, …)
        ├── StoreUpgraded       a newer holdfast migrated it meanwhile: restart this process
        ├── StoreFull           the disk is full; nothing was written; continues when there is space
        ├── StoreBusy           the write lock was held longer than the timeout, or no thread can be started
        ├── StoreUnreachable    the database server cannot be reached; nothing was written; continues later
        ├── StoreUncertain      the connection was lost during a commit, and the outcome is unknown
        ├── StoreFailed         an I/O error, corruption or a replaced file: stopped permanently
        ├── StatementFailed     the database refused one statement; the store continues
        ├── SearchFailed        the search index is damaged or cannot grow; everything else continues
        └── StoreClosed         used after closing, or in a forked child

The message says what happened and what to do; details for programs are attributes. `public` is the message
for clients of a server: it names no file, host or database. Expected outcomes (a busy conversation while
there is time to wait, a repeated request) are return values of the store, not errors.
"""

from __future__ import annotations

from collections.abc import Sequence


class HoldfastError(Exception):
    """The root of the tree."""

    _public: str | None = None

    def __init__(self, message: str = "", *, public: str | None = None) -> None:
        super().__init__(message)
        if public is not None:
            self._public = public

    @property
    def public(self) -> str:
        """The message without files, hosts and databases. The operator finds those in the server's log."""
        return str(self) if self._public is None else self._public


class BadInput(HoldfastError):
    """The input cannot be used; nothing was changed."""


class BadMessage(BadInput):
    """A body that is not an OpenAI message, or that cannot be stored."""


class BadSetting(BadInput):
    """An unknown or invalid setting."""


class SearchTimeout(BadInput):
    """A search exceeded its time limit, or waited that long for its slot."""

    def __init__(self, seconds: float, *, waited: bool = False) -> None:
        super().__init__(
            f"too many searches are running; this one did not start within {seconds:g} seconds. Retry"
            if waited
            else f"the search took longer than {seconds:g} seconds and was stopped; search for fewer, longer "
            "or rarer words"
        )
        self.seconds = seconds


class AmbiguousId(BadInput):
    """A shortened id that may mean several objects of this owner."""

    def __init__(self, name: str, candidates: Sequence[str], more: bool = False) -> None:
        listed = ", ".join(candidates) + (", …" if more else "")
        super().__init__(f"{name!r} matches several ids; use the whole one: {listed}")
        self.name = name
        self.candidates = tuple(candidates)


class NotAllowed(BadInput):
    """The API key is valid, but its scope does not permit this; nothing was changed."""


class TooLarge(BadInput):
    """The input or the result is larger than the store can hold or return in one piece."""


class ContextTooLarge(TooLarge):
    """A session's context is larger than any that is sent to a model. `size` and `limit` are bytes."""

    def __init__(self, session_id: str, size: int, limit: int) -> None:
        super().__init__(
            f"the context of session {session_id} is {size:,} bytes long; at most {limit:,} are given to a "
            "model. Compact the session, or end it and begin a new one; its messages can still be read page "
            "by page, exported and deleted"
        )
        self.session_id = session_id
        self.size = size
        self.limit = limit


class BadKey(HoldfastError):
    """An API key that is not valid here. The message is the same for missing, malformed, unknown, wrong and
    revoked keys, so that trying keys reveals nothing."""

    def __init__(self) -> None:
        super().__init__(
            "this API key is missing or not valid here; on the server, `holdfast keys create` makes one and "
            "`holdfast env` prints the local one"
        )


class KeyRevoked(BadKey):
    """The key of a request in progress was revoked: the request is not carried out."""

    def __init__(self) -> None:
        HoldfastError.__init__(
            self, "the API key of this request was revoked while it was in progress; retry with a valid key"
        )


class KeyExpired(BadKey):
    """The secret is right, and the key's expiry has passed."""

    def __init__(self, expired_at: str) -> None:
        HoldfastError.__init__(
            self,
            f"this API key expired at {expired_at}; on the server, `holdfast keys create` makes a new one",
        )


class RateLimited(HoldfastError):
    """A limit of the request's API key is reached; nothing was done. `seconds`: when its window ends."""

    def __init__(self, limit: str, most: int, seconds: float) -> None:
        what, _, window = limit.partition("_per_")
        super().__init__(
            f"this API key has used its {most:,} {what} per {window}; the next {window} begins in "
            f"{seconds:.0f} s"
        )
        self.limit = limit
        """Such as `tokens_per_day`."""
        self.most = most
        self.seconds = seconds


class NotFound(HoldfastError):
    """No such object for this owner. The message is the same for what never existed and for
    another owner's."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"no {what} {name!r}")
        self.what = what
        self.name = name


class QuotaExceeded(HoldfastError):
    """A limit of [limits] is reached: nothing more is accepted until something is deleted or the limit is
    raised; nothing was changed. Reading, exporting, deleting and compacting still work, and a reply that has
    begun continues."""

    def __init__(self, setting: str, limit: int, used: int, message: str) -> None:
        super().__init__(message)
        self.setting = setting
        """The setting that holds the limit, such as `conversation_mb`."""
        self.limit = limit
        self.used = used
        """Both in bytes, or in conversations."""


class Conflict(HoldfastError):
    """It conflicts with the current state; nothing was changed."""


class ConversationBusy(Conflict):
    """Another turn held the conversation for the whole wait."""

    def __init__(self, conversation_id: str, holder: str | None = None, turn_id: str | None = None) -> None:
        by = f" (turn {turn_id} on {holder})" if turn_id else f" (held by {holder})" if holder else ""
        super().__init__(
            f"turn {turn_id} of conversation {conversation_id} has no answer yet: it is queued or waits for "
            "a retry; try again when it has ended, send this request with X-Holdfast-When-Busy: interrupt, "
            f"or withdraw the turn with POST /api/sessions/{conversation_id}/cancel"
            if turn_id and not holder
            else f"conversation {conversation_id} is busy with another turn{by}; try again when it has ended"
        )
        self.conversation_id = conversation_id
        self.holder = holder
        self.turn_id = turn_id


class NestedTurn(ConversationBusy):
    """The conversation is held by a turn of this task itself: waiting for it would deadlock."""

    def __init__(self, conversation_id: str, turn_id: str) -> None:
        HoldfastError.__init__(
            self,
            f"this task already holds {conversation_id} in turn {turn_id}; "
            "use that turn, or leave its `with` block before you begin another",
        )
        self.conversation_id = conversation_id
        self.holder = None
        self.turn_id = turn_id


class QueueFull(Conflict):
    """As many turns are queued in a conversation as [turns] queue allows; nothing was changed."""

    def __init__(self, conversation_id: str, most: int) -> None:
        super().__init__(
            f"{most} turns are queued in conversation {conversation_id}, which is the limit "
            "([turns] queue); wait until one has begun, or withdraw one"
        )
        self.conversation_id = conversation_id
        self.most = most


class LeaseLost(Conflict):
    """Another holder has the conversation's lease now. This writer wrote nothing."""

    def __init__(self, conversation_id: str, token: int) -> None:
        super().__init__(
            f"the lease on {conversation_id} (token {token}) was lost: "
            "this node was declared dead or the turn was ended elsewhere; nothing was written"
        )
        self.conversation_id = conversation_id
        self.token = token


class ConnectorLost(Conflict):
    """Another claim of this connector was made since. This writer wrote nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another node runs the connector {name!r} now; nothing was written")
        self.name = name


class RequestMismatch(Conflict):
    """A request key was used again with another body."""

    def __init__(self, key: str) -> None:
        super().__init__(f"request key {key!r} was already used with another body; use a new key")
        self.key = key


class TurnSuperseded(Conflict):
    """A retry of a turn that did not complete and is no longer the newest of its conversation."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id} did not complete and a later turn exists; send it as a new request")
        self.turn_id = turn_id


class ToolCallClosed(Conflict):
    """A result for a tool call that is no longer awaited: the conversation has continued without it."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"tool call {call_id!r} is closed: the conversation continued without its result")
        self.call_id = call_id


class NotCompacted(Conflict):
    """A manual compaction was not done: there is nothing to gain, or not now."""


class IllegalTransition(Conflict):
    """A transition that the state machine does not have."""


class NodeReaped(HoldfastError):
    """This node was reaped as dead (or has left); it must register as a new incarnation."""

    def __init__(self, node_id: str) -> None:
        super().__init__(f"node {node_id} was reaped as dead; register a new incarnation")
        self.node_id = node_id


class ModelError(HoldfastError):
    """The model did not answer.

    `status` is the upstream's HTTP status, if there was one; 504 if it was silent for too long. `said`,
    `code`, `type` and `param` come from its error object, and `retry_after` is the seconds it asks to wait;
    each is None if it was not given. None of them contains the key. `public` lacks the upstream's address.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        *,
        said: str | None = None,
        code: str | None = None,
        type: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        public: str | None = None,
    ) -> None:
        super().__init__(message, public=public)
        self.status = status
        self.said = said
        self.code = code
        self.type = type
        self.param = param
        self.retry_after = retry_after


class TurnStopped(HoldfastError):
    """A turn was interrupted or cancelled before its answer was complete. Its output so far is kept."""

    def __init__(self, turn_id: str, status: str, why: str, retry: bool = False) -> None:
        super().__init__(f"turn {turn_id} was {status}: {why}; its partial reply is kept")
        self.turn_id = turn_id
        self.status = status
        self.code = status
        self.retry = retry
        """True if a retry of the same request would resume the turn."""


class StoreError(HoldfastError):
    """The store cannot do it."""

    _public = "the server's store is unavailable; its log has the reason; retry later"


class StoreUnusable(StoreError):
    """The store cannot be opened. The message says why and what to do."""


class StoreUpgraded(StoreError):
    """A newer holdfast migrated the store while this process was running."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"the store was upgraded to schema {found}; this process supports {known} and must be restarted. "
            "Nothing more was written by this process"
        )
        self.found = found
        self.known = known


class StoreFull(StoreError):
    """The disk is full. Nothing was written; writing continues by itself when there is space."""

    _public = "the server's disk is full; nothing was written; retry when there is space"


class StoreBusy(StoreError):
    """Another process held the write lock longer than the timeout, or the system has no thread for a read.
    Nothing was written."""


class StoreUnreachable(StoreError):
    """The database server cannot be reached. Nothing was written; continues by itself when it is back."""


class StoreUncertain(StoreError):
    """The connection to the database server was lost during a commit, and the outcome could not be determined
    in time. The write is there completely or not at all: check before you retry."""

    _public = (
        "the connection to the server's database was lost during a commit: either all of this was stored or "
        "nothing; check before you repeat it, or retry with an Idempotency-Key"
    )


class StoreFailed(StoreError):
    """An I/O error, corruption or a replaced file. This store has stopped: exit, check, restart."""


class StatementFailed(StoreError):
    """The database refused one statement, and nothing of it was written. The store continues."""

    _public = "the server's database rejected a statement; its log has the reason; only this request failed"


class SearchFailed(StoreError):
    """The search index is damaged or cannot grow. It is derived data: everything else continues."""

    _public = "the search index is unavailable; the server's log has the reason; everything else works"


class StoreClosed(StoreError):
    """Used after closing, or in a forked child of the process that opened it."""
