-- name: figures
-- Open sessions, running turns, messages and events ever written, undelivered notices. Many open sessions or notices
-- are estimated from PostgreSQL's statistics: counting a million would take a second.
SELECT (SELECT CASE WHEN n <= 10000 THEN n
                    ELSE greatest(n, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'sessions_one_open'::regclass)) END
        FROM (SELECT count(*) AS n FROM (SELECT 1 FROM sessions WHERE ended_at IS NULL LIMIT 10001) AS few) AS counted),
       (SELECT count(*) FROM conversations WHERE holder IS NOT NULL),
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM messages_no_seq),
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM events_id_seq),
       (SELECT CASE WHEN n <= 10000 THEN n
                    ELSE greatest(n, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'notices_undelivered_in_order'::regclass)) END
        FROM (SELECT count(*) AS n FROM (SELECT 1 FROM notices WHERE delivered_at IS NULL LIMIT 10001) AS few) AS counted);

-- name: event_from
-- The first event with this number or a higher one.
SELECT id, at FROM events WHERE id >= :id::bigint ORDER BY id LIMIT 1;

-- name: turns_ended
-- How many turns ended in each step of time, by the type of their event.
SELECT at / :step, type, count(*) FROM events
WHERE id > :after AND type IN ('turn.completed', 'turn.interrupted', 'turn.failed', 'turn.cancelled')
  AND (:owner::text IS NULL OR owner = :owner)
GROUP BY 1, 2;
