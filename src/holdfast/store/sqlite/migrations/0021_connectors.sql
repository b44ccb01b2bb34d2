-- Messaging platforms: who may write, what came in, what goes out, and which node runs each connector.

-- How many places (below) are bound to the conversation: 0 for most, whose replies need no look at them.
ALTER TABLE conversations ADD COLUMN places INTEGER NOT NULL DEFAULT 0;

-- One row for each connector of the settings. `node` runs it; `token` is its fencing token. `cursor` is the platform's own
-- position in its stream of updates, stored with the messages that came before it. `state`: up, down, stopped.
CREATE TABLE connectors (
    name     TEXT    NOT NULL PRIMARY KEY,
    kind     TEXT    NOT NULL,
    node     TEXT,
    token    INTEGER NOT NULL DEFAULT 0,
    cursor   TEXT,
    state    TEXT    NOT NULL,
    problem  TEXT,
    since    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A chat, room, topic or thread of a platform, by its address there, and the conversation that it leads to: by `key`, or
-- directly if `linked`. `hears_all`: it also gets what is said elsewhere in the conversation. `home`: notices of
-- conversations without a place go here.
CREATE TABLE places (
    id            TEXT    NOT NULL PRIMARY KEY,
    connector     TEXT    NOT NULL,
    address       TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    owner         TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    conversation  TEXT    REFERENCES conversations (id) ON DELETE SET NULL,
    linked        INTEGER NOT NULL DEFAULT 0,
    hears_all     INTEGER NOT NULL DEFAULT 0,
    home          INTEGER NOT NULL DEFAULT 0,
    created_at    INTEGER NOT NULL,
    UNIQUE (connector, address)
) STRICT;
CREATE INDEX places_of_conversation ON places (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX places_home ON places (home) WHERE home = 1;

-- Messages of people, under the platform's own id, before they are acknowledged there. `state`: new, taken (its turn has
-- an id), done, failed, withdrawn. `ordinal` is the platform's order within a place. `files` is a JSON
-- list: the platform's references to the files that came with it.
CREATE TABLE inbox (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    connector     TEXT    NOT NULL,
    platform_id   TEXT    NOT NULL,
    place         TEXT    NOT NULL REFERENCES places (id) ON DELETE CASCADE,
    conversation  TEXT    REFERENCES conversations (id) ON DELETE CASCADE,
    sender        TEXT    NOT NULL,
    sender_name   TEXT,
    text          TEXT    NOT NULL,
    ordinal       INTEGER NOT NULL,
    state         TEXT    NOT NULL,
    turn          TEXT,
    attempts      INTEGER NOT NULL DEFAULT 0,
    due_at        INTEGER NOT NULL,
    error         TEXT,
    received_at   INTEGER NOT NULL,
    edited_at     INTEGER,
    deleted_at    INTEGER,
    files         TEXT,
    UNIQUE (connector, platform_id)
) STRICT;
CREATE INDEX inbox_open ON inbox (connector, place, ordinal, no) WHERE state IN ('new', 'taken');
CREATE INDEX inbox_of_turn ON inbox (turn) WHERE turn IS NOT NULL;
CREATE INDEX inbox_of_conversation ON inbox (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX inbox_by_age ON inbox (received_at) WHERE state NOT IN ('new', 'taken');

-- Messages to people: written in the transaction that makes them due. `state`: growing (its reply is being written), pending,
-- sent, dead. `parts` is a JSON list, one [platform id, hash of its text] for each part that the platform has accepted.
CREATE TABLE deliveries (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    connector     TEXT    NOT NULL,
    place         TEXT    NOT NULL REFERENCES places (id) ON DELETE CASCADE,
    owner         TEXT    NOT NULL,
    conversation  TEXT    REFERENCES conversations (id) ON DELETE CASCADE,
    kind          TEXT    NOT NULL,
    turn          TEXT,
    notice        TEXT,
    text          TEXT    NOT NULL,
    reply_to      TEXT,
    parts         TEXT    NOT NULL DEFAULT '[]',
    state         TEXT    NOT NULL,
    attempts      INTEGER NOT NULL DEFAULT 0,
    claimed_by    INTEGER,
    due_at        INTEGER NOT NULL,
    error         TEXT,
    created_at    INTEGER NOT NULL,
    sent_at       INTEGER
) STRICT;
CREATE UNIQUE INDEX deliveries_of_turn ON deliveries (turn, place, kind) WHERE turn IS NOT NULL;
CREATE INDEX deliveries_open ON deliveries (connector, place, no) WHERE state = 'pending';
CREATE INDEX deliveries_dead ON deliveries (connector, no) WHERE state = 'dead';
CREATE INDEX deliveries_of_owner ON deliveries (owner, no);
CREATE INDEX deliveries_of_conversation ON deliveries (conversation) WHERE conversation IS NOT NULL;
CREATE INDEX deliveries_by_age ON deliveries (sent_at) WHERE state = 'sent';

-- People who may write, or have asked to. Only the hash of a code is here; nothing that a stranger wrote is.
-- `state`: pending, approved, revoked.
CREATE TABLE pairings (
    id          TEXT    NOT NULL PRIMARY KEY,
    connector   TEXT    NOT NULL,
    person      TEXT    NOT NULL,
    name        TEXT,
    address     TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    owner       TEXT,
    state       TEXT    NOT NULL,
    code_hash   BLOB,
    expires_at  INTEGER,
    created_at  INTEGER NOT NULL,
    decided_at  INTEGER,
    UNIQUE (connector, person)
) STRICT;
CREATE INDEX pairings_by_code ON pairings (code_hash) WHERE code_hash IS NOT NULL;

-- Codes that join a place to a conversation of the same owner.
CREATE TABLE link_codes (
    code_hash     BLOB    NOT NULL PRIMARY KEY,
    owner         TEXT    NOT NULL,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    expires_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX link_codes_of_conversation ON link_codes (conversation);

-- The connector of kind webhook that is notified when a background response ends; NULL: none.
ALTER TABLE responses ADD COLUMN webhook TEXT;

-- Files that came with messages, by the turn that answers them. They count as bytes of the conversation. `source` is the
-- platform's message id and the file's position in it.
CREATE TABLE attachments (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    turn          TEXT    NOT NULL,
    source        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    mime          TEXT    NOT NULL,
    size          INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    body          BLOB    NOT NULL,
    UNIQUE (turn, source)
) STRICT;
CREATE INDEX attachments_of_conversation ON attachments (conversation, no);
