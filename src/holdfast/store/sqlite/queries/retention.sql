-- Each looks at the oldest rows only, so that a pass with nothing to do costs nothing.

-- name: prune_drafts
-- Checkpoints of turns that have ended; a stream is rendered from the final message afterwards.
DELETE FROM drafts WHERE no IN (
    SELECT no FROM (SELECT no, turn, created_at FROM drafts ORDER BY no LIMIT :limit) oldest
    WHERE created_at < :before AND turn NOT IN (SELECT id FROM turns WHERE status = 'running'));

-- name: prune_events
DELETE FROM events WHERE id IN (
    SELECT id FROM (SELECT id, at FROM events ORDER BY id LIMIT :limit) oldest WHERE at < :before);

-- name: prune_requests
-- A retry that comes later than this is a new request.
DELETE FROM requests WHERE (owner, route, key) IN (
    SELECT owner, route, key FROM requests WHERE created_at < :before ORDER BY created_at LIMIT :limit);
