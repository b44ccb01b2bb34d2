-- name: headings
-- The beginnings of three messages of each conversation: the first two of a person among its first (agent programs send one of
-- their own), and the last with text.
-- Only the first few messages are read: a conversation without such a message has no words.
SELECT c.id,
       (SELECT substr(m.body, 1, 4000) FROM messages m
        WHERE m.conversation = c.id AND m.seq <= 20 AND m.role = 'user' AND m.deleted_at IS NULL
        ORDER BY m.seq LIMIT 1),
       (SELECT substr(m.body, 1, 4000) FROM messages m
        WHERE m.conversation = c.id AND m.seq <= 20 AND m.role = 'user' AND m.deleted_at IS NULL
        ORDER BY m.seq LIMIT 1 OFFSET 1),
       (SELECT substr(m.body, 1, 2000) FROM messages m
        WHERE m.conversation = c.id AND m.seq > c.last_seq - 20 AND m.role IN ('user', 'assistant')
          AND m.deleted_at IS NULL AND NOT m.inner AND m.calls IS NULL
        ORDER BY m.seq DESC LIMIT 1)
FROM json_each(:ids) given JOIN conversations c ON c.id = given.value;
