-- Values of checkpoints that later checkpoints share. `segments` is JSON: of each value that is stored in parts its kind and
-- segments, by channel; NULL: all of the state is in `body`.
ALTER TABLE checkpoints ADD COLUMN segments TEXT;

-- Never changed. Deleted with the last checkpoint of the conversation that refers to it. The bytes count as the conversation's.
CREATE TABLE checkpoint_parts (
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    id            TEXT    NOT NULL,
    body          BLOB    NOT NULL,
    PRIMARY KEY (conversation, id)
) STRICT;
