-- bigint: all_tries, due_at, kept_until, limit, now, refusals, refused_since, step_seq, stops, tries

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

-- name: park_turn
-- rows: any
-- After `settle_turn`: the turn waits to be retried.
UPDATE turns SET due_at = :due_at, cause = :cause, tries = :tries, all_tries = :all_tries, stops = :stops,
                 refusals = :refusals, refused_since = :refused_since, step_seq = :step_seq, kept_until = NULL
WHERE id = :id;

-- name: end_waiting_turn
-- rows: one
-- A waiting turn is given up, withdrawn or cancelled; it ended when its last attempt did.
UPDATE turns SET status = :status, error = :error, why = :why, due_at = NULL, cause = NULL, kept_until = :kept_until,
                 request = CASE WHEN :kept_until::bigint IS NULL THEN NULL ELSE request END
WHERE id = :id AND due_at IS NOT NULL;

-- name: is_waiting
SELECT 1 FROM turns WHERE id = :id AND due_at IS NOT NULL;
