-- Rewinds: the message after `at_seq` follows `to_seq`; the messages between are excluded, as `rewound`. Kept, so that the
-- messages that led to any message can be found again.
CREATE TABLE rewinds (
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    at_seq        INTEGER NOT NULL,
    to_seq        INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (conversation, at_seq)
) STRICT, WITHOUT ROWID;

-- Turns that wait for their conversation to be free: their messages, which get numbers when they begin, in the order in which
-- they were accepted (`no`, of `turns`). `steers`: the messages may join the running turn instead. The turn's row has the status
-- `queued`; until it begins its `first_seq` is 0 and its `ended_at` the time at which it was queued.
CREATE TABLE queued_turns (
    turn          TEXT    PRIMARY KEY REFERENCES turns (id) ON DELETE CASCADE,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    no            INTEGER NOT NULL,
    steers        INTEGER NOT NULL,
    source        TEXT    NOT NULL,
    messages      BLOB    NOT NULL
) STRICT;
CREATE INDEX queued_in_order ON queued_turns (conversation, no);

-- How many turns are queued in a conversation: read with it, so that a turn that begins needs no further statement.
ALTER TABLE conversations ADD COLUMN queued INTEGER NOT NULL DEFAULT 0;

-- The turn that this one's messages joined.
ALTER TABLE turns ADD COLUMN joined TEXT;
