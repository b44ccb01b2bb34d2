-- bigint: after, created_at, first, last, limit, now, seq, size
-- bytea: body

-- fragment: attachment_columns
a.no, a.id, a.conversation, a.turn, a.name, a.mime, a.size, a.created_at

-- name: insert_attachment
-- No row: it is stored already.
INSERT INTO attachments (id, conversation, turn, source, name, mime, size, body, created_at)
VALUES (:id, :conversation, :turn, :source, :name, :mime, :size, :body, :now) ON CONFLICT DO NOTHING;

-- name: import_attachment
INSERT INTO attachments (id, conversation, turn, source, name, mime, size, body, created_at)
VALUES (:id, :conversation, :turn, :source, :name, :mime, :size, :body, :created_at);

-- name: taken_attachment
-- The conversations that have a file of this id, or this file of a turn.
SELECT conversation FROM attachments WHERE id = :id
UNION ALL SELECT conversation FROM attachments WHERE turn = :turn AND source = :source;

-- name: attachment_records
-- Without their bytes, of which there may be many.
SELECT id, turn, source, name, mime, created_at FROM attachments WHERE conversation = :conversation ORDER BY no;

-- name: join_attachments
-- rows: any
-- The messages of a queued turn have joined another turn.
UPDATE attachments SET turn = :joined WHERE turn = :turn;

-- name: attachments_without_message
-- Whether a deleted message was the last one of a person in its turn: then the files of the turn go, of so many bytes.
SELECT m.turn, sum(a.size)::bigint FROM messages m JOIN attachments a ON a.turn = m.turn AND a.conversation = m.conversation
WHERE m.conversation = :conversation AND m.seq = :seq AND m.role = 'user'
  AND NOT EXISTS (SELECT 1 FROM messages o WHERE o.conversation = :conversation AND o.turn = m.turn AND o.role = 'user'
                  AND o.deleted_at IS NULL AND o.seq >= (SELECT first_seq FROM turns WHERE id = m.turn))
GROUP BY m.turn;

-- name: delete_attachments
-- rows: any
DELETE FROM attachments WHERE turn = :turn AND conversation = :conversation;

-- name: files_of_span
-- The files of a span that a fork would copy, with their bytes and the origin of the message that they came with. They
-- belong to a turn, or to the origin of a message if that was copied itself.
SELECT a.id, a.size, coalesce(m.origin, 'msg_' || substr(m.conversation, 6) || '_' || m.seq)
FROM messages m JOIN attachments a ON a.conversation = m.conversation AND (a.turn = m.turn OR a.turn = m.origin)
WHERE m.conversation = :conversation AND m.seq BETWEEN :first AND :last AND m.role = 'user' AND m.deleted_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = m.conversation AND e.seq = m.seq)
ORDER BY a.no, m.seq;

-- name: copy_attachment
-- rows: one
INSERT INTO attachments (id, conversation, turn, source, name, mime, size, body, created_at)
SELECT :id, :conversation, :origin, :id, a.name, a.mime, a.size, a.body, a.created_at FROM attachments a WHERE a.id = :copied;

-- name: copied_files_of_message
-- The origin of a message and the bytes of the files that were copied with it.
SELECT m.origin, sum(a.size)::bigint FROM messages m
JOIN attachments a ON a.conversation = m.conversation AND a.turn = m.origin
WHERE m.conversation = :conversation AND m.seq = :seq GROUP BY m.origin;

-- name: attachments_of_turn
SELECT a.source, {attachment_columns} FROM attachments a WHERE a.turn = :turn ORDER BY a.no;

-- name: attachments_of_conversation
SELECT {attachment_columns} FROM attachments a WHERE a.conversation = :conversation AND a.no > :after
ORDER BY a.no LIMIT :limit;

-- name: attachment_by_id
SELECT a.body, {attachment_columns} FROM attachments a JOIN conversations c ON c.id = a.conversation
WHERE a.id = :id AND (:owner::text IS NULL OR c.owner = :owner);
