-- Moving in: what was taken over from elsewhere, and under which names it was known there.

-- What a message carried that is not for the model, as a JSON object: the number its platform gave it, what an
-- imported model had thought. Shown with the message, never sent.
ALTER TABLE messages ADD COLUMN extra TEXT;

-- The very session that this name meant, if it meant one: the id that an imported session had elsewhere.
ALTER TABLE aliases ADD COLUMN session TEXT;

-- One row per thing that was taken over, by its name there: which session it is here, and how much of it has come. It
-- outlives its conversation: what was deleted here does not come back with the next import.
CREATE TABLE imports (
    owner         TEXT    NOT NULL,
    origin        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    conversation  TEXT    NOT NULL,
    session       TEXT    NOT NULL,
    last_row      INTEGER NOT NULL,  -- the number, there, of the last message that has come
    whole         INTEGER NOT NULL,  -- has all of it come that was there then?
    last_seq      INTEGER NOT NULL,  -- the conversation's last number right after that
    imported_at   INTEGER NOT NULL,
    PRIMARY KEY (owner, origin, name)
) STRICT, WITHOUT ROWID;
