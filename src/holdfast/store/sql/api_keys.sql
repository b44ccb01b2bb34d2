-- bigint: created_at, keeps, limit, now, until
-- bytea: secret_hash

-- fragment: key_columns
id, owner, scope, tools, created_at, revoked_at, keeps

-- name: insert_key
-- Zero rows: this id exists already.
INSERT INTO api_keys (id, owner, scope, tools, secret_hash, created_at, keeps)
VALUES (:id, :owner, :scope, :tools, :secret_hash, :created_at, :keeps::bigint) ON CONFLICT DO NOTHING;

-- name: key_by_id
SELECT {key_columns}, secret_hash FROM api_keys WHERE id = :id;

-- name: keys_of
-- scans: a small table
-- Full scan: keys are made by hand, so there are few.
SELECT {key_columns} FROM api_keys WHERE :owner::text IS NULL OR owner = :owner ORDER BY created_at, id;

-- name: revoke_key
-- Idempotent: a revoked key keeps its first time.
UPDATE api_keys SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL;

-- name: insert_login
INSERT INTO logins (token_hash, api_key, created_at, expires_at) VALUES (:secret_hash, :name, :now, :until);

-- name: login_by_token
SELECT api_key FROM logins WHERE token_hash = :secret_hash AND expires_at > :now;

-- name: delete_login
DELETE FROM logins WHERE token_hash = :secret_hash;

-- name: delete_logins_of_key
DELETE FROM logins WHERE api_key = :name;

-- name: drop_oldest_logins
-- All but the newest of one key: another key's logins are never touched.
DELETE FROM logins WHERE token_hash IN (
    SELECT token_hash FROM logins WHERE api_key = :name ORDER BY created_at DESC, token_hash LIMIT -1 OFFSET :limit);

-- name: prune_logins
-- Expired ones of any key, a bounded number at a time.
DELETE FROM logins WHERE token_hash IN (
    SELECT token_hash FROM logins WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit);
