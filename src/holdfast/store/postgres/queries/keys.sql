-- fragment: key_columns
id, owner, scope, tools, created_at, revoked_at

-- name: insert_key
-- Zero rows: this id is known already.
INSERT INTO api_keys (id, owner, scope, tools, secret_hash, created_at)
VALUES (:id, :owner, :scope, :tools, :secret_hash, :created_at) ON CONFLICT DO NOTHING;

-- name: key_by_id
SELECT {key_columns}, secret_hash FROM api_keys WHERE id = :id;

-- name: keys_of
-- All of them are looked at: there are as many as people made by hand.
SELECT {key_columns} FROM api_keys WHERE :owner::text IS NULL OR owner = :owner ORDER BY created_at, id;

-- name: revoke_key
-- Once: a key that was revoked keeps its time.
UPDATE api_keys SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL;
