-- Each reads only the oldest rows, so that a pass with nothing to do costs nothing.
-- bigint: before, limit, now

-- fragment: goes_on
(c.turn IS NOT NULL OR c.queued > 0 OR (s.ended_at IS NULL AND s.attached = TRUE)
  OR EXISTS (SELECT 1 FROM processes p WHERE p.conversation = c.id AND p.ended_at IS NULL)
  OR EXISTS (SELECT 1 FROM flushes f WHERE f.conversation = c.id AND f.state IN ('pending', 'running')))

-- name: old_conversations
-- Conversations without activity since then that are not in use, the longest inactive first.
SELECT c.id FROM sessions s JOIN conversations c ON c.id = s.conversation AND c.tip = s.id
WHERE s.last_activity_at < :before AND NOT {goes_on}
ORDER BY s.last_activity_at LIMIT :limit FOR UPDATE OF c SKIP LOCKED;

-- name: is_old_conversation
-- locks: lock_conversation(id)
-- The same of one conversation, read under its lock.
SELECT 1 FROM sessions s JOIN conversations c ON c.id = s.conversation AND c.tip = s.id
WHERE c.id = :id AND s.last_activity_at < :before AND NOT {goes_on};

-- name: old_conversations_spared
-- How many are past their retention but kept because they are in use.
SELECT count(*) FROM sessions s JOIN conversations c ON c.id = s.conversation AND c.tip = s.id
WHERE s.last_activity_at < :before AND {goes_on};

-- name: prune_drafts
-- Drafts of ended turns; afterwards a stream is rendered from the final message.
DELETE FROM drafts WHERE no IN (
    SELECT no FROM drafts
    WHERE created_at < :before AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = turn AND t.status = 'running')
    ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED);

-- name: prune_events
-- scans: one end
DELETE FROM events WHERE id IN (
    SELECT id FROM (SELECT id, at FROM events ORDER BY id LIMIT :limit) oldest WHERE at < :before);

-- name: prune_nodes
-- Nodes that are gone and have no orphans.
DELETE FROM nodes WHERE id IN (
    SELECT id FROM nodes WHERE settled_at IS NOT NULL AND settled_at < :before ORDER BY settled_at LIMIT :limit
    FOR UPDATE SKIP LOCKED);

-- name: prune_requests
-- scans: one end
-- A later retry is a new request.
DELETE FROM requests WHERE turn IN (
    SELECT turn FROM (SELECT turn, created_at FROM requests ORDER BY turn LIMIT :limit) oldest
    WHERE created_at < :before);

-- name: prune_conversation_requests
-- scans: one end
DELETE FROM conversation_requests WHERE no IN (
    SELECT no FROM (SELECT no, created_at FROM conversation_requests ORDER BY no LIMIT :limit) oldest
    WHERE created_at < :before);

-- name: prune_stored_requests
-- Of turns that failed or were interrupted long enough ago; a later retry asks as the settings say.
UPDATE turns SET request = NULL, kept_until = NULL WHERE no IN (
    SELECT no FROM turns WHERE kept_until < :now ORDER BY kept_until LIMIT :limit FOR UPDATE SKIP LOCKED);
