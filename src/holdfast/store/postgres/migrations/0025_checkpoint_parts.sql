-- Values of checkpoints that later checkpoints share. See SQLite's migration 25.
ALTER TABLE checkpoints ADD COLUMN segments TEXT;

-- Not compressed: parts are small, and reading a thread does not decompress them.
CREATE TABLE checkpoint_parts (
    conversation  TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    id            TEXT    COLLATE "C" NOT NULL,
    body          BYTEA   NOT NULL,
    PRIMARY KEY (conversation, id)
);
ALTER TABLE checkpoint_parts ALTER COLUMN body SET STORAGE EXTERNAL;
