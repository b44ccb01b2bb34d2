-- Messaging platforms. See SQLite's migration 21.

ALTER TABLE conversations ADD COLUMN places BIGINT  NOT NULL DEFAULT 0;

CREATE TABLE connectors (
    name     TEXT    COLLATE "C" NOT NULL PRIMARY KEY,
    kind     TEXT    COLLATE "C" NOT NULL,
    node     TEXT    COLLATE "C",
    token    BIGINT  NOT NULL DEFAULT 0,
    cursor   TEXT,
    state    TEXT    NOT NULL,
    problem  TEXT,
    since    BIGINT  NOT NULL
);

CREATE TABLE places (
    id            TEXT    COLLATE "C" NOT NULL PRIMARY KEY,
    connector     TEXT    COLLATE "C" NOT NULL,
    address       TEXT    COLLATE "C" NOT NULL,
    kind          TEXT    COLLATE "C" NOT NULL,
    owner         TEXT    COLLATE "C" NOT NULL,
    key           TEXT    COLLATE "C" NOT NULL,
    conversation  TEXT    COLLATE "C" REFERENCES conversations (id) ON DELETE SET NULL,
    linked        BIGINT  NOT NULL DEFAULT 0,
    hears_all     BIGINT  NOT NULL DEFAULT 0,
    home          BIGINT  NOT NULL DEFAULT 0,
    created_at    BIGINT  NOT NULL,
    UNIQUE (connector, address)
);
CREATE INDEX places_of_conversation ON places (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX places_home ON places (home) WHERE home = 1;

CREATE TABLE inbox (
    no            BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    connector     TEXT    COLLATE "C" NOT NULL,
    platform_id   TEXT    COLLATE "C" NOT NULL,
    place         TEXT    COLLATE "C" NOT NULL REFERENCES places (id) ON DELETE CASCADE,
    conversation  TEXT    COLLATE "C" REFERENCES conversations (id) ON DELETE CASCADE,
    sender        TEXT    COLLATE "C" NOT NULL,
    sender_name   TEXT,
    text          TEXT    NOT NULL,
    ordinal       BIGINT  NOT NULL,
    state         TEXT    NOT NULL,
    turn          TEXT    COLLATE "C",
    attempts      BIGINT  NOT NULL DEFAULT 0,
    due_at        BIGINT  NOT NULL,
    error         TEXT,
    received_at   BIGINT  NOT NULL,
    edited_at     BIGINT,
    deleted_at    BIGINT,
    files         TEXT,
    UNIQUE (connector, platform_id)
);
CREATE INDEX inbox_open ON inbox (connector, place, ordinal, no) WHERE state IN ('new', 'taken');
CREATE INDEX inbox_of_turn ON inbox (turn) WHERE turn IS NOT NULL;
CREATE INDEX inbox_of_conversation ON inbox (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX inbox_by_age ON inbox (received_at) WHERE state NOT IN ('new', 'taken');

CREATE TABLE deliveries (
    no            BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id            TEXT    COLLATE "C" NOT NULL UNIQUE,
    connector     TEXT    COLLATE "C" NOT NULL,
    place         TEXT    COLLATE "C" NOT NULL REFERENCES places (id) ON DELETE CASCADE,
    owner         TEXT    COLLATE "C" NOT NULL,
    conversation  TEXT    COLLATE "C" REFERENCES conversations (id) ON DELETE CASCADE,
    kind          TEXT    COLLATE "C" NOT NULL,
    turn          TEXT    COLLATE "C",
    notice        TEXT    COLLATE "C",
    text          TEXT    NOT NULL,
    reply_to      TEXT,
    parts         TEXT    NOT NULL DEFAULT '[]',
    state         TEXT    NOT NULL,
    attempts      BIGINT  NOT NULL DEFAULT 0,
    claimed_by    BIGINT,
    due_at        BIGINT  NOT NULL,
    error         TEXT,
    created_at    BIGINT  NOT NULL,
    sent_at       BIGINT 
);
CREATE UNIQUE INDEX deliveries_of_turn ON deliveries (turn, place, kind) WHERE turn IS NOT NULL;
CREATE INDEX deliveries_open ON deliveries (connector, place, no) WHERE state = 'pending';
CREATE INDEX deliveries_dead ON deliveries (connector, no) WHERE state = 'dead';
CREATE INDEX deliveries_of_owner ON deliveries (owner, no);
CREATE INDEX deliveries_of_conversation ON deliveries (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX deliveries_by_age ON deliveries (sent_at) WHERE state = 'sent';

CREATE TABLE pairings (
    id          TEXT    COLLATE "C" NOT NULL PRIMARY KEY,
    connector   TEXT    COLLATE "C" NOT NULL,
    person      TEXT    COLLATE "C" NOT NULL,
    name        TEXT,
    address     TEXT    COLLATE "C" NOT NULL,
    key         TEXT    COLLATE "C" NOT NULL,
    owner       TEXT    COLLATE "C",
    state       TEXT    NOT NULL,
    code_hash   BYTEA,
    expires_at  BIGINT,
    created_at  BIGINT  NOT NULL,
    decided_at  BIGINT,
    UNIQUE (connector, person)
);
CREATE INDEX pairings_by_code ON pairings (code_hash) WHERE code_hash IS NOT NULL;

CREATE TABLE link_codes (
    code_hash     BYTEA   NOT NULL PRIMARY KEY,
    owner         TEXT    COLLATE "C" NOT NULL,
    conversation  TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    expires_at    BIGINT  NOT NULL
);
CREATE INDEX link_codes_of_conversation ON link_codes (conversation);

-- The connector of kind webhook that is notified when a background response ends; NULL: none.
ALTER TABLE responses ADD COLUMN webhook TEXT;

CREATE TABLE attachments (
    no            BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id            TEXT    COLLATE "C" NOT NULL UNIQUE,
    conversation  TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    turn          TEXT    COLLATE "C" NOT NULL,
    source        TEXT    COLLATE "C" NOT NULL,
    name          TEXT    NOT NULL,
    mime          TEXT    NOT NULL,
    size          BIGINT  NOT NULL,
    created_at    BIGINT  NOT NULL,
    body          BYTEA   NOT NULL,
    UNIQUE (turn, source)
);
CREATE INDEX attachments_of_conversation ON attachments (conversation, no);
