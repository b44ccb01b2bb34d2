-- Idempotency keys of requests that created a conversation. One that began a turn has its key in `requests`.
CREATE TABLE conversation_requests (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation  TEXT    NOT NULL UNIQUE REFERENCES conversations (id) ON DELETE CASCADE,
    owner         TEXT    NOT NULL,
    route         TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    body_hash     BLOB    NOT NULL,
    created_at    INTEGER NOT NULL,
    UNIQUE (owner, route, key)
) STRICT;
