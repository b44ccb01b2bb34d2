-- Side requests of agent programs. See SQLite's migration 23.

CREATE TABLE side_requests (
    no             BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id             TEXT    COLLATE "C" NOT NULL UNIQUE,
    owner          TEXT    COLLATE "C" NOT NULL,
    name           TEXT    COLLATE "C" NOT NULL,
    conversation   TEXT    COLLATE "C" REFERENCES conversations (id) ON DELETE CASCADE,
    kind           TEXT    COLLATE "C" NOT NULL,
    request        BYTEA   NOT NULL,
    reply          TEXT    NOT NULL,
    truncated      BOOLEAN NOT NULL,
    model          TEXT,
    input_tokens   BIGINT,
    output_tokens  BIGINT,
    created_at     BIGINT  NOT NULL
);
CREATE INDEX side_requests_of_conversation ON side_requests (conversation, no) WHERE conversation IS NOT NULL;
CREATE INDEX side_requests_of_name ON side_requests (owner, name, no);
