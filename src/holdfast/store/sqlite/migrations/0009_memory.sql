-- Memory: what is carried from ended sessions into later ones, once.

-- Up to this message earlier flushes have read the context that a session goes on with.
ALTER TABLE sessions ADD COLUMN flushed_seq INTEGER NOT NULL DEFAULT 0;

-- One row per ended session that is to be flushed, written by the transaction that ends it. `node` and `token` are its
-- claim while it is running; a node that is gone has none. `taken_by`: the session that went on with this one's context
-- while it was waiting, and is flushed instead.
CREATE TABLE flushes (
    no               INTEGER PRIMARY KEY,
    session          TEXT    NOT NULL UNIQUE,
    conversation     TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    owner            TEXT    NOT NULL,
    reason           TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    after_seq        INTEGER NOT NULL,
    last_seq         INTEGER NOT NULL,
    active_at        INTEGER NOT NULL,  -- when somebody last spoke in the session
    attempts         INTEGER NOT NULL DEFAULT 0,
    interruptions    INTEGER NOT NULL DEFAULT 0,
    next_attempt_at  INTEGER,
    node             TEXT,
    token            INTEGER NOT NULL DEFAULT 0,
    error            TEXT,
    taken_by         TEXT,
    created_at       INTEGER NOT NULL,
    settled_at       INTEGER,
    CHECK (state IN ('pending', 'running', 'done', 'dead', 'skipped', 'taken')),
    CHECK ((state = 'pending') = (next_attempt_at IS NOT NULL)),
    CHECK ((state = 'running') = (node IS NOT NULL)),
    CHECK ((state IN ('pending', 'running')) = (settled_at IS NULL))
) STRICT;
CREATE INDEX flushes_pending ON flushes (next_attempt_at) WHERE state = 'pending';
CREATE INDEX flushes_running ON flushes (node) WHERE state = 'running';
CREATE INDEX flushes_unsettled ON flushes (no) WHERE state IN ('pending', 'running', 'dead');
CREATE INDEX flushes_dead ON flushes (no) WHERE state = 'dead';
CREATE INDEX flushes_old ON flushes (active_at) WHERE state IN ('pending', 'dead');
CREATE INDEX flushes_of_owner ON flushes (owner, no);
CREATE INDEX flushes_of_conversation ON flushes (conversation);

-- One row: who claims takes the next token here first, so that claimants come one after the other.
CREATE TABLE flush_turnstile (
    one    INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    token  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO flush_turnstile (one, token) VALUES (1, 0);

-- When flushes were attempted lately: no more in a minute, by all nodes together, than the settings allow.
CREATE TABLE flush_attempts (
    token  INTEGER NOT NULL,
    at     INTEGER NOT NULL
) STRICT;
CREATE INDEX flush_attempts_by_age ON flush_attempts (at);

-- What is remembered. Of a flush, at most one.
CREATE TABLE memories (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    owner         TEXT    NOT NULL,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT,
    origin        TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    edited_at     INTEGER
) STRICT;
CREATE UNIQUE INDEX memories_of_flushes ON memories (session) WHERE origin = 'flush';
CREATE INDEX memories_of_owner ON memories (owner, no);
CREATE INDEX memories_of_conversation ON memories (conversation, no);
