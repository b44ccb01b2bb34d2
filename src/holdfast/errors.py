"""Every error holdfast raises on purpose, in one tree.

    HoldfastError
    ├── BadInput                what was given cannot be used; nothing was changed
    │   ├── BadMessage          a body that is not an OpenAI message, or cannot be stored
    │   ├── BadSetting          an unknown or impossible setting
    │   ├── NotAllowed          the API key's scope does not reach so far
    │   ├── SearchTimeout       a search took longer than a search may
    │   └── TooLarge            larger than the store can hold or give in one piece
    │       └── ContextTooLarge a session's context is larger than any that is given to a model
    ├── BadKey                  no such API key, a wrong one, or a revoked one
    │   └── KeyRevoked          it was revoked after the request had come in
    ├── NotFound                no such thing for this owner
    ├── QuotaExceeded           a conversation or an owner has stored as much as it may; nothing was changed
    ├── Conflict                it clashes with what is already there; nothing was changed
    │   ├── ConversationBusy    another turn holds the conversation
    │   │   └── NestedTurn      the turn that holds it is one's own: waiting would never end
    │   ├── LeaseLost           the lease passed to someone else: this writer is too late
    │   ├── RequestMismatch     a request key used again with another body
    │   ├── TurnSuperseded      a retry of a turn that is no longer the newest
    │   ├── ToolCallClosed      a result for a call that nobody awaits any more
    │   ├── NotCompacted        a context stays as it is, because there is nothing to gain, or not now
    │   └── IllegalTransition   a step the state machine does not have
    ├── NodeReaped              this node was taken for dead; it must register anew
    ├── ModelError              the model did not answer
    ├── TurnStopped             a turn was interrupted or cancelled before its answer was whole
    └── StoreError              the store cannot do it
        ├── StoreUnusable       it cannot be opened (not ours, newer, read-only, network disk, …)
        ├── StoreUpgraded       a newer holdfast migrated it meanwhile: restart this process
        ├── StoreFull           the disk is full; nothing was written; goes on when there is space
        ├── StoreBusy           another process kept the write lock longer than our patience
        ├── StoreUnreachable    the database server cannot be reached; nothing was written; goes on later
        ├── StoreUncertain      the connection was lost in a commit and its outcome could not be found out
        ├── StoreFailed         an I/O error, corruption or a replaced file: stopped for good
        ├── StatementFailed     the database refused one statement; the store goes on
        ├── SearchFailed        the search index is damaged or cannot grow; everything else goes on
        └── StoreClosed         used after closing, or in a forked child

The message says what happened and what to do; facts a program may want are attributes.
Expected outcomes (a busy conversation while there is time to wait, a repeated request) are
return values of the store, not errors.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """The root of the tree."""


class BadInput(HoldfastError):
    """What was given cannot be used; nothing was changed."""


class BadMessage(BadInput):
    """A body that is not an OpenAI message, or that cannot be stored."""


class BadSetting(BadInput):
    """An unknown or impossible setting."""


class SearchTimeout(BadInput):
    """A search took longer than a search may, or its turn did not come in that time."""

    def __init__(self, seconds: float, *, waited: bool = False) -> None:
        super().__init__(
            f"too many searches are running; this one did not begin within {seconds:g} seconds. Try again"
            if waited
            else f"the search took longer than {seconds:g} seconds and was stopped; search for fewer, longer "
            "or rarer words"
        )
        self.seconds = seconds


class NotAllowed(BadInput):
    """The API key is good, but its scope does not reach so far; nothing was changed."""


class TooLarge(BadInput):
    """What was given or asked for is larger than the store can hold or give in one piece."""


class ContextTooLarge(TooLarge):
    """A session's context is larger than any that is given to a model. `size` and `limit` are bytes."""

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
    """An API key that opens nothing here. It says the same of every kind: missing, malformed, unknown, wrong
    and revoked ones, so that trying keys teaches nothing."""

    def __init__(self) -> None:
        super().__init__(
            "this API key is missing or not valid here; on the server, `holdfast keys create` makes one and "
            "`holdfast env` prints the local one"
        )


class KeyRevoked(BadKey):
    """The key of a request that is under way was revoked: what it asked for is not done."""

    def __init__(self) -> None:
        HoldfastError.__init__(
            self, "the API key of this request was revoked while it was under way; ask again with a valid key"
        )


class NotFound(HoldfastError):
    """No such thing for this owner. It says the same of what never existed and of what is another's."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"no {what} {name!r}")
        self.what = what
        self.name = name


class QuotaExceeded(HoldfastError):
    """A limit of [limits] is reached: nothing more is taken in until something is deleted or the limit is
    raised; nothing was changed. Reading, exporting, deleting and compacting go on, and so does a reply that
    has begun."""

    def __init__(self, setting: str, limit: int, used: int, message: str) -> None:
        super().__init__(message)
        self.setting = setting
        """The setting that holds the limit, such as `conversation_mb`."""
        self.limit = limit
        self.used = used
        """Both in bytes, or in conversations."""


class Conflict(HoldfastError):
    """It clashes with what is already there; nothing was changed."""


class ConversationBusy(Conflict):
    """Another turn held the conversation for as long as we were willing to wait."""

    def __init__(self, conversation_id: str, holder: str | None = None, turn_id: str | None = None) -> None:
        by = f" (turn {turn_id} on {holder})" if turn_id else f" (held by {holder})" if holder else ""
        super().__init__(
            f"conversation {conversation_id} is busy with another turn{by}; try again when it has ended"
        )
        self.conversation_id = conversation_id
        self.holder = holder
        self.turn_id = turn_id


class NestedTurn(ConversationBusy):
    """The conversation is held by a turn of this very task: waiting for it would never end."""

    def __init__(self, conversation_id: str, turn_id: str) -> None:
        HoldfastError.__init__(
            self,
            f"this task already holds {conversation_id} in turn {turn_id}; "
            "use that turn, or leave its block before beginning another",
        )
        self.conversation_id = conversation_id
        self.holder = None
        self.turn_id = turn_id


class LeaseLost(Conflict):
    """The conversation's lease passed to someone else. This writer wrote nothing."""

    def __init__(self, conversation_id: str, token: int) -> None:
        super().__init__(
            f"the lease on {conversation_id} (token {token}) was lost: "
            "this node was taken for dead or the turn was ended by someone else; nothing was written"
        )
        self.conversation_id = conversation_id
        self.token = token


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
    """A result for a tool call that nobody awaits any more: the conversation has gone on without it."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"tool call {call_id!r} is closed: the conversation went on without its result")
        self.call_id = call_id


class NotCompacted(Conflict):
    """A context was to be compacted by hand and stays as it is: there is nothing to gain, or not now."""


class IllegalTransition(Conflict):
    """A step the state machine does not have."""


class NodeReaped(HoldfastError):
    """This node was taken for dead (or has left); it must register as a new incarnation."""

    def __init__(self, node_id: str) -> None:
        super().__init__(f"node {node_id} was reaped; register a new incarnation")
        self.node_id = node_id


class ModelError(HoldfastError):
    """The model did not answer.

    `status` is the upstream's HTTP status, if there was one; 504 if it was silent for too long. `said`,
    `code`, `type` and `param` are its own words, as its error object has them, and `retry_after` the seconds
    it asks to wait; each is None where it did not say. None of them holds the key. `public` is the message
    without the upstream's address: for clients of the server, which need not know where the model is.
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
        super().__init__(message)
        self.public = message if public is None else public
        self.status = status
        self.said = said
        self.code = code
        self.type = type
        self.param = param
        self.retry_after = retry_after


class TurnStopped(HoldfastError):
    """A turn was interrupted or cancelled before its answer was whole. What it had said is kept."""

    def __init__(self, turn_id: str, status: str, why: str, retry: bool = False) -> None:
        super().__init__(f"turn {turn_id} was {status}: {why}; what it had said is kept")
        self.turn_id = turn_id
        self.status = status
        self.code = status
        self.retry = retry
        """Would the same request, sent again, take the turn up?"""


class StoreError(HoldfastError):
    """The store cannot do it."""


class StoreUnusable(StoreError):
    """The store cannot be opened. The message says why and what to do."""


class StoreUpgraded(StoreError):
    """A newer holdfast migrated the store while this process was running."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"the store was upgraded to schema {found} while this process knows {known}: restart me. "
            "Nothing more was written by this process"
        )
        self.found = found
        self.known = known


class StoreFull(StoreError):
    """The disk is full. Nothing was written; writing goes on by itself when there is space."""


class StoreBusy(StoreError):
    """Another process kept the write lock longer than our patience. Nothing was written."""


class StoreUnreachable(StoreError):
    """The database server cannot be reached. Nothing was written; goes on by itself when it is back."""


class StoreUncertain(StoreError):
    """The connection to the database server was lost while it committed, and what became of that could not be
    found out in time. What was to be written is there whole, or not at all: look before doing it again."""


class StoreFailed(StoreError):
    """An I/O error, corruption or a replaced file. This store has stopped for good: exit, look, restart."""


class StatementFailed(StoreError):
    """The database refused one statement, and nothing of it was written. The store goes on."""


class SearchFailed(StoreError):
    """The search index is damaged or cannot grow. It is derived: everything else goes on."""


class StoreClosed(StoreError):
    """Used after closing, or in a forked child of the process that opened it."""
