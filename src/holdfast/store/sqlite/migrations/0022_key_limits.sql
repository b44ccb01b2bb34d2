-- API keys: names, expiry, last use, rate limits (0: unlimited), and the connector that is notified when a background
-- response of the key ends (empty: none).
ALTER TABLE api_keys ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE api_keys ADD COLUMN expires_at INTEGER;
ALTER TABLE api_keys ADD COLUMN last_used_at INTEGER;
ALTER TABLE api_keys ADD COLUMN requests_per_minute INTEGER NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN requests_per_day INTEGER NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN tokens_per_minute INTEGER NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN tokens_per_day INTEGER NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN webhook TEXT NOT NULL DEFAULT '';

-- What requests with a limited key used in its last minute and day: windows of UTC, numbered from 1970.
CREATE TABLE key_usage (
    api_key          TEXT    NOT NULL PRIMARY KEY REFERENCES api_keys (id) ON DELETE CASCADE,
    minute           INTEGER NOT NULL,
    day              INTEGER NOT NULL,
    minute_requests  INTEGER NOT NULL,
    day_requests     INTEGER NOT NULL,
    minute_tokens    INTEGER NOT NULL,
    day_tokens       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
