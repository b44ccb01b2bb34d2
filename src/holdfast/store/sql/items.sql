-- bigint: expires_at, limit, now, ttl

-- name: put_item
-- many: owner, space, namespace, name
-- rows: any
-- The time of its creation stays.
INSERT INTO items (owner, space, namespace, name, conversation, value, created_at, updated_at, ttl, expires_at)
VALUES (:owner, :space, :namespace, :name, :conversation, :value, :now, :now, :ttl, :expires_at)
ON CONFLICT (owner, space, namespace, name) DO UPDATE
SET value = excluded.value, updated_at = excluded.updated_at, ttl = excluded.ttl, expires_at = excluded.expires_at,
    conversation = excluded.conversation;

-- name: item
-- many: owner, space, namespace, name
SELECT namespace, name, value, created_at, updated_at, conversation FROM items
WHERE owner = :owner AND space = :space AND namespace = :namespace AND name = :name
  AND (expires_at IS NULL OR expires_at > :now);

-- name: item_size
-- Its bytes and its conversation, though it may have expired. Locked: neither changes before this transaction ends.
SELECT octet_length(value), conversation FROM items
WHERE owner = :owner AND space = :space AND namespace = :namespace AND name = :name FOR NO KEY UPDATE;

-- name: refresh_item
-- rows: any
-- No row: it has no time to live, or is gone.
UPDATE items SET expires_at = :now + ttl
WHERE owner = :owner AND space = :space AND namespace = :namespace AND name = :name AND ttl IS NOT NULL AND expires_at > :now;

-- name: delete_item
-- rows: any
DELETE FROM items WHERE owner = :owner AND space = :space AND namespace = :namespace AND name = :name;

-- name: items_between
-- All items of a range of namespaces, the last changed first.
SELECT namespace, name, value, created_at, updated_at, conversation FROM items
WHERE owner = :owner AND space = :space AND namespace >= :from_namespace AND namespace < :to_namespace
  AND (expires_at IS NULL OR expires_at > :now)
ORDER BY updated_at DESC, namespace, name;

-- name: item_namespaces
SELECT DISTINCT namespace FROM items
WHERE owner = :owner AND space = :space AND (expires_at IS NULL OR expires_at > :now) ORDER BY namespace;

-- name: expired_items
-- Locked, without those that another node is changing.
SELECT owner, space, namespace, name, conversation, octet_length(value) FROM items
WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: lock_if_free
-- A conversation. No row: another node has it locked now, or it was deleted.
SELECT id FROM conversations WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED;
