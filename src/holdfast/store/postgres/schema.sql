-- schema: 16
-- oldest: 14
-- A new store is created from this file, then by the migrations with a higher number. The tables and columns are those
-- of SQLite's schema.sql: see there for what each is for. Columns that older stores got from a migration are the last
-- ones of their table, so that both have the same order. Names compare byte by byte, whatever the database's locale.
--
-- Everything that grows belongs to a conversation and can be found by it: the tables can be partitioned, or spread
-- over machines, by that column (or by the owner, which every table has that is listed by owner).

-- One row: the store's id, its schema number, and the oldest program that may write here, by the schema number it knows.
-- A program also runs on a later schema that only added something, unless a migration raised `oldest`.
CREATE TABLE store (
    id          TEXT   COLLATE "C" PRIMARY KEY,
    created_at  BIGINT NOT NULL,
    schema      BIGINT NOT NULL,
    oldest      BIGINT NOT NULL
);

CREATE TABLE nodes (
    id            TEXT   COLLATE "C" PRIMARY KEY,
    kind          TEXT   NOT NULL,
    host          TEXT   NOT NULL,
    boot_id       TEXT   NOT NULL,
    pid_ns        TEXT   NOT NULL,
    pid           BIGINT NOT NULL,
    pid_start     TEXT   NOT NULL,
    beat          BIGINT NOT NULL DEFAULT 0,
    started_at    BIGINT NOT NULL,
    heartbeat_at  BIGINT NOT NULL,
    left_at       BIGINT,
    reaped_at     BIGINT,
    settled_at    BIGINT,
    machine       TEXT   COLLATE "C",
    stale_ms      BIGINT
) WITH (fillfactor = 50);
CREATE INDEX nodes_unsettled ON nodes (id) WHERE settled_at IS NULL;
CREATE INDEX nodes_settled ON nodes (settled_at) WHERE settled_at IS NOT NULL;

CREATE TABLE conversations (
    id            TEXT    COLLATE "C" PRIMARY KEY,
    owner         TEXT    COLLATE "C" NOT NULL,
    key           TEXT    COLLATE "C",
    title         TEXT    COLLATE "C",
    source        TEXT    COLLATE "C" NOT NULL,
    tip           TEXT    COLLATE "C" NOT NULL,
    last_seq      BIGINT  NOT NULL DEFAULT 0,
    revision      BIGINT  NOT NULL DEFAULT 0,
    token         BIGINT  NOT NULL DEFAULT 0,
    holder        TEXT    COLLATE "C",
    turn          TEXT    COLLATE "C",
    forked_from   TEXT    COLLATE "C",
    created_at    BIGINT  NOT NULL,
    history_hash  BYTEA,
    anonymous     BOOLEAN NOT NULL DEFAULT FALSE,
    metadata      TEXT,
    bytes         BIGINT  NOT NULL DEFAULT 0
) WITH (fillfactor = 70); -- its row changes with every message: leaves room for the next version on the same page
CREATE UNIQUE INDEX conversations_key ON conversations (owner, key) WHERE key IS NOT NULL;
CREATE INDEX conversations_held ON conversations (holder) WHERE holder IS NOT NULL;
CREATE INDEX conversations_forked ON conversations (forked_from) WHERE forked_from IS NOT NULL;
CREATE INDEX conversations_by_history ON conversations (owner, history_hash)
    WHERE anonymous AND history_hash IS NOT NULL;

CREATE TABLE aliases (
    owner         TEXT   COLLATE "C" NOT NULL,
    alias         TEXT   COLLATE "C" NOT NULL,
    conversation  TEXT   COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    created_at    BIGINT NOT NULL,
    session       TEXT   COLLATE "C",
    PRIMARY KEY (owner, alias)
);
CREATE INDEX aliases_conversation ON aliases (conversation);
CREATE INDEX aliases_anywhere ON aliases (alias);

CREATE TABLE sessions (
    no                BIGINT  GENERATED ALWAYS AS IDENTITY,
    id                TEXT    COLLATE "C" PRIMARY KEY,
    conversation      TEXT    COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    owner             TEXT    COLLATE "C" NOT NULL,
    ordinal           BIGINT  NOT NULL,
    edge              TEXT,
    parent            TEXT    COLLATE "C",
    source            TEXT    COLLATE "C" NOT NULL,
    attached          BOOLEAN NOT NULL,
    node              TEXT    COLLATE "C",
    opened_at         BIGINT  NOT NULL,
    last_activity_at  BIGINT  NOT NULL,
    next_due_at       BIGINT,
    recheck_at        BIGINT,
    ended_at          BIGINT,
    end_reason        TEXT    COLLATE "C",
    model             TEXT,
    input_tokens      BIGINT  NOT NULL DEFAULT 0,
    output_tokens     BIGINT  NOT NULL DEFAULT 0,
    first_seq         BIGINT  NOT NULL,
    last_seq          BIGINT,
    view              TEXT    NOT NULL,
    dated_by          TEXT    COLLATE "C",
    deferral          TEXT,
    fresh_by          TEXT,
    fresh_since       BIGINT,
    flushed_seq       BIGINT  NOT NULL DEFAULT 0,
    UNIQUE (conversation, ordinal),
    CHECK ((ended_at IS NULL) = (end_reason IS NULL) AND (ended_at IS NULL) = (last_seq IS NULL)),
    CHECK (attached = (node IS NOT NULL))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX sessions_one_open ON sessions (conversation) WHERE ended_at IS NULL;
CREATE INDEX sessions_by_owner ON sessions (owner, last_activity_at, id);
CREATE INDEX sessions_by_activity ON sessions (last_activity_at, id);
CREATE INDEX sessions_first ON sessions (owner, no) WHERE ordinal = 1;
CREATE INDEX sessions_first_of_all ON sessions (no) WHERE ordinal = 1;
CREATE INDEX sessions_attached ON sessions (node) WHERE ended_at IS NULL AND attached;
CREATE INDEX sessions_due ON sessions (dated_by, coalesce(recheck_at, next_due_at))
    WHERE ended_at IS NULL AND next_due_at IS NOT NULL;
CREATE INDEX sessions_dated ON sessions (dated_by) WHERE ended_at IS NULL;
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;

CREATE FUNCTION sessions_never_reopened() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'an ended session is never reopened or ended again'; END $$;
CREATE TRIGGER sessions_never_reopened BEFORE UPDATE OF ended_at, end_reason ON sessions
FOR EACH ROW WHEN (OLD.ended_at IS NOT NULL) EXECUTE FUNCTION sessions_never_reopened();

CREATE TABLE turns (
    no            BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
    id            TEXT   COLLATE "C" PRIMARY KEY,
    conversation  TEXT   COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT   COLLATE "C" NOT NULL,
    owner         TEXT   COLLATE "C" NOT NULL,
    status        TEXT   NOT NULL,
    node          TEXT   COLLATE "C" NOT NULL,
    attempt       BIGINT NOT NULL DEFAULT 1,
    first_seq     BIGINT NOT NULL,
    started_at    BIGINT NOT NULL,
    ended_at      BIGINT,
    model         TEXT,
    error         TEXT,
    usage         TEXT,
    response_id   TEXT   COLLATE "C",
    answer        BYTEA,
    delivery      BIGINT NOT NULL DEFAULT 3,
    CHECK ((status = 'running') = (ended_at IS NULL))
) WITH (fillfactor = 80);
CREATE INDEX turns_of_conversation ON turns (conversation, no);

-- An answer without the token probabilities, which contain its words; NULL if PostgreSQL cannot read it as JSON.
CREATE FUNCTION without_logprobs(answer BYTEA) RETURNS BYTEA LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_to((convert_from(answer, 'UTF8')::jsonb #- '{choices,0,logprobs}')::text, 'UTF8');
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- No foreign key: seqs are only ever allocated in the conversation's row, and a check for every message would cost a
-- seventh of an append.
CREATE TABLE messages (
    no            BIGINT  GENERATED ALWAYS AS IDENTITY,
    conversation  TEXT    COLLATE "C" NOT NULL,
    seq           BIGINT  NOT NULL,
    session       TEXT    COLLATE "C" NOT NULL,
    turn          TEXT    COLLATE "C",
    role          TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    calls         TEXT,
    answers       TEXT    COLLATE "C",
    created_at    BIGINT  NOT NULL,
    deleted_at    BIGINT,
    origin        TEXT    COLLATE "C",
    gaps          TEXT,
    "inner"       BOOLEAN NOT NULL DEFAULT FALSE,
    own_calls     TEXT,
    body          BYTEA   NOT NULL,
    extra         TEXT,
    PRIMARY KEY (conversation, seq)
);
CREATE INDEX messages_marked ON messages (conversation, seq)
    WHERE calls IS NOT NULL OR answers IS NOT NULL OR status <> 'completed' OR deleted_at IS NOT NULL;

CREATE FUNCTION messages_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'a message never changes; it can only lose what it says'; END $$;
CREATE TRIGGER messages_immutable BEFORE UPDATE ON messages
FOR EACH ROW WHEN (
    OLD.deleted_at IS NOT NULL
    -- Longer by one: a text of one character that is replaced by a null.
    OR length(NEW.body) > CASE WHEN NEW.deleted_at IS NULL THEN length(OLD.body) + 1 ELSE 0 END
    OR NEW.conversation <> OLD.conversation OR NEW.seq <> OLD.seq OR NEW.role <> OLD.role OR NEW.status <> OLD.status
) EXECUTE FUNCTION messages_immutable();

CREATE TABLE exclusions (
    conversation  TEXT   COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    seq           BIGINT NOT NULL,
    reason        TEXT   NOT NULL,
    created_at    BIGINT NOT NULL,
    PRIMARY KEY (conversation, seq)
);

-- The search index, and what is not indexed yet. A message is written with its row in `unindexed`; the indexer replaces
-- that row by one here, so a committed message is always in one of the two. If a message has more words than a tsvector
-- can hold, it is not `whole`: every search reads it.
CREATE TABLE search (
    no            BIGINT   PRIMARY KEY,
    conversation  TEXT     COLLATE "C" NOT NULL,
    seq           BIGINT   NOT NULL,
    whole         BOOLEAN  NOT NULL,
    words         TSVECTOR NOT NULL
);
CREATE INDEX search_words ON search USING gin (words);
CREATE INDEX search_not_whole ON search (no) WHERE NOT whole;
CREATE TABLE unindexed (
    no            BIGINT PRIMARY KEY,
    conversation  TEXT   COLLATE "C" NOT NULL,
    seq           BIGINT NOT NULL
);

CREATE TABLE requests (
    turn        BIGINT PRIMARY KEY REFERENCES turns (no) ON DELETE CASCADE,
    owner       TEXT   COLLATE "C" NOT NULL,
    route       TEXT   COLLATE "C" NOT NULL,
    key         TEXT   COLLATE "C" NOT NULL,
    body_hash   BYTEA  NOT NULL,
    created_at  BIGINT NOT NULL,
    UNIQUE (owner, route, key)
);

CREATE TABLE drafts (
    no           BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    turn         TEXT    COLLATE "C" NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    first_event  BIGINT  NOT NULL,
    last_event   BIGINT  NOT NULL,
    reserved_to  BIGINT  NOT NULL,
    after_seq    BIGINT  NOT NULL,
    created_at   BIGINT  NOT NULL,
    restarts     BOOLEAN NOT NULL,
    adds         TEXT    NOT NULL,
    events       BYTEA   NOT NULL,
    UNIQUE (turn, first_event)
);
CREATE INDEX drafts_by_age ON drafts (created_at);

-- Numbered in commit order: see `event_lock`.
CREATE TABLE events (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at            BIGINT NOT NULL,
    type          TEXT   COLLATE "C" NOT NULL,
    owner         TEXT   COLLATE "C",
    conversation  TEXT   COLLATE "C",
    session       TEXT   COLLATE "C",
    turn          TEXT   COLLATE "C",
    data          TEXT   NOT NULL
);
CREATE INDEX events_of_conversation ON events (conversation, id) WHERE conversation IS NOT NULL;

CREATE TABLE api_keys (
    id           TEXT   COLLATE "C" PRIMARY KEY,
    owner        TEXT   COLLATE "C" NOT NULL,
    scope        TEXT   NOT NULL,
    tools        TEXT   NOT NULL,
    secret_hash  BYTEA  NOT NULL CHECK (length(secret_hash) = 32),
    created_at   BIGINT NOT NULL,
    revoked_at   BIGINT
);
CREATE FUNCTION api_keys_revoked_for_good() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'a revoked key never changes'; END $$;
CREATE TRIGGER api_keys_revoked_for_good BEFORE UPDATE ON api_keys
FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL) EXECUTE FUNCTION api_keys_revoked_for_good();

CREATE TABLE responses (
    id          TEXT    COLLATE "C" PRIMARY KEY,
    owner       TEXT    COLLATE "C" NOT NULL,
    turn        TEXT    COLLATE "C" NOT NULL UNIQUE REFERENCES turns (id) ON DELETE CASCADE,
    previous    TEXT    COLLATE "C",
    background  BOOLEAN NOT NULL,
    brought     BIGINT  NOT NULL,
    request     TEXT    NOT NULL,
    created_at  BIGINT  NOT NULL
);

-- `place` is in commit order (see `event_lock`): `no` is allocated earlier, so a reader that has read up to one could miss
-- one that was committed later. Every notice gets its final place as it is committed.
CREATE SEQUENCE notice_places;
CREATE TABLE notices (
    no             BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id             TEXT   COLLATE "C" NOT NULL UNIQUE,
    owner          TEXT   COLLATE "C" NOT NULL,
    conversation   TEXT   COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    kind           TEXT   NOT NULL,
    text           TEXT   NOT NULL,
    created_at     BIGINT NOT NULL,
    delivered_at   BIGINT,
    told_at        BIGINT,
    process        TEXT   COLLATE "C",
    send_at        BIGINT,
    sent_at        BIGINT,
    send_attempts  BIGINT NOT NULL DEFAULT 0,
    given_to       TEXT   COLLATE "C",
    place          BIGINT NOT NULL DEFAULT nextval('notice_places')
);
ALTER SEQUENCE notice_places OWNED BY notices.place;
CREATE INDEX notices_in_order ON notices (place);
CREATE INDEX notices_of_owner_in_order ON notices (owner, place);
CREATE INDEX notices_undelivered_in_order ON notices (owner, place) WHERE delivered_at IS NULL;
CREATE INDEX notices_of_conversation ON notices (conversation);
CREATE INDEX notices_untold ON notices (conversation) WHERE told_at IS NULL;
CREATE INDEX notices_to_send ON notices (send_at) WHERE send_at IS NOT NULL;

CREATE TABLE processes (
    no                 BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                 TEXT    COLLATE "C" NOT NULL UNIQUE,
    owner              TEXT    COLLATE "C" NOT NULL,
    conversation       TEXT    COLLATE "C" NOT NULL,
    session            TEXT    COLLATE "C" NOT NULL,
    host               TEXT    COLLATE "C" NOT NULL,
    boot_id            TEXT    NOT NULL,
    pid_ns             TEXT    NOT NULL,
    pid                BIGINT  NOT NULL,
    pid_start          TEXT    NOT NULL,
    shim_pid           BIGINT,
    shim_start         TEXT,
    supervisor         TEXT    COLLATE "C",
    watched            BOOLEAN NOT NULL,
    may_stop           BOOLEAN NOT NULL,
    command            TEXT    NOT NULL,
    cwd                TEXT    NOT NULL,
    state              TEXT    NOT NULL,
    exit_code          BIGINT,
    started_at         BIGINT  NOT NULL,
    last_active_at     BIGINT,
    activity           TEXT,
    listening          BOOLEAN NOT NULL DEFAULT FALSE,
    sampled_at         BIGINT,
    stop_requested_at  BIGINT,
    stop_reason        TEXT,
    pinned_until       BIGINT,
    ended_at           BIGINT,
    machine            TEXT    COLLATE "C",
    CHECK (state IN ('starting', 'running', 'exited', 'stopped', 'lost')),
    CHECK ((state IN ('starting', 'running')) = (ended_at IS NULL)),
    CHECK (state <> 'running' OR (pid > 0 AND pid_start <> ''))
) WITH (fillfactor = 70);
CREATE INDEX processes_unended ON processes (host) WHERE ended_at IS NULL;
CREATE INDEX processes_of_owner ON processes (owner, no);
CREATE INDEX processes_of_session ON processes (session, no);
CREATE INDEX processes_of_conversation ON processes (conversation, no);
CREATE INDEX processes_ended ON processes (ended_at) WHERE ended_at IS NOT NULL;
CREATE FUNCTION processes_ended_for_good() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'a process that has ended never runs again'; END $$;
CREATE TRIGGER processes_ended_for_good BEFORE UPDATE OF state, ended_at ON processes
FOR EACH ROW WHEN (OLD.ended_at IS NOT NULL) EXECUTE FUNCTION processes_ended_for_good();

CREATE TABLE compactions (
    conversation  TEXT   COLLATE "C" PRIMARY KEY REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT   COLLATE "C",
    node          TEXT   COLLATE "C",
    token         BIGINT NOT NULL DEFAULT 0,
    until         BIGINT,
    failures      BIGINT NOT NULL DEFAULT 0,
    retry_at      BIGINT
);

CREATE TABLE flushes (
    no               BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session          TEXT   COLLATE "C" NOT NULL UNIQUE,
    conversation     TEXT   COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    owner            TEXT   COLLATE "C" NOT NULL,
    reason           TEXT   NOT NULL,
    state            TEXT   NOT NULL,
    after_seq        BIGINT NOT NULL,
    last_seq         BIGINT NOT NULL,
    active_at        BIGINT NOT NULL,
    attempts         BIGINT NOT NULL DEFAULT 0,
    interruptions    BIGINT NOT NULL DEFAULT 0,
    next_attempt_at  BIGINT,
    node             TEXT   COLLATE "C",
    token            BIGINT NOT NULL DEFAULT 0,
    error            TEXT,
    taken_by         TEXT   COLLATE "C",
    created_at       BIGINT NOT NULL,
    settled_at       BIGINT,
    CHECK (state IN ('pending', 'running', 'done', 'dead', 'skipped', 'taken')),
    CHECK ((state = 'pending') = (next_attempt_at IS NOT NULL)),
    CHECK ((state = 'running') = (node IS NOT NULL)),
    CHECK ((state IN ('pending', 'running')) = (settled_at IS NULL))
);
CREATE INDEX flushes_pending ON flushes (next_attempt_at) WHERE state = 'pending';
CREATE INDEX flushes_running ON flushes (node) WHERE state = 'running';
CREATE INDEX flushes_unsettled ON flushes (no) WHERE state IN ('pending', 'running', 'dead');
CREATE INDEX flushes_dead ON flushes (no) WHERE state = 'dead';
CREATE INDEX flushes_old ON flushes (active_at) WHERE state IN ('pending', 'dead');
CREATE INDEX flushes_of_owner ON flushes (owner, no);
CREATE INDEX flushes_of_conversation ON flushes (conversation);

CREATE TABLE flush_turnstile (
    one    BIGINT PRIMARY KEY CHECK (one = 1),
    token  BIGINT NOT NULL
) WITH (fillfactor = 10);
INSERT INTO flush_turnstile (one, token) VALUES (1, 0);

CREATE TABLE flush_attempts (
    token  BIGINT NOT NULL,
    at     BIGINT NOT NULL
);
CREATE INDEX flush_attempts_by_age ON flush_attempts (at);

CREATE TABLE memories (
    no            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id            TEXT   COLLATE "C" NOT NULL UNIQUE,
    owner         TEXT   COLLATE "C" NOT NULL,
    conversation  TEXT   COLLATE "C" NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    session       TEXT   COLLATE "C",
    origin        TEXT   NOT NULL,
    text          TEXT   NOT NULL,
    created_at    BIGINT NOT NULL,
    edited_at     BIGINT
);
CREATE UNIQUE INDEX memories_of_flushes ON memories (session) WHERE origin = 'flush';
CREATE INDEX memories_of_owner ON memories (owner, no);
CREATE INDEX memories_of_conversation ON memories (conversation, no);

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

CREATE TABLE policies (
    part         TEXT   COLLATE "C" NOT NULL PRIMARY KEY,
    rank         BIGINT NOT NULL,
    value        TEXT   NOT NULL,
    recorded_by  TEXT   COLLATE "C" NOT NULL,
    recorded_at  BIGINT NOT NULL
);

CREATE TABLE logins (
    token_hash  BYTEA  NOT NULL PRIMARY KEY,
    api_key     TEXT   COLLATE "C" NOT NULL,
    created_at  BIGINT NOT NULL,
    expires_at  BIGINT NOT NULL
);

CREATE INDEX logins_of_key ON logins (api_key, created_at);
CREATE INDEX logins_by_expiry ON logins (expires_at);
