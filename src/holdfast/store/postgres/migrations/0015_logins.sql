-- Browsers that are logged in to the dashboard, on every node of this store. See SQLite's migration of this number.

CREATE TABLE logins (
    token_hash  BYTEA   NOT NULL PRIMARY KEY,
    api_key     TEXT    COLLATE "C" NOT NULL,
    created_at  BIGINT  NOT NULL,
    expires_at  BIGINT  NOT NULL
);

CREATE INDEX logins_of_key ON logins (api_key, created_at);
CREATE INDEX logins_by_expiry ON logins (expires_at);
