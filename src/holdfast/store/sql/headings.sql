-- fragment: given_ids
json_each(:ids) given

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
FROM {given_ids} JOIN conversations c ON c.id = given.value;

-- name: words_of_sessions
-- The beginning of the first message of a person in each session, among its first twenty.
SELECT s.id, (SELECT substr(m.body, 1, 4000) FROM messages m
              WHERE m.conversation = s.conversation AND m.seq BETWEEN s.first_seq AND s.first_seq + 19
                AND m.session = s.id AND m.role = 'user' AND m.deleted_at IS NULL
              ORDER BY m.seq LIMIT 1)
FROM {given_ids} JOIN sessions s ON s.id = given.value;

-- name: sums_of_conversations
-- What the sessions of each conversation add up to, and the model that answered last.
SELECT c.id, c.last_seq, count(*), sum(s.input_tokens), sum(s.output_tokens),
       (SELECT t.model FROM turns t WHERE t.conversation = c.id AND t.model IS NOT NULL ORDER BY t.no DESC LIMIT 1)
FROM {given_ids} JOIN conversations c ON c.id = given.value JOIN sessions s ON s.conversation = c.id
GROUP BY c.id, c.last_seq;
