-- bigint: below, limit, now

-- fragment: memory_columns
m.id, m.owner, m.conversation, c.key, m.session, m.text, m.origin, m.created_at, m.edited_at

-- fragment: memory_tables
memories m JOIN conversations c ON c.id = m.conversation

-- name: insert_memory
-- The unique index allows one per flushed session.
INSERT INTO memories (id, owner, conversation, session, origin, text, created_at)
VALUES (:id, :owner, :conversation, :session, :origin, :text, :now);

-- name: memory_by_id
SELECT {memory_columns} FROM {memory_tables} WHERE m.id = :id AND (:owner::text IS NULL OR m.owner = :owner);

-- name: bytes_with_memories
-- The bytes of a conversation as its quota counts them, and those of its memories.
SELECT c.bytes + (SELECT coalesce(sum(octet_length(m.text)), 0)::bigint FROM memories m WHERE m.conversation = c.id)
FROM conversations c WHERE c.id = :conversation;

-- name: memory_number
SELECT no FROM memories WHERE id = :id;

-- name: edit_memory
UPDATE memories SET text = :text, edited_at = :now WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- name: forget_memory
-- Deletes the whole row.
DELETE FROM memories WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- name: memories_of_owner
-- A page, the newest first, below the cursor, each with its number.
SELECT m.no, {memory_columns} FROM {memory_tables}
WHERE m.owner = :owner AND m.no < :below ORDER BY m.no DESC LIMIT :limit;

-- name: memories_of_all
-- The same for an operator, for a key of any owner.
SELECT m.no, {memory_columns} FROM {memory_tables}
WHERE m.no < :below AND (:key::text IS NULL OR c.key = :key) ORDER BY m.no DESC LIMIT :limit;

-- name: memories_of_conversation
-- The same of one conversation.
SELECT m.no, {memory_columns} FROM {memory_tables}
WHERE m.conversation = :conversation AND (:owner::text IS NULL OR m.owner = :owner) AND m.no < :below
ORDER BY m.no DESC LIMIT :limit;
