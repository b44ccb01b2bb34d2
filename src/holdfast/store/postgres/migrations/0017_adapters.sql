-- Stores of frameworks. See SQLite's migration 17.

CREATE TABLE message_names (
    conversation  TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    name          TEXT    COLLATE "C" NOT NULL,
    seq           BIGINT  NOT NULL,
    PRIMARY KEY (conversation, name)
);

CREATE TABLE checkpoints (
    conversation  TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    ns            TEXT    COLLATE "C" NOT NULL,
    id            TEXT    COLLATE "C" NOT NULL,
    parent        TEXT,
    run           TEXT,
    kind          TEXT    NOT NULL,
    metadata      TEXT    NOT NULL,
    created_at    BIGINT  NOT NULL,
    body          BYTEA   NOT NULL,
    PRIMARY KEY (conversation, ns, id)
);
CREATE INDEX checkpoints_of_run ON checkpoints (run) WHERE run IS NOT NULL;

CREATE TABLE checkpoint_writes (
    conversation  TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    ns            TEXT    COLLATE "C" NOT NULL,
    checkpoint    TEXT    COLLATE "C" NOT NULL,
    task          TEXT    COLLATE "C" NOT NULL,
    ordinal       BIGINT  NOT NULL,
    channel       TEXT    NOT NULL,
    path          TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    body          BYTEA   NOT NULL,
    PRIMARY KEY (conversation, ns, checkpoint, task, ordinal)
);

CREATE TABLE items (
    owner         TEXT    COLLATE "C" NOT NULL,
    space         TEXT    COLLATE "C" NOT NULL,
    namespace     TEXT    COLLATE "C" NOT NULL,
    name          TEXT    COLLATE "C" NOT NULL,
    conversation  TEXT    COLLATE "C" REFERENCES conversations (id) ON DELETE CASCADE,
    value         TEXT    NOT NULL,
    created_at    BIGINT  NOT NULL,
    updated_at    BIGINT  NOT NULL,
    ttl           BIGINT,
    expires_at    BIGINT,
    PRIMARY KEY (owner, space, namespace, name)
);
CREATE INDEX items_of_conversation ON items (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX items_expiring ON items (expires_at) WHERE expires_at IS NOT NULL;
