-- bigint: created_at, day, expires_at, keeps, limit, minute, now, requests_per_day, requests_per_minute, tokens
-- bigint: tokens_per_day, tokens_per_minute, until
-- bytea: secret_hash

-- fragment: key_columns
id, owner, scope, tools, created_at, revoked_at, keeps, name, expires_at, last_used_at,
requests_per_minute, requests_per_day, tokens_per_minute, tokens_per_day, webhook

-- name: insert_key
-- Zero rows: this id exists already.
INSERT INTO api_keys (id, owner, scope, tools, secret_hash, created_at, keeps, name, expires_at,
                      requests_per_minute, requests_per_day, tokens_per_minute, tokens_per_day, webhook)
VALUES (:id, :owner, :scope, :tools, :secret_hash, :created_at, :keeps::bigint, :name, :expires_at,
        :requests_per_minute, :requests_per_day, :tokens_per_minute, :tokens_per_day, :webhook)
ON CONFLICT DO NOTHING;

-- name: key_by_id
SELECT {key_columns}, secret_hash FROM api_keys WHERE id = :id;

-- name: keys_of
-- scans: a small table
-- Full scan: keys are made by hand, so there are few.
SELECT {key_columns} FROM api_keys WHERE :owner::text IS NULL OR owner = :owner ORDER BY created_at, id;

-- name: revoke_key
-- Idempotent: a revoked key keeps its first time.
UPDATE api_keys SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL;

-- name: note_key_use
-- May change no row: the key is revoked, or another node has noted a later use.
UPDATE api_keys SET last_used_at = :now
WHERE id = :id AND revoked_at IS NULL AND (last_used_at IS NULL OR last_used_at < :now);

-- fragment: is_new_minute
-- A new minute begins at 0. The one right before the stored one, by the clock of a node that is late, counts as the stored one.
-- An earlier one is new too: the clock was set back, and nothing would be counted anew until it is there again.
key_usage.minute NOT BETWEEN :minute AND :minute + 1

-- fragment: is_new_day
key_usage.day NOT BETWEEN :day AND :day + 1

-- name: count_request
-- One more request in the current minute and day. Zero rows: a limit is reached, and nothing is counted.
INSERT INTO key_usage (api_key, minute, day, minute_requests, day_requests, minute_tokens, day_tokens)
VALUES (:name, :minute, :day, 1, 1, 0, 0)
ON CONFLICT (api_key) DO UPDATE
SET minute = CASE WHEN {is_new_minute} THEN :minute ELSE key_usage.minute END,
    day = CASE WHEN {is_new_day} THEN :day ELSE key_usage.day END,
    minute_requests = 1 + CASE WHEN {is_new_minute} THEN 0 ELSE key_usage.minute_requests END,
    minute_tokens = CASE WHEN {is_new_minute} THEN 0 ELSE key_usage.minute_tokens END,
    day_requests = 1 + CASE WHEN {is_new_day} THEN 0 ELSE key_usage.day_requests END,
    day_tokens = CASE WHEN {is_new_day} THEN 0 ELSE key_usage.day_tokens END
WHERE ({is_new_minute}
       OR ((:requests_per_minute = 0 OR key_usage.minute_requests < :requests_per_minute)
           AND (:tokens_per_minute = 0 OR key_usage.minute_tokens < :tokens_per_minute)))
  AND ({is_new_day}
       OR ((:requests_per_day = 0 OR key_usage.day_requests < :requests_per_day)
           AND (:tokens_per_day = 0 OR key_usage.day_tokens < :tokens_per_day)));

-- name: count_tokens
-- rows: any
-- The tokens of an answer, in the minute and day in which it ended.
INSERT INTO key_usage (api_key, minute, day, minute_requests, day_requests, minute_tokens, day_tokens)
VALUES (:name, :minute, :day, 0, 0, :tokens, :tokens)
ON CONFLICT (api_key) DO UPDATE
SET minute = CASE WHEN {is_new_minute} THEN :minute ELSE key_usage.minute END,
    day = CASE WHEN {is_new_day} THEN :day ELSE key_usage.day END,
    minute_requests = CASE WHEN {is_new_minute} THEN 0 ELSE key_usage.minute_requests END,
    minute_tokens = :tokens + CASE WHEN {is_new_minute} THEN 0 ELSE key_usage.minute_tokens END,
    day_requests = CASE WHEN {is_new_day} THEN 0 ELSE key_usage.day_requests END,
    day_tokens = :tokens + CASE WHEN {is_new_day} THEN 0 ELSE key_usage.day_tokens END;

-- name: key_use
SELECT minute, day, minute_requests, day_requests, minute_tokens, day_tokens FROM key_usage WHERE api_key = :name;

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
