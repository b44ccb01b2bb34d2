-- The server: histories that can be recognised, answers that can be given again, responses, notices.

-- The chain of prints of everything a client has been shown, while that is all there is; NULL while a turn runs
-- and whenever it is not known. `anonymous`: begun without id or key, so whoever brings this history continues it.
ALTER TABLE conversations ADD COLUMN history_hash BLOB;
ALTER TABLE conversations ADD COLUMN anonymous INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN metadata TEXT;
CREATE INDEX conversations_by_history ON conversations (owner, history_hash)
    WHERE anonymous = 1 AND history_hash IS NOT NULL;

-- What the model's answer carried besides its message, so that a repeated request gets the same answer.
ALTER TABLE turns ADD COLUMN answer BLOB;

-- The Responses API's names for turns, with what their requests asked for.
CREATE TABLE responses (
    id          TEXT    NOT NULL PRIMARY KEY,
    owner       TEXT    NOT NULL,
    turn        TEXT    NOT NULL UNIQUE REFERENCES turns (id) ON DELETE CASCADE,
    previous    TEXT,
    background  INTEGER NOT NULL,
    brought     INTEGER NOT NULL,  -- how many of the turn's messages came with the request
    request     TEXT    NOT NULL,
    created_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What a person should be told; written in the transaction of the change it tells of.
CREATE TABLE notices (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    owner         TEXT    NOT NULL,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    kind          TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    delivered_at  INTEGER
) STRICT;
CREATE INDEX notices_by_owner ON notices (owner, no);
CREATE INDEX notices_undelivered ON notices (owner, no) WHERE delivered_at IS NULL;
CREATE INDEX notices_of_conversation ON notices (conversation);

-- Who has just gone. Written when a session ends, never by a turn.
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;
