-- API keys: who may ask the server, and as whom.

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
