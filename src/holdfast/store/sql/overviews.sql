-- bigint: looked_at, since

-- name: figures
-- Open sessions, running turns, messages and events ever written, undelivered notices.

-- name: turns_ended
-- Of the newest turns, those that ended since then, the newest first. Reads `looked_at` turns at most.
SELECT owner, status, started_at, ended_at, model, coalesce(error, why), usage FROM turns
WHERE no > (SELECT max(no) FROM turns) - :looked_at AND ended_at >= :since AND status <> 'queued' AND due_at IS NULL
  AND (:owner::text IS NULL OR owner = :owner)
ORDER BY no DESC;

-- name: oldest_counted
-- When the oldest of this many newest turns began; no row: there are no more turns than that.
SELECT started_at FROM turns WHERE no <= (SELECT max(no) FROM turns) - :looked_at ORDER BY no DESC LIMIT 1;

-- name: store_id
-- scans: a small table
SELECT id FROM store;

-- name: session_totals
-- scans: whole tables
SELECT count(*), count(*) FILTER (WHERE ended_at IS NULL) FROM sessions WHERE :owner::text IS NULL OR owner = :owner;

-- name: session_end_reasons
-- scans: whole tables
SELECT end_reason, count(*) FROM sessions WHERE ended_at IS NOT NULL AND (:owner::text IS NULL OR owner = :owner)
GROUP BY end_reason ORDER BY 2 DESC, 1;

-- name: session_sources
-- scans: whole tables
SELECT source, count(*) FROM sessions WHERE :owner::text IS NULL OR owner = :owner GROUP BY source ORDER BY 2 DESC, 1;

-- name: message_total
-- scans: whole tables
SELECT count(*) FROM messages m WHERE :owner::text IS NULL OR EXISTS (
    SELECT 1 FROM conversations c WHERE c.id = m.conversation AND c.owner = :owner);

-- name: conversation_total
-- scans: whole tables
SELECT count(*) FROM conversations WHERE :owner::text IS NULL OR owner = :owner;
