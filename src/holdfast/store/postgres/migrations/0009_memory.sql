-- Memory: flushes and what they have yielded. See SQLite's migration 9.

ALTER TABLE sessions ADD COLUMN flushed_seq BIGINT NOT NULL DEFAULT 0;

CREATE TABLE flushes (
    no               BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session          TEXT    COLLATE "C" NOT NULL UNIQUE,
    conversation     TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    owner            TEXT    COLLATE "C" NOT NULL,
    reason           TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    after_seq        BIGINT  NOT NULL,
    last_seq         BIGINT  NOT NULL,
    active_at        BIGINT  NOT NULL,
    attempts         BIGINT  NOT NULL DEFAULT 0,
    interruptions    BIGINT  NOT NULL DEFAULT 0,
    next_attempt_at  BIGINT,
    node             TEXT    COLLATE "C",
    token            BIGINT  NOT NULL DEFAULT 0,
    error            TEXT,
    taken_by         TEXT    COLLATE "C",
    created_at       BIGINT  NOT NULL,
    settled_at       BIGINT,
    CHECK (state IN ('pending', 'running', 'done', 'dead', 'skipped', 'taken')),
    CHECK ((state = 'pending') = (next_attempt_at IS NOT NULL)),
    CHECK ((state = 'running') = (node IS NOT NULL)),
    CHECK ((state IN ('pending', 'running')) = (settled_at IS NULL))
);
CREATE INDEX flushes_pending ON flushes (next_attempt_at) WHERE state = 'pending';
CREATE INDEX flushes_running ON flushes (node) WHERE state = 'running';
CREATE INDEX flushes_unsettled ON flushes (no) WHERE state IN ('pending', 'running', 'dead');
CREATE INDEX flushes_dead ON flushes (no) WHERE state = 'dead';
CREATE INDEX flushes_old ON flushes (active_at) WHERE state IN ('pending', 'dead');
CREATE INDEX flushes_of_owner ON flushes (owner, no);
CREATE INDEX flushes_of_conversation ON flushes (conversation);

CREATE TABLE flush_turnstile (
    one    BIGINT  PRIMARY KEY CHECK (one = 1),
    token  BIGINT  NOT NULL
) WITH (fillfactor = 10);
INSERT INTO flush_turnstile (one, token) VALUES (1, 0);

CREATE TABLE flush_attempts (
    token  BIGINT  NOT NULL,
    at     BIGINT  NOT NULL
);
CREATE INDEX flush_attempts_by_age ON flush_attempts (at);

CREATE TABLE memories (
    no            BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id            TEXT    COLLATE "C" NOT NULL UNIQUE,
    owner         TEXT    COLLATE "C" NOT NULL,
    conversation  TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT    COLLATE "C",
    origin        TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    created_at    BIGINT  NOT NULL,
    edited_at     BIGINT
);
CREATE UNIQUE INDEX memories_of_flushes ON memories (session) WHERE origin = 'flush';
CREATE INDEX memories_of_owner ON memories (owner, no);
CREATE INDEX memories_of_conversation ON memories (conversation, no);
