-- Stores of frameworks: names of messages, checkpoints of graphs, and items.

-- The name that a framework gave a message, unique in its conversation: a message whose name is known is not stored again.
CREATE TABLE message_names (
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    name          TEXT    NOT NULL,
    seq           INTEGER NOT NULL,
    PRIMARY KEY (conversation, name)
) STRICT, WITHOUT ROWID;

-- A graph's state after one of its steps. `run` is the run that wrote it. Bodies are in the framework's own encoding,
-- named by `kind`, and count as bytes of the conversation.
CREATE TABLE checkpoints (
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    ns            TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    parent        TEXT,
    run           TEXT,
    kind          TEXT    NOT NULL,
    metadata      TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    body          BLOB    NOT NULL,
    PRIMARY KEY (conversation, ns, id)
) STRICT;
CREATE INDEX checkpoints_of_run ON checkpoints (run) WHERE run IS NOT NULL;

-- What a task of a graph wrote after a checkpoint. May arrive before its checkpoint.
CREATE TABLE checkpoint_writes (
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    ns            TEXT    NOT NULL,
    checkpoint    TEXT    NOT NULL,
    task          TEXT    NOT NULL,
    ordinal       INTEGER NOT NULL,
    channel       TEXT    NOT NULL,
    path          TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    body          BLOB    NOT NULL,
    PRIMARY KEY (conversation, ns, checkpoint, task, ordinal)
) STRICT;

-- JSON values of an owner by space, namespace and name: state of sessions and users, long-term memory of graphs. An item of
-- a conversation is deleted with it. `ttl` is in microseconds; an item past `expires_at` counts as deleted.
CREATE TABLE items (
    owner         TEXT    NOT NULL,
    space         TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    conversation  TEXT    REFERENCES conversations (id) ON DELETE CASCADE,
    value         TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    ttl           INTEGER,
    expires_at    INTEGER,
    PRIMARY KEY (owner, space, namespace, name)
) STRICT;
CREATE INDEX items_of_conversation ON items (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX items_expiring ON items (expires_at) WHERE expires_at IS NOT NULL;
