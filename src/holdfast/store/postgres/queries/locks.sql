-- Locks that a writing transaction takes before it reads and decides: see `transaction.py`.

-- name: lock_conversation
SELECT id FROM conversations WHERE id = :id FOR NO KEY UPDATE;

-- name: lock_by_session
SELECT id FROM conversations WHERE id = (SELECT conversation FROM sessions WHERE id = :id) FOR NO KEY UPDATE;

-- name: lock_by_turn
SELECT id FROM conversations WHERE id = (SELECT conversation FROM turns WHERE id = :id) FOR NO KEY UPDATE;

-- name: lock_by_response
SELECT id FROM conversations
WHERE id = (SELECT t.conversation FROM responses r JOIN turns t ON t.id = r.turn WHERE r.id = :id) FOR NO KEY UPDATE;

-- name: lock_by_key
SELECT id FROM conversations WHERE owner = :owner AND key = :key FOR NO KEY UPDATE;

-- name: lock_by_key_anywhere
SELECT id FROM conversations WHERE key = :key ORDER BY id FOR NO KEY UPDATE;

-- name: lock_by_alias
SELECT id FROM conversations
WHERE id = (SELECT conversation FROM aliases WHERE owner = :owner AND alias = :id) FOR NO KEY UPDATE;

-- name: lock_by_alias_anywhere
SELECT id FROM conversations
WHERE id IN (SELECT conversation FROM aliases WHERE alias = :id) ORDER BY id FOR NO KEY UPDATE;

-- name: lock_by_request
SELECT id FROM conversations
WHERE id = (SELECT t.conversation FROM requests r JOIN turns t ON t.no = r.turn
            WHERE r.owner = :owner AND r.route = :route AND r.key = :key)
FOR NO KEY UPDATE;

-- name: lock_by_process
-- The conversation first, the same order as for stopping a conversation's processes.
SELECT id FROM conversations WHERE id = (SELECT conversation FROM processes WHERE id = :id) FOR NO KEY UPDATE;

-- name: lock_process
SELECT id FROM processes WHERE id = :id FOR NO KEY UPDATE;

-- name: share_node
-- For starting something in a node's name; heartbeats pass, reaping waits.
SELECT id FROM nodes WHERE id = :id FOR KEY SHARE;

-- name: lock_node
-- For ending a node: waits until everything begun in its name is committed.
SELECT id FROM nodes WHERE id = :id FOR UPDATE;

-- name: lock_unindexed
-- Waits for a node that is indexing this message right now.
SELECT no FROM unindexed WHERE no = :no FOR UPDATE;

-- name: lock_unindexed_of
SELECT no FROM unindexed WHERE no IN (SELECT no FROM messages WHERE conversation = :conversation) FOR UPDATE;

-- name: lock_flush
-- For decisions by a flush's state; claims skip the locked row.
SELECT session FROM flushes WHERE session = :session FOR NO KEY UPDATE;

-- name: lock_import
-- One import of the same item at a time.
SELECT pg_advisory_xact_lock(hashtext('import ' || :owner), hashtext(:origin || ' ' || :name));
