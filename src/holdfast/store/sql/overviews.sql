-- bigint: after, step

-- name: figures
-- Open sessions, running turns, messages and events ever written, undelivered notices.

-- name: event_from
-- The first event with this number or a higher one.
SELECT id, at FROM events WHERE id >= :id::bigint ORDER BY id LIMIT 1;

-- name: turns_ended
-- How many turns ended in each step of time, by the type of their event.
SELECT at / :step, type, count(*) FROM events
WHERE id > :after AND type IN ('turn.completed', 'turn.interrupted', 'turn.failed', 'turn.cancelled')
  AND (:owner::text IS NULL OR owner = :owner)
GROUP BY 1, 2;
