-- bigint: first, last, limit, now, seq

-- fragment: in_context
-- The first of the two is evaluated once: most conversations exclude nothing.
FROM messages m
WHERE m.conversation = :conversation AND m.seq BETWEEN :first AND :last AND m.deleted_at IS NULL
  AND (NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = :conversation)
       OR NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = m.conversation AND e.seq = m.seq))

-- name: context_forward
-- The messages of a span that are in the context, tool messages of the server included.
SELECT {message_columns} {in_context} ORDER BY m.seq LIMIT :limit;

-- name: context_backward
-- The same, the newest first.
SELECT {message_columns} {in_context} ORDER BY m.seq DESC LIMIT :limit;

-- name: context_bodies_forward
SELECT m.body, m.extra {in_context} ORDER BY m.seq LIMIT :limit;

-- name: context_bodies_backward
SELECT m.body, m.extra {in_context} ORDER BY m.seq DESC LIMIT :limit;

-- name: exclude_range
-- rows: any
-- These messages leave every context and stay readable. Those excluded before keep their reason.
INSERT INTO exclusions (conversation, seq, reason, created_at)
SELECT m.conversation, m.seq, :reason, :now FROM messages m
WHERE m.conversation = :conversation AND m.seq BETWEEN :first AND :last AND m.deleted_at IS NULL
ON CONFLICT DO NOTHING;

-- name: set_view
-- rows: any
-- Only of an open session: what an ended one showed never changes.
UPDATE sessions SET view = :view WHERE id = :id AND ended_at IS NULL;

-- name: name_message
-- many: conversation
-- rows: any
-- No row: the name is known.
INSERT INTO message_names (conversation, name, seq) VALUES (:conversation, :name, :seq) ON CONFLICT DO NOTHING;

-- name: named_message
-- many: conversation
-- usually: empty
-- Read under the conversation's lock.
SELECT seq FROM message_names WHERE conversation = :conversation AND name = :name;

-- name: copy_message_names
-- rows: any
-- A fork knows the names of all messages of its source, so that none of them is stored in it again.
INSERT INTO message_names (conversation, name, seq)
SELECT :target, name, seq FROM message_names WHERE conversation = :conversation ON CONFLICT DO NOTHING;
