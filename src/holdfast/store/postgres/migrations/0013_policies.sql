-- What the whole store goes by, whatever the settings of the node that happens to act. See SQLite's migration of this number.

CREATE TABLE policies (
    part         TEXT    COLLATE "C" NOT NULL PRIMARY KEY,
    rank         BIGINT  NOT NULL,
    value        TEXT    NOT NULL,
    recorded_by  TEXT    COLLATE "C" NOT NULL,
    recorded_at  BIGINT  NOT NULL
);

INSERT INTO policies (part, rank, value, recorded_by, recorded_at)
SELECT 'flush', 1, '{"on":true,"min_messages":4}', 'migration 13', coalesce(max(created_at), 0) FROM flushes
WHERE state IN ('pending', 'running', 'done', 'dead') HAVING count(*) > 0;

ALTER TABLE nodes ADD COLUMN stale_ms BIGINT;
