-- Moving in: what was taken over from elsewhere, and under which names it was known there. See SQLite's migration 10.

ALTER TABLE messages ADD COLUMN extra TEXT;
ALTER TABLE aliases ADD COLUMN session TEXT COLLATE "C";

CREATE TABLE imports (
    owner         TEXT    COLLATE "C" NOT NULL,
    origin        TEXT    COLLATE "C" NOT NULL,
    name          TEXT    COLLATE "C" NOT NULL,
    conversation  TEXT    COLLATE "C" NOT NULL,
    session       TEXT    COLLATE "C" NOT NULL,
    last_row      BIGINT  NOT NULL,
    whole         BOOLEAN NOT NULL,
    last_seq      BIGINT  NOT NULL,
    imported_at   BIGINT  NOT NULL,
    PRIMARY KEY (owner, origin, name)
);
