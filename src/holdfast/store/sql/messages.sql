-- bigint: first, first_seq, last, limit, seq

-- fragment: message_columns
conversation, seq, session, turn, role, status, created_at, origin, body, gaps, "inner", own_calls, extra

-- name: insert_message

-- fragment: all_between
FROM messages WHERE conversation = :conversation AND seq BETWEEN :first AND :last AND deleted_at IS NULL

-- fragment: shown_between
FROM messages m
WHERE m.conversation = :conversation AND m.seq BETWEEN :first AND :last AND m.deleted_at IS NULL AND NOT m.inner
  AND NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = m.conversation AND e.seq = m.seq)

-- name: messages_forward
SELECT {message_columns} {all_between} ORDER BY seq LIMIT nullif(:limit, -1);

-- name: messages_backward
SELECT {message_columns} {all_between} ORDER BY seq DESC LIMIT nullif(:limit, -1);

-- name: sizes_forward
-- How long the messages of a page are, without reading them.
SELECT seq, length(body) {all_between} ORDER BY seq LIMIT nullif(:limit, -1);

-- name: sizes_backward
SELECT seq, length(body) {all_between} ORDER BY seq DESC LIMIT nullif(:limit, -1);

-- name: visible_messages
-- The newest messages that are visible to clients and still count.
SELECT {message_columns} FROM messages m
WHERE m.conversation = :conversation AND m.deleted_at IS NULL AND NOT m.inner
  AND NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = m.conversation AND e.seq = m.seq)
ORDER BY m.seq DESC LIMIT nullif(:limit, -1);

-- name: shown_forward
-- Like messages_forward, without excluded messages and those hidden from clients.
SELECT {message_columns} {shown_between} ORDER BY m.seq LIMIT nullif(:limit, -1);

-- name: shown_backward
SELECT {message_columns} {shown_between} ORDER BY m.seq DESC LIMIT nullif(:limit, -1);

-- name: shown_sizes_forward
SELECT m.seq, length(m.body) {shown_between} ORDER BY m.seq LIMIT nullif(:limit, -1);

-- name: shown_sizes_backward
SELECT m.seq, length(m.body) {shown_between} ORDER BY m.seq DESC LIMIT nullif(:limit, -1);

-- name: messages_of_turn
SELECT {message_columns} FROM messages
WHERE conversation = (SELECT conversation FROM turns WHERE id = :turn)
  AND seq >= (SELECT first_seq FROM turns WHERE id = :turn) AND turn = :turn AND deleted_at IS NULL ORDER BY seq;

-- name: interrupted_replies_of_turn
-- Partial replies that a retry replaces.
SELECT seq FROM messages
WHERE conversation = :conversation AND seq >= :first_seq AND turn = :turn AND status = 'interrupted';

-- name: context_head
-- Everything that decides whether a cached context is still valid, and its view.
SELECT c.id, c.revision, coalesce(s.last_seq, c.last_seq), s.view
FROM sessions s JOIN conversations c ON c.id = s.conversation
WHERE s.id = :session AND (:owner::text IS NULL OR s.owner = :owner);

-- name: marks
-- Messages of a span that need rendering, by their partial index.
SELECT seq, calls, answers, status, deleted_at IS NOT NULL FROM messages
WHERE conversation = :conversation AND seq BETWEEN :first AND :last
  AND (calls IS NOT NULL OR answers IS NOT NULL OR status <> 'completed' OR deleted_at IS NOT NULL)
ORDER BY seq;

-- name: excluded
SELECT seq FROM exclusions WHERE conversation = :conversation;

-- name: bodies
-- A span of bodies, joined by the database in one value; nothing is decoded.

-- name: body_sizes
-- How long the bodies of a span are, without reading them.
SELECT seq, length(body) FROM messages
WHERE conversation = :conversation AND seq BETWEEN :first AND :last ORDER BY seq;

-- name: body
SELECT body FROM messages WHERE conversation = :conversation AND seq = :seq;

-- name: body_size
SELECT length(body) FROM messages WHERE conversation = :conversation AND seq = :seq AND deleted_at IS NULL;

-- name: newest_mark
-- The newest message's number, the calls it makes and the call it answers.
SELECT seq, calls, answers FROM messages WHERE conversation = :conversation ORDER BY seq DESC LIMIT 1;

-- name: marks_of_turn
-- Tool calls and results of a turn, to find the calls that are still open.
SELECT seq, calls, answers, own_calls FROM messages
WHERE conversation = :conversation AND seq >= :first_seq AND turn = :turn
  AND (calls IS NOT NULL OR answers IS NOT NULL OR status <> 'completed' OR deleted_at IS NOT NULL)
ORDER BY seq;
