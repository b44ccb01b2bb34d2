-- Processes: what sessions have started in the background.

-- No reference to its conversation: one that is deleted while a process runs must still have it stopped. Its row goes
-- when it has ended. The pid is 0 until it has one.
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
