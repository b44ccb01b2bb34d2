-- See SQLite's migration 20.

CREATE TABLE rewinds (
    conversation  TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    at_seq        BIGINT  NOT NULL,
    to_seq        BIGINT  NOT NULL,
    created_at    BIGINT  NOT NULL,
    PRIMARY KEY (conversation, at_seq)
);

CREATE TABLE queued_turns (
    turn          TEXT    COLLATE "C" PRIMARY KEY REFERENCES turns (id) ON DELETE CASCADE,
    conversation  TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    no            BIGINT  NOT NULL,
    steers        BIGINT  NOT NULL,
    source        TEXT    COLLATE "C" NOT NULL,
    messages      BYTEA   NOT NULL
);
CREATE INDEX queued_in_order ON queued_turns (conversation, no);

ALTER TABLE conversations ADD COLUMN queued BIGINT NOT NULL DEFAULT 0;

ALTER TABLE turns ADD COLUMN joined TEXT COLLATE "C";
