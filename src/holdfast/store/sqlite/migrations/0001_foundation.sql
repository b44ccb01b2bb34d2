-- The foundation: conversations, sessions, messages, turns, nodes, events.
-- Times are microseconds since 1970 in UTC. Bodies are the JSON bytes as they came.

-- One row: who this store is. The search index names it, so that it is never read for another store.
CREATE TABLE store (
    id          TEXT    NOT NULL PRIMARY KEY,
    created_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One running holdfast process, an incarnation: its id is never used again.
CREATE TABLE nodes (
    id            TEXT    NOT NULL PRIMARY KEY,
    kind          TEXT    NOT NULL,
    host          TEXT    NOT NULL,
    boot_id       TEXT    NOT NULL,
    pid_ns        TEXT    NOT NULL,
    pid           INTEGER NOT NULL,
    pid_start     TEXT    NOT NULL,
    beat          INTEGER NOT NULL DEFAULT 0,
    started_at    INTEGER NOT NULL,
    heartbeat_at  INTEGER NOT NULL,
    left_at       INTEGER,
    reaped_at     INTEGER,
    settled_at    INTEGER      -- nothing that names it is left to be brought to rest
) STRICT, WITHOUT ROWID;
CREATE INDEX nodes_unsettled ON nodes (id) WHERE settled_at IS NULL;
CREATE INDEX nodes_settled ON nodes (settled_at) WHERE settled_at IS NOT NULL;

-- What a person calls "the chat". `tip` is its newest session; `holder`, `token` and `turn` are its
-- lease; `revision` moves when a context changes in any other way than by an appended message.
CREATE TABLE conversations (
    id           TEXT    NOT NULL PRIMARY KEY,
    owner        TEXT    NOT NULL,
    key          TEXT,
    title        TEXT,
    source       TEXT    NOT NULL,
    tip          TEXT    NOT NULL,
    last_seq     INTEGER NOT NULL DEFAULT 0,
    revision     INTEGER NOT NULL DEFAULT 0,
    token        INTEGER NOT NULL DEFAULT 0,
    holder       TEXT,
    turn         TEXT,
    forked_from  TEXT,
    created_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX conversations_key ON conversations (owner, key) WHERE key IS NOT NULL;
CREATE INDEX conversations_held ON conversations (holder) WHERE holder IS NOT NULL;
CREATE INDEX conversations_forked ON conversations (forked_from) WHERE forked_from IS NOT NULL;

-- Outside names of a conversation that are neither its id nor its key.
CREATE TABLE aliases (
    owner         TEXT    NOT NULL,
    alias         TEXT    NOT NULL,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (owner, alias)
) STRICT, WITHOUT ROWID;
CREATE INDEX aliases_conversation ON aliases (conversation);

-- One stretch of context. Its messages are numbered first_seq to last_seq; last_seq is NULL while it is open.
CREATE TABLE sessions (
    no                INTEGER PRIMARY KEY,
    id                TEXT    NOT NULL UNIQUE,
    conversation      TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    owner             TEXT    NOT NULL,
    ordinal           INTEGER NOT NULL,
    edge              TEXT,
    parent            TEXT,
    source            TEXT    NOT NULL,
    attached          INTEGER NOT NULL,
    node              TEXT,
    opened_at         INTEGER NOT NULL,
    last_activity_at  INTEGER NOT NULL,
    next_due_at       INTEGER,
    recheck_at        INTEGER,
    ended_at          INTEGER,
    end_reason        TEXT,
    model             TEXT,
    input_tokens      INTEGER NOT NULL DEFAULT 0,
    output_tokens     INTEGER NOT NULL DEFAULT 0,
    first_seq         INTEGER NOT NULL,
    last_seq          INTEGER,
    view              TEXT    NOT NULL,
    UNIQUE (conversation, ordinal),
    CHECK ((ended_at IS NULL) = (end_reason IS NULL) AND (ended_at IS NULL) = (last_seq IS NULL)),
    CHECK (attached = (node IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX sessions_one_open ON sessions (conversation) WHERE ended_at IS NULL;
CREATE INDEX sessions_by_owner ON sessions (owner, last_activity_at, id);
CREATE INDEX sessions_by_activity ON sessions (last_activity_at, id);
CREATE INDEX sessions_first ON sessions (owner) WHERE ordinal = 1;
CREATE INDEX sessions_attached ON sessions (node) WHERE ended_at IS NULL AND attached = 1;
CREATE INDEX sessions_due ON sessions (next_due_at) WHERE ended_at IS NULL AND next_due_at IS NOT NULL;
CREATE TRIGGER sessions_never_reopened BEFORE UPDATE OF ended_at, end_reason ON sessions
WHEN OLD.ended_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'an ended session is never reopened or ended again'); END;

-- A request until its answer is committed.
CREATE TABLE turns (
    no            INTEGER PRIMARY KEY,
    id            TEXT    NOT NULL UNIQUE,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT    NOT NULL,
    owner         TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    node          TEXT    NOT NULL,
    attempt       INTEGER NOT NULL DEFAULT 1,
    first_seq     INTEGER NOT NULL,
    started_at    INTEGER NOT NULL,
    ended_at      INTEGER,
    model         TEXT,
    error         TEXT,
    usage         TEXT,
    response_id   TEXT,
    CHECK ((status = 'running') = (ended_at IS NULL))
) STRICT;
CREATE INDEX turns_of_conversation ON turns (conversation);

-- The append-only list of a conversation. `calls` and `answers` are lifted out of the body, so that
-- a context can be rendered without decoding it. Numbers (`no`) are never reused: the search index counts on it.
CREATE TABLE messages (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    seq           INTEGER NOT NULL,
    session       TEXT    NOT NULL,
    turn          TEXT,
    role          TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    calls         TEXT,
    answers       TEXT,
    created_at    INTEGER NOT NULL,
    deleted_at    INTEGER,
    origin        TEXT,
    gaps          TEXT,        -- places of calls that were deleted from it, so that the others keep theirs
    body          BLOB    NOT NULL,
    UNIQUE (conversation, seq)
) STRICT;
CREATE INDEX messages_marked ON messages (conversation, seq)
    WHERE calls IS NOT NULL OR answers IS NOT NULL OR status <> 'completed' OR deleted_at IS NOT NULL;
CREATE TRIGGER messages_immutable BEFORE UPDATE ON messages
-- Longer by one: a text of one character that gives way to a null.
WHEN OLD.deleted_at IS NOT NULL OR length(NEW.body) > iif(NEW.deleted_at IS NULL, length(OLD.body) + 1, 0)
  OR NEW.conversation <> OLD.conversation OR NEW.seq <> OLD.seq OR NEW.role <> OLD.role OR NEW.status <> OLD.status
BEGIN SELECT RAISE(ABORT, 'a message never changes; it can only lose what it says'); END;

-- Messages that left every context but stay readable.
CREATE TABLE exclusions (
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    seq           INTEGER NOT NULL,
    reason        TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (conversation, seq)
) STRICT, WITHOUT ROWID;

-- Messages, by their `no`, that the search index must forget, or read anew if something is left of them. Written with
-- the deletion, cleared by the indexer; ids are never reused, so that it clears what it has seen and nothing else.
CREATE TABLE unindexed (
    id  INTEGER PRIMARY KEY AUTOINCREMENT,
    no  INTEGER NOT NULL
) STRICT;

-- Idempotency: which turn (by its `no`) a request key stands for, and the hash of the body it came with.
-- A turn has at most one, and turns are numbered as they begin: the lowest numbers are the oldest.
CREATE TABLE requests (
    turn        INTEGER PRIMARY KEY REFERENCES turns (no) ON DELETE CASCADE,
    owner       TEXT    NOT NULL,
    route       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    body_hash   BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    UNIQUE (owner, route, key)
) STRICT;

-- Checkpoints of running replies, append-only. `after_seq` is the number of the message the reply follows.
CREATE TABLE drafts (
    no           INTEGER PRIMARY KEY,
    turn         TEXT    NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    first_event  INTEGER NOT NULL,
    last_event   INTEGER NOT NULL,
    reserved_to  INTEGER NOT NULL,
    after_seq    INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    restarts     INTEGER NOT NULL,
    adds         TEXT    NOT NULL,
    events       BLOB    NOT NULL,
    UNIQUE (turn, first_event)
) STRICT;
CREATE INDEX drafts_by_age ON drafts (created_at);

-- What happened. Ids and numbers, never message text.
CREATE TABLE events (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    at            INTEGER NOT NULL,
    type          TEXT    NOT NULL,
    owner         TEXT,
    conversation  TEXT,
    session       TEXT,
    turn          TEXT,
    data          TEXT    NOT NULL
) STRICT;
CREATE INDEX events_of_conversation ON events (conversation, id) WHERE conversation IS NOT NULL;
