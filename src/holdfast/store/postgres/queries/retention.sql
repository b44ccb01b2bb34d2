-- Each looks at the oldest rows only, so that a pass with nothing to do costs nothing.

-- name: prune_drafts
-- Checkpoints of turns that have ended; a stream is rendered from the final message afterwards.
DELETE FROM drafts WHERE no IN (
    SELECT no FROM drafts
    WHERE created_at < :before AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = turn AND t.status = 'running')
    ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED);

-- name: prune_events
DELETE FROM events WHERE id IN (
    SELECT id FROM (SELECT id, at FROM events ORDER BY id LIMIT :limit) oldest WHERE at < :before);

-- name: prune_nodes
-- Processes that are gone and have left nothing behind.
DELETE FROM nodes WHERE id IN (
    SELECT id FROM nodes WHERE settled_at IS NOT NULL AND settled_at < :before ORDER BY settled_at LIMIT :limit
    FOR UPDATE SKIP LOCKED);

-- name: prune_requests
-- A retry that comes later than this is a new request.
DELETE FROM requests WHERE turn IN (
    SELECT turn FROM (SELECT turn, created_at FROM requests ORDER BY turn LIMIT :limit) oldest
    WHERE created_at < :before);
