-- bigint: limit, next_due_at, now, recheck_at, soon

-- name: resets_waiting
-- Sessions due by the policies of this stamp, deferred or not, the longest due first. Every deferred one is checked
-- again by `soon`, so the index scan ends there.
SELECT {session_columns} FROM {session_tables}
WHERE s.ended_at IS NULL AND s.next_due_at IS NOT NULL AND s.dated_by = :stamp
  AND coalesce(s.recheck_at, s.next_due_at) <= :soon AND s.next_due_at <= :now AND (:owner::text IS NULL OR +s.owner = :owner)
ORDER BY coalesce(s.recheck_at, s.next_due_at) LIMIT :limit;

-- name: date_session
-- rows: any
-- Sets when it is due, by the policies of this stamp. Clears its deferral.
UPDATE sessions SET next_due_at = :next_due_at, dated_by = :stamp, recheck_at = NULL, deferral = NULL
WHERE id = :id AND ended_at IS NULL;

-- name: defer_session
-- rows: any
UPDATE sessions SET recheck_at = :recheck_at, deferral = :deferral WHERE id = :id AND ended_at IS NULL;

-- name: deferral
SELECT deferral FROM sessions WHERE id = :id;

-- name: due_sessions
-- Sessions due now by the policies of this stamp, the longest due first. Cost depends on what is due, not on what is
-- stored.
SELECT id FROM sessions
WHERE ended_at IS NULL AND next_due_at IS NOT NULL AND dated_by = :stamp AND coalesce(recheck_at, next_due_at) <= :now
ORDER BY coalesce(recheck_at, next_due_at) LIMIT :limit;

-- name: dated_by_others
-- Open sessions scheduled under other policies: three short index scans.
SELECT id FROM (SELECT id FROM sessions WHERE ended_at IS NULL AND dated_by IS NULL LIMIT :limit)
UNION ALL SELECT id FROM (SELECT id FROM sessions WHERE ended_at IS NULL AND dated_by < :stamp LIMIT :limit)
UNION ALL SELECT id FROM (SELECT id FROM sessions WHERE ended_at IS NULL AND dated_by > :stamp LIMIT :limit)
LIMIT :limit;

-- fragment: counts_for_clients
m.conversation = :conversation AND m.deleted_at IS NULL AND NOT m.inner
  AND NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = m.conversation AND e.seq = m.seq)

-- name: newest_question
-- The first of the user messages that follow each other up to the newest one.
SELECT m.seq FROM messages m
WHERE {counts_for_clients} AND m.role = 'user' AND m.seq > coalesce((
    SELECT m.seq FROM messages m
    WHERE {counts_for_clients} AND m.role <> 'user' AND m.seq < (
        SELECT m.seq FROM messages m WHERE {counts_for_clients} AND m.role = 'user' ORDER BY m.seq DESC LIMIT 1)
    ORDER BY m.seq DESC LIMIT 1), 0)
ORDER BY m.seq LIMIT 1;
