-- Idempotency keys of requests that created a conversation. One that began a turn has its key in `requests`.
CREATE TABLE conversation_requests (
    no            BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    conversation  TEXT    COLLATE "C" NOT NULL UNIQUE REFERENCES conversations (id) ON DELETE CASCADE,
    owner         TEXT    COLLATE "C" NOT NULL,
    route         TEXT    COLLATE "C" NOT NULL,
    key           TEXT    COLLATE "C" NOT NULL,
    body_hash     BYTEA   NOT NULL,
    created_at    BIGINT  NOT NULL,
    UNIQUE (owner, route, key)
);
