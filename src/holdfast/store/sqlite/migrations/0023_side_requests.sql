-- Side requests of agent programs (a title, a topic, the program's own compaction): answered under the name of a session, but no
-- part of its conversation. `conversation` is NULL if there was none of this name yet; it is then found by its aliases.
-- `request` is a JSON list of {role, content}, `truncated` if something of it or of the reply was left out.
CREATE TABLE side_requests (
    no             INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT    NOT NULL UNIQUE,
    owner          TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    conversation   TEXT    REFERENCES conversations (id) ON DELETE CASCADE,
    kind           TEXT    NOT NULL,
    request        BLOB    NOT NULL,
    reply          TEXT    NOT NULL,
    truncated      INTEGER NOT NULL,
    model          TEXT,
    input_tokens   INTEGER,
    output_tokens  INTEGER,
    created_at     INTEGER NOT NULL
) STRICT;
CREATE INDEX side_requests_of_conversation ON side_requests (conversation, no) WHERE conversation IS NOT NULL;
CREATE INDEX side_requests_of_name ON side_requests (owner, name, no);
