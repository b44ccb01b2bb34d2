-- Compaction: who is compacting a conversation, and how often that has failed. See SQLite's migration 8.

CREATE TABLE compactions (
    conversation  TEXT    COLLATE "C" PRIMARY KEY REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT    COLLATE "C",
    node          TEXT    COLLATE "C",
    token         BIGINT  NOT NULL DEFAULT 0,
    until         BIGINT,
    failures      BIGINT  NOT NULL DEFAULT 0,
    retry_at      BIGINT
);
