-- Compaction: who is compacting a conversation, and how often that has failed.

-- At most one row for each conversation. `node`, `token` and `until` are the right to compact it: free again when the
-- node is gone or the time is up; the token rises with each holder and fences late ones. `failures` in a row, and
-- `retry_at`, before which nothing is tried again, keep one that does not work from being tried for ever.
CREATE TABLE compactions (
    conversation  TEXT    NOT NULL PRIMARY KEY REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT,
    node          TEXT,
    token         INTEGER NOT NULL DEFAULT 0,
    until         INTEGER,
    failures      INTEGER NOT NULL DEFAULT 0,
    retry_at      INTEGER
) STRICT, WITHOUT ROWID;
