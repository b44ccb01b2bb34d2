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
