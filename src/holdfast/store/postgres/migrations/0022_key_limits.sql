-- API keys: names, expiry, last use and rate limits. See SQLite's migration 22.
ALTER TABLE api_keys ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE api_keys ADD COLUMN expires_at BIGINT;
ALTER TABLE api_keys ADD COLUMN last_used_at BIGINT;
ALTER TABLE api_keys ADD COLUMN requests_per_minute BIGINT NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN requests_per_day BIGINT NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN tokens_per_minute BIGINT NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN tokens_per_day BIGINT NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN webhook TEXT NOT NULL DEFAULT '';

CREATE TABLE key_usage (
    api_key          TEXT    COLLATE "C" PRIMARY KEY REFERENCES api_keys (id) ON DELETE CASCADE,
    minute           BIGINT  NOT NULL,
    day              BIGINT  NOT NULL,
    minute_requests  BIGINT  NOT NULL,
    day_requests     BIGINT  NOT NULL,
    minute_tokens    BIGINT  NOT NULL,
    day_tokens       BIGINT  NOT NULL
);
