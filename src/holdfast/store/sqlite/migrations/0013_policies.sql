-- What the whole store goes by, whatever the settings of the node that happens to act.

-- One row for each part: 'flush', 'retention', 'resets'. A server's word replaces any other (rank 3), a library's (2) that of
-- a command (1); 0: what a node assumed whose settings leave it open. `value` is JSON.
CREATE TABLE policies (
    part         TEXT    NOT NULL PRIMARY KEY,
    rank         INTEGER NOT NULL,
    value        TEXT    NOT NULL,
    recorded_by  TEXT    NOT NULL,
    recorded_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A store that has flushed sessions goes on doing so until the next server has recorded its settings.
INSERT INTO policies (part, rank, value, recorded_by, recorded_at)
SELECT 'flush', 1, '{"on":true,"min_messages":4}', 'migration 13', coalesce(max(created_at), 0) FROM flushes
WHERE state IN ('pending', 'running', 'done', 'dead') HAVING count(*) > 0;

-- After how long without a beat a node says it may be taken for hung. NULL: the observer's own setting decides.
ALTER TABLE nodes ADD COLUMN stale_ms INTEGER;
