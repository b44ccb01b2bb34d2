-- bigint: limit, now

-- name: stored_request
SELECT request FROM turns WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- name: due_turns
-- Turns that wait to be retried and are due, the longest due first. One that ended after now is due too: the clock was set
-- back, and the turn would wait for as long.
SELECT {turn_columns} FROM turns WHERE due_at IS NOT NULL AND (due_at <= :now OR ended_at > :now)
  AND status IN ('interrupted', 'failed') ORDER BY due_at LIMIT :limit;

-- name: waiting_turns
-- All turns that wait to be retried, the first due first.
SELECT {turn_columns} FROM turns WHERE due_at IS NOT NULL AND (:owner::text IS NULL OR owner = :owner)
ORDER BY due_at LIMIT :limit;

-- name: count_waiting
SELECT count(*) FROM turns WHERE due_at IS NOT NULL;
