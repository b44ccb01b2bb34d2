-- name: figures
-- Open sessions, running turns, messages and events ever written, undelivered notices. Counts only through small
-- indexes.
SELECT (SELECT count(*) FROM sessions WHERE ended_at IS NULL),
       (SELECT count(*) FROM conversations WHERE holder IS NOT NULL),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0),
       (SELECT count(*) FROM notices WHERE delivered_at IS NULL);

-- name: event_from
-- The first event with this number or a higher one.
SELECT id, at FROM events WHERE id >= :id ORDER BY id LIMIT 1;

-- name: turns_ended
-- How many turns ended in each step of time, by the type of their event.
SELECT at / :step, type, count(*) FROM events
WHERE id > :after AND type IN ('turn.completed', 'turn.interrupted', 'turn.failed', 'turn.cancelled')
  AND (:owner IS NULL OR owner = :owner)
GROUP BY 1, 2;
