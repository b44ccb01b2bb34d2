-- name: figures
-- Open sessions, running turns, messages and events ever written, notices nobody was told of. Counts only what
-- small indexes hold.
SELECT (SELECT count(*) FROM sessions WHERE ended_at IS NULL),
       (SELECT count(*) FROM conversations WHERE holder IS NOT NULL),
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM messages_no_seq),
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM events_id_seq),
       (SELECT count(*) FROM notices WHERE delivered_at IS NULL);

-- name: event_from
-- The first event of this number or a higher one.
SELECT id, at FROM events WHERE id >= :id::bigint ORDER BY id LIMIT 1;

-- name: turns_ended
-- How many turns ended in each step of time, by the type of their event.
SELECT at / :step, type, count(*) FROM events
WHERE id > :after AND type IN ('turn.completed', 'turn.interrupted', 'turn.failed', 'turn.cancelled')
  AND (:owner::text IS NULL OR owner = :owner)
GROUP BY 1, 2;
