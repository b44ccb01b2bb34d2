-- bigint: delivery, now, since
-- bytea: body_hash

-- name: turn_by_request
-- many: owner, route, key
-- locks: lock_by_request(owner, route, key)
-- conversation in: column 1
-- The turn of a request key, and the fingerprint of its request.
SELECT {columns_of_turn}, r.body_hash
FROM requests r JOIN turns t ON t.no = r.turn
WHERE r.owner = :owner AND r.route = :route AND r.key = :key AND r.created_at >= :since;

-- name: insert_request
-- many: owner, route, key
-- rows: any
INSERT INTO requests (turn, owner, route, key, body_hash, created_at)
SELECT no, :owner, :route, :key, :body_hash, :now FROM turns WHERE id = :turn;

-- name: replace_request
-- many: owner, route, key
-- rows: any
-- A body without a key belongs to the newest request that sent it.
INSERT INTO requests (turn, owner, route, key, body_hash, created_at)
SELECT no, :owner, :route, :key, :body_hash, :now FROM turns WHERE id = :turn
ON CONFLICT (owner, route, key) DO UPDATE
SET turn = excluded.turn, body_hash = excluded.body_hash, created_at = excluded.created_at;

-- name: renew_request
-- rows: any
-- The same turn, retried; or a body that turned out to belong to two conversations.
UPDATE requests SET body_hash = :body_hash WHERE owner = :owner AND route = :route AND key = :key;

-- name: conversation_by_request
-- The conversation that a request with this key created, and the fingerprint of that request. Two such requests at once on
-- PostgreSQL: the second insert fails on the key and its transaction is run again, which finds this row.
SELECT conversation, body_hash FROM conversation_requests WHERE owner = :owner AND route = :route AND key = :key;

-- name: insert_conversation_request
INSERT INTO conversation_requests (conversation, owner, route, key, body_hash, created_at)
VALUES (:conversation, :owner, :route, :key, :body_hash, :now);

-- name: note_delivery
-- What clients have received. `WHOLE` never changes back. May change no row.
UPDATE turns SET delivery = :delivery WHERE id = :id AND delivery < 3;
