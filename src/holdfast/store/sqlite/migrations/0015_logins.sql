-- Browsers that are logged in to the dashboard, on every node of this store.

-- One row per login: the SHA-256 of its token, the API key it stands for, and until when. It ends with that key.
CREATE TABLE logins (
    token_hash  BLOB    NOT NULL PRIMARY KEY,
    api_key     TEXT    NOT NULL,  -- the key's id; of $HOLDFAST_API_KEY a name that another value does not have
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX logins_of_key ON logins (api_key, created_at);
CREATE INDEX logins_by_expiry ON logins (expires_at);
