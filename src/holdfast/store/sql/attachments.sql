-- bigint: behind, limit, now, size
-- bytea: body

-- fragment: attachment_columns
a.no, a.id, a.conversation, a.turn, a.name, a.mime, a.size, a.created_at

-- name: insert_attachment
-- No row: it is stored already.
INSERT INTO attachments (id, conversation, turn, source, name, mime, size, body, created_at)
VALUES (:id, :conversation, :turn, :source, :name, :mime, :size, :body, :now) ON CONFLICT DO NOTHING;

-- name: attachments_of_turn
SELECT a.source, {attachment_columns} FROM attachments a WHERE a.turn = :turn ORDER BY a.no;

-- name: attachments_of_conversation
SELECT {attachment_columns} FROM attachments a WHERE a.conversation = :conversation AND a.no > :behind
ORDER BY a.no LIMIT :limit;

-- name: attachment_by_id
SELECT a.body, {attachment_columns} FROM attachments a JOIN conversations c ON c.id = a.conversation
WHERE a.id = :id AND (:owner::text IS NULL OR c.owner = :owner);
