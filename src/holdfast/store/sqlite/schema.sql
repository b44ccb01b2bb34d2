-- schema: 16
-- A new store is created from this file, then by the migrations with a higher number. Columns that older stores got
-- from a migration are the last ones of their table, so that both have the same order.
-- Times are microseconds since 1970 in UTC. Bodies are the JSON bytes as received.

-- One row: the store's id. The search index records it, so that it is never used for another store.
CREATE TABLE store (
    id          TEXT    NOT NULL PRIMARY KEY,
    created_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One running holdfast process, an incarnation: its id is never used again.
CREATE TABLE nodes (
    id            TEXT    NOT NULL PRIMARY KEY,
    kind          TEXT    NOT NULL,
    host          TEXT    NOT NULL,
    boot_id       TEXT    NOT NULL,
    pid_ns        TEXT    NOT NULL,
    pid           INTEGER NOT NULL,
    pid_start     TEXT    NOT NULL,
    beat          INTEGER NOT NULL DEFAULT 0,
    started_at    INTEGER NOT NULL,
    heartbeat_at  INTEGER NOT NULL,
    left_at       INTEGER,
    reaped_at     INTEGER,
    settled_at    INTEGER,  -- since when it has no orphans left
    machine       TEXT,     -- hostnames may be shared; NULL: written before this was recorded
    stale_ms      INTEGER   -- without a heartbeat for this long it counts as hung; NULL: the observer's setting decides
) STRICT, WITHOUT ROWID;
CREATE INDEX nodes_unsettled ON nodes (id) WHERE settled_at IS NULL;
CREATE INDEX nodes_settled ON nodes (settled_at) WHERE settled_at IS NOT NULL;

-- A chat. `tip` is its newest session; `holder`, `token` and `turn` are its lease; `revision` rises when a context
-- changes other than by an appended message.
CREATE TABLE conversations (
    id            TEXT    NOT NULL PRIMARY KEY,
    owner         TEXT    NOT NULL,
    key           TEXT,
    title         TEXT,
    source        TEXT    NOT NULL,
    tip           TEXT    NOT NULL,
    last_seq      INTEGER NOT NULL DEFAULT 0,
    revision      INTEGER NOT NULL DEFAULT 0,
    token         INTEGER NOT NULL DEFAULT 0,
    holder        TEXT,
    turn          TEXT,
    forked_from   TEXT,
    created_at    INTEGER NOT NULL,
    -- Fingerprint of the whole visible history; NULL while a turn runs, and whenever it is not known. `anonymous`: begun
    -- without id or key, so a request with this history continues it.
    history_hash  BLOB,
    anonymous     INTEGER NOT NULL DEFAULT 0,
    metadata      TEXT,
    -- Size of its messages' bodies. Maintained by the statements that number messages, so that a quota costs no
    -- statement of its own.
    bytes         INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX conversations_key ON conversations (owner, key) WHERE key IS NOT NULL;
CREATE INDEX conversations_held ON conversations (holder) WHERE holder IS NOT NULL;
CREATE INDEX conversations_by_history ON conversations (owner, history_hash)
    WHERE anonymous = 1 AND history_hash IS NOT NULL;
CREATE INDEX conversations_forked ON conversations (forked_from) WHERE forked_from IS NOT NULL;

-- External names of a conversation that are neither its id nor its key.
CREATE TABLE aliases (
    owner         TEXT    NOT NULL,
    alias         TEXT    NOT NULL,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    created_at    INTEGER NOT NULL,
    session       TEXT,  -- the exact session that it referred to: the id that an imported session had elsewhere
    PRIMARY KEY (owner, alias)
) STRICT, WITHOUT ROWID;
CREATE INDEX aliases_conversation ON aliases (conversation);

-- One stretch of context. Its messages are numbered first_seq to last_seq; last_seq is NULL while it is open.
CREATE TABLE sessions (
    no                INTEGER PRIMARY KEY,
    id                TEXT    NOT NULL UNIQUE,
    conversation      TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    owner             TEXT    NOT NULL,
    ordinal           INTEGER NOT NULL,
    edge              TEXT,
    parent            TEXT,
    source            TEXT    NOT NULL,
    attached          INTEGER NOT NULL,
    node              TEXT,
    opened_at         INTEGER NOT NULL,
    last_activity_at  INTEGER NOT NULL,
    next_due_at       INTEGER,
    recheck_at        INTEGER,
    ended_at          INTEGER,
    end_reason        TEXT,
    model             TEXT,
    input_tokens      INTEGER NOT NULL DEFAULT 0,
    output_tokens     INTEGER NOT NULL DEFAULT 0,
    first_seq         INTEGER NOT NULL,
    last_seq          INTEGER,
    view              TEXT    NOT NULL,
    -- Stamp of the policies by which `next_due_at` was computed; under other policies it is computed again.
    dated_by          TEXT,
    -- What defers a due reset, one word per reason: a change is published, a repetition is not.
    deferral          TEXT,
    -- The reset that began it, if one did: its first reply says so, also when it is requested again.
    fresh_by          TEXT,
    -- When its context began or was resumed: its policy counts from then. NULL: when it was opened.
    fresh_since       INTEGER,
    -- Earlier flushes have covered the context up to this message.
    flushed_seq       INTEGER NOT NULL DEFAULT 0,
    UNIQUE (conversation, ordinal),
    CHECK ((ended_at IS NULL) = (end_reason IS NULL) AND (ended_at IS NULL) = (last_seq IS NULL)),
    CHECK (attached = (node IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX sessions_one_open ON sessions (conversation) WHERE ended_at IS NULL;
CREATE INDEX sessions_by_owner ON sessions (owner, last_activity_at, id);
CREATE INDEX sessions_by_activity ON sessions (last_activity_at, id);
CREATE INDEX sessions_first ON sessions (owner) WHERE ordinal = 1;
CREATE INDEX sessions_attached ON sessions (node) WHERE ended_at IS NULL AND attached = 1;
CREATE INDEX sessions_due ON sessions (dated_by, coalesce(recheck_at, next_due_at))
    WHERE ended_at IS NULL AND next_due_at IS NOT NULL;
CREATE INDEX sessions_dated ON sessions (dated_by) WHERE ended_at IS NULL;
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;
CREATE TRIGGER sessions_never_reopened BEFORE UPDATE OF ended_at, end_reason ON sessions
WHEN OLD.ended_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'an ended session is never reopened or ended again'); END;

-- A request until its answer is committed.
CREATE TABLE turns (
    no            INTEGER PRIMARY KEY,
    id            TEXT    NOT NULL UNIQUE,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT    NOT NULL,
    owner         TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    node          TEXT    NOT NULL,
    attempt       INTEGER NOT NULL DEFAULT 1,
    first_seq     INTEGER NOT NULL,
    started_at    INTEGER NOT NULL,
    ended_at      INTEGER,
    model         TEXT,
    error         TEXT,
    usage         TEXT,
    response_id   TEXT,
    -- What the model's answer held besides its message, so that a repeated request gets the same answer.
    answer        BLOB,
    -- How much of the answer a client has received: 0 nothing, 1 it is being sent, 2 a part, or perhaps a part, 3 all of
    -- it. A repeated request gets an answer that no client has received whole; see docs/explanation/continuity.md.
    -- Answers older than this column count as received.
    delivery      INTEGER NOT NULL DEFAULT 3,
    CHECK ((status = 'running') = (ended_at IS NULL))
) STRICT;
CREATE INDEX turns_of_conversation ON turns (conversation);

-- The append-only list of a conversation. `calls` and `answers` are copied from the body, so that a context can be
-- rendered without decoding it. Numbers (`no`) are never reused: the search index relies on it.
CREATE TABLE messages (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    seq           INTEGER NOT NULL,
    session       TEXT    NOT NULL,
    turn          TEXT,
    role          TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    calls         TEXT,
    answers       TEXT,
    created_at    INTEGER NOT NULL,
    deleted_at    INTEGER,
    origin        TEXT,
    gaps          TEXT,        -- positions of deleted calls, so that the others keep theirs
    body          BLOB    NOT NULL,
    -- `inner`: between the model and the server's tools, never shown to a client. `own_calls` is a JSON list: the calls
    -- that the server answers itself; a client is shown the others.
    inner         INTEGER NOT NULL DEFAULT 0,
    own_calls     TEXT,
    -- What is not for the model, as a JSON object: its number on a messaging platform, the reasoning of an imported
    -- model. Shown with the message, never sent.
    extra         TEXT,
    UNIQUE (conversation, seq)
) STRICT;
CREATE INDEX messages_marked ON messages (conversation, seq)
    WHERE calls IS NOT NULL OR answers IS NOT NULL OR status <> 'completed' OR deleted_at IS NOT NULL;
CREATE TRIGGER messages_immutable BEFORE UPDATE ON messages
-- Longer by one: a text of one character that is replaced by a null.
WHEN OLD.deleted_at IS NOT NULL OR length(NEW.body) > iif(NEW.deleted_at IS NULL, length(OLD.body) + 1, 0)
  OR NEW.conversation <> OLD.conversation OR NEW.seq <> OLD.seq OR NEW.role <> OLD.role OR NEW.status <> OLD.status
BEGIN SELECT RAISE(ABORT, 'a message never changes; it can only lose what it says'); END;

-- Messages that left every context but stay readable.
CREATE TABLE exclusions (
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    seq           INTEGER NOT NULL,
    reason        TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (conversation, seq)
) STRICT, WITHOUT ROWID;

-- Messages, by their `no`, to be removed from the search index, or indexed again if something is left of them. Written
-- with the deletion, removed by the indexer; ids are never reused, so that it removes only what it has processed.
CREATE TABLE unindexed (
    id  INTEGER PRIMARY KEY AUTOINCREMENT,
    no  INTEGER NOT NULL
) STRICT;

-- Idempotency: which turn (by its `no`) a request key belongs to, and the hash of the body it came with.
-- A turn has at most one, and turns are numbered as they begin: the lowest numbers are the oldest.
CREATE TABLE requests (
    turn        INTEGER PRIMARY KEY REFERENCES turns (no) ON DELETE CASCADE,
    owner       TEXT    NOT NULL,
    route       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    body_hash   BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    UNIQUE (owner, route, key)
) STRICT;

-- Saved pieces of running replies, append-only. `after_seq` is the number of the message the reply follows.
CREATE TABLE drafts (
    no           INTEGER PRIMARY KEY,
    turn         TEXT    NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    first_event  INTEGER NOT NULL,
    last_event   INTEGER NOT NULL,
    reserved_to  INTEGER NOT NULL,
    after_seq    INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    restarts     INTEGER NOT NULL,
    adds         TEXT    NOT NULL,
    events       BLOB    NOT NULL,
    UNIQUE (turn, first_event)
) STRICT;
CREATE INDEX drafts_by_age ON drafts (created_at);

-- Published events. Ids and numbers, never message text.
CREATE TABLE events (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    at            INTEGER NOT NULL,
    type          TEXT    NOT NULL,
    owner         TEXT,
    conversation  TEXT,
    session       TEXT,
    turn          TEXT,
    data          TEXT    NOT NULL
) STRICT;
CREATE INDEX events_of_conversation ON events (conversation, id) WHERE conversation IS NOT NULL;

-- A key without its secret: only the secret's SHA-256 is here. `tools` is a JSON list of names.
CREATE TABLE api_keys (
    id           TEXT    NOT NULL PRIMARY KEY,
    owner        TEXT    NOT NULL,
    scope        TEXT    NOT NULL,
    tools        TEXT    NOT NULL,
    secret_hash  BLOB    NOT NULL CHECK (length(secret_hash) = 32),
    created_at   INTEGER NOT NULL,
    revoked_at   INTEGER
) STRICT, WITHOUT ROWID;

CREATE TRIGGER api_keys_revoked_for_good BEFORE UPDATE ON api_keys
WHEN OLD.revoked_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a revoked key never changes'); END;

-- The Responses API's names for turns, with what their requests asked for.
CREATE TABLE responses (
    id          TEXT    NOT NULL PRIMARY KEY,
    owner       TEXT    NOT NULL,
    turn        TEXT    NOT NULL UNIQUE REFERENCES turns (id) ON DELETE CASCADE,
    previous    TEXT,
    background  INTEGER NOT NULL,
    brought     INTEGER NOT NULL,  -- how many of the turn's messages came with the request
    request     TEXT    NOT NULL,
    created_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Messages to people, each written in the transaction of the change that it reports.
CREATE TABLE notices (
    no             INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT    NOT NULL UNIQUE,
    owner          TEXT    NOT NULL,
    conversation   TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    kind           TEXT    NOT NULL,
    text           TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    delivered_at   INTEGER,
    -- When a reply carried it: the next one does not.
    told_at        INTEGER,
    process        TEXT,  -- the process whose end it reports
    -- `send_at`: when it may be sent next to the webhook; a sender first moves it on, so that no other sends it too. NULL:
    -- it was sent (`sent_at`), is too old to be sent, or is older than the webhook.
    send_at        INTEGER,
    sent_at        INTEGER,
    send_attempts  INTEGER NOT NULL DEFAULT 0,
    given_to       TEXT   -- the turn that got it when it began: its reply carries it
) STRICT;
CREATE INDEX notices_by_owner ON notices (owner, no);
CREATE INDEX notices_undelivered ON notices (owner, no) WHERE delivered_at IS NULL;
CREATE INDEX notices_untold ON notices (conversation) WHERE told_at IS NULL;
CREATE INDEX notices_to_send ON notices (send_at) WHERE send_at IS NOT NULL;
CREATE INDEX notices_of_conversation ON notices (conversation);

-- Background processes. No foreign key: a process must still be stopped after its conversation was deleted. The pid is 0
-- until it is known.
CREATE TABLE processes (
    no                 INTEGER PRIMARY KEY,
    id                 TEXT    NOT NULL UNIQUE,
    owner              TEXT    NOT NULL,
    conversation       TEXT    NOT NULL,
    session            TEXT    NOT NULL,
    host               TEXT    NOT NULL,
    boot_id            TEXT    NOT NULL,
    pid_ns             TEXT    NOT NULL,
    pid                INTEGER NOT NULL,
    pid_start          TEXT    NOT NULL,
    shim_pid           INTEGER,
    shim_start         TEXT,
    supervisor         TEXT,
    watched            INTEGER NOT NULL,
    may_stop           INTEGER NOT NULL,
    command            TEXT    NOT NULL,
    cwd                TEXT    NOT NULL,
    state              TEXT    NOT NULL,
    exit_code          INTEGER,
    started_at         INTEGER NOT NULL,
    last_active_at     INTEGER,
    activity           TEXT,
    listening          INTEGER NOT NULL DEFAULT 0,
    sampled_at         INTEGER,
    stop_requested_at  INTEGER,
    stop_reason        TEXT,
    pinned_until       INTEGER,
    ended_at           INTEGER,
    machine            TEXT,
    CHECK (state IN ('starting', 'running', 'exited', 'stopped', 'lost')),
    CHECK ((state IN ('starting', 'running')) = (ended_at IS NULL)),
    CHECK (state <> 'running' OR (pid > 0 AND pid_start <> ''))
) STRICT;
CREATE INDEX processes_unended ON processes (host) WHERE ended_at IS NULL;
CREATE INDEX processes_of_owner ON processes (owner, no);
CREATE INDEX processes_of_session ON processes (session, no);
CREATE INDEX processes_of_conversation ON processes (conversation, no);
CREATE INDEX processes_ended ON processes (ended_at) WHERE ended_at IS NOT NULL;
CREATE TRIGGER processes_ended_for_good BEFORE UPDATE OF state, ended_at ON processes
WHEN OLD.ended_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a process that has ended never runs again'); END;

-- At most one row per conversation. `node`, `token` and `until` are the claim to compact it: free again when the node is
-- gone or the time is over; the token rises with each claimant and fences late ones. Consecutive `failures` and
-- `retry_at` limit the retries of a compaction that fails.
CREATE TABLE compactions (
    conversation  TEXT    NOT NULL PRIMARY KEY REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT,
    node          TEXT,
    token         INTEGER NOT NULL DEFAULT 0,
    until         INTEGER,
    failures      INTEGER NOT NULL DEFAULT 0,
    retry_at      INTEGER
) STRICT, WITHOUT ROWID;

-- One row per ended session that is to be flushed, written by the transaction that ends it. `node` and `token` are its
-- claim while it is running; a node that is gone has none. `taken_by`: the session that continued this one's context
-- before it was flushed, and is flushed instead.
CREATE TABLE flushes (
    no               INTEGER PRIMARY KEY,
    session          TEXT    NOT NULL UNIQUE,
    conversation     TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    owner            TEXT    NOT NULL,
    reason           TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    after_seq        INTEGER NOT NULL,
    last_seq         INTEGER NOT NULL,
    active_at        INTEGER NOT NULL,  -- last activity in the session
    attempts         INTEGER NOT NULL DEFAULT 0,
    interruptions    INTEGER NOT NULL DEFAULT 0,
    next_attempt_at  INTEGER,
    node             TEXT,
    token            INTEGER NOT NULL DEFAULT 0,
    error            TEXT,
    taken_by         TEXT,
    created_at       INTEGER NOT NULL,
    settled_at       INTEGER,
    CHECK (state IN ('pending', 'running', 'done', 'dead', 'skipped', 'taken')),
    CHECK ((state = 'pending') = (next_attempt_at IS NOT NULL)),
    CHECK ((state = 'running') = (node IS NOT NULL)),
    CHECK ((state IN ('pending', 'running')) = (settled_at IS NULL))
) STRICT;
CREATE INDEX flushes_pending ON flushes (next_attempt_at) WHERE state = 'pending';
CREATE INDEX flushes_running ON flushes (node) WHERE state = 'running';
CREATE INDEX flushes_unsettled ON flushes (no) WHERE state IN ('pending', 'running', 'dead');
CREATE INDEX flushes_dead ON flushes (no) WHERE state = 'dead';
CREATE INDEX flushes_old ON flushes (active_at) WHERE state IN ('pending', 'dead');
CREATE INDEX flushes_of_owner ON flushes (owner, no);
CREATE INDEX flushes_of_conversation ON flushes (conversation);

-- One row: a claimant first takes the next token here, so that claims are serialised.
CREATE TABLE flush_turnstile (
    one    INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    token  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO flush_turnstile (one, token) VALUES (1, 0);

-- Recent attempts: the settings limit them per minute, over all nodes.
CREATE TABLE flush_attempts (
    token  INTEGER NOT NULL,
    at     INTEGER NOT NULL
) STRICT;
CREATE INDEX flush_attempts_by_age ON flush_attempts (at);

-- Memories, at most one per flush.
CREATE TABLE memories (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    owner         TEXT    NOT NULL,
    conversation  TEXT    NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT,
    origin        TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    edited_at     INTEGER
) STRICT;
CREATE UNIQUE INDEX memories_of_flushes ON memories (session) WHERE origin = 'flush';
CREATE INDEX memories_of_owner ON memories (owner, no);
CREATE INDEX memories_of_conversation ON memories (conversation, no);

-- One row per imported item, by its name at its origin: its session here, and how much of it was imported. It outlives
-- its conversation: what was deleted here is not imported again.
CREATE TABLE imports (
    owner         TEXT    NOT NULL,
    origin        TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    conversation  TEXT    NOT NULL,
    session       TEXT    NOT NULL,
    last_row      INTEGER NOT NULL,  -- number, at the origin, of the last imported message
    whole         INTEGER NOT NULL,  -- 1: all of it that existed then was imported
    last_seq      INTEGER NOT NULL,  -- the conversation's last number right after that
    imported_at   INTEGER NOT NULL,
    PRIMARY KEY (owner, origin, name)
) STRICT, WITHOUT ROWID;

-- Policies of the whole store, one row for each part: 'flush', 'retention', 'resets'. A server's replaces any other (rank
-- 3), a library's (2) that of a command (1); 0: a default of a node whose settings leave it open. `value` is JSON.
CREATE TABLE policies (
    part         TEXT    NOT NULL PRIMARY KEY,
    rank         INTEGER NOT NULL,
    value        TEXT    NOT NULL,
    recorded_by  TEXT    NOT NULL,
    recorded_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Browsers logged in to the dashboard: the SHA-256 of the token, the API key, and the expiry. A login ends with its key.
CREATE TABLE logins (
    token_hash  BLOB    NOT NULL PRIMARY KEY,
    api_key     TEXT    NOT NULL,  -- the key's id; of $HOLDFAST_API_KEY a name that another value does not have
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX logins_of_key ON logins (api_key, created_at);
CREATE INDEX logins_by_expiry ON logins (expires_at);
