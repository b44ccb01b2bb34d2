-- bigint: first, last, offset, seq

-- name: forks_of_conversation
-- The first sessions of conversations that were forked from one of this one's sessions.
SELECT {session_columns} FROM {session_tables}
WHERE s.ordinal = 1 AND (:owner::text IS NULL OR s.owner = :owner) AND s.conversation IN (
    SELECT id FROM conversations WHERE forked_from IN (SELECT id FROM sessions WHERE conversation = :conversation))
ORDER BY s.opened_at, s.id;

-- name: last_own_result
-- The seq up to which results of the server's own tools directly follow a message that contains their calls.
SELECT coalesce(min(seq) - 1, :last) FROM messages
WHERE conversation = :conversation AND seq > :seq AND seq <= :last AND NOT ("inner" AND role = 'tool');

-- name: count_copied
-- How many messages of a span a fork would copy, and their bytes.
SELECT count(*), coalesce(sum(length(m.body)), 0)::bigint FROM messages m
WHERE m.conversation = :conversation AND m.seq BETWEEN :first AND :last AND m.deleted_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = m.conversation AND e.seq = m.seq);

-- name: copy_messages
-- A fork copies a span of its source's view, numbered on from :offset, and records each message's origin.
INSERT INTO messages (conversation, seq, session, role, status, calls, answers, created_at, origin, body, inner, own_calls,
                      extra)
SELECT :target, :offset + row_number() OVER (ORDER BY m.seq), :session, m.role, m.status, m.calls, m.answers,
       m.created_at, coalesce(m.origin, 'msg_' || substr(m.conversation, 6) || '_' || m.seq), m.body, m.inner, m.own_calls,
       m.extra
FROM messages m
WHERE m.conversation = :conversation AND m.seq BETWEEN :first AND :last AND m.deleted_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = m.conversation AND e.seq = m.seq)
ORDER BY m.seq;
