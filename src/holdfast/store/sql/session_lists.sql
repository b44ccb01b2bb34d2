-- bigint: at, limit, looked_at, since
-- boolean: ended, newest

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

-- name: sessions_beginning
SELECT id FROM sessions
WHERE id >= :id AND id < :id_end AND (:owner::text IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: conversations_beginning
SELECT id FROM conversations
WHERE id >= :id AND id < :id_end AND (:owner::text IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: turns_beginning
SELECT id FROM turns
WHERE id >= :id AND id < :id_end AND (:owner::text IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: responses_beginning
SELECT id FROM responses
WHERE id >= :id AND id < :id_end AND (:owner::text IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: processes_beginning
SELECT id FROM processes
WHERE id >= :id AND id < :id_end AND (:owner::text IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: memories_beginning
SELECT id FROM memories
WHERE id >= :id AND id < :id_end AND (:owner::text IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: notices_beginning
SELECT id FROM notices
WHERE id >= :id AND id < :id_end AND (:owner::text IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: keys_beginning
SELECT id FROM api_keys
WHERE id >= :id AND id < :id_end AND (:owner::text IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: line_of_sessions
-- All sessions of a conversation, oldest first.
SELECT {session_columns} FROM {session_tables}
WHERE s.conversation = :conversation AND (:owner::text IS NULL OR s.owner = :owner) ORDER BY s.ordinal;

-- fragment: session_filter
AND (:ended::boolean IS NULL OR (s.ended_at IS NOT NULL) = :ended) AND (:source::text IS NULL OR s.source = :source)
AND (:key::text IS NULL OR c.key = :key) AND (NOT :newest OR c.tip IS NOT DISTINCT FROM s.id)
AND (:title::text IS NULL OR strpos(lower(coalesce(c.title, '') || ' ' || coalesce(c.key, '')), lower(:title)) > 0)

-- fragment: paged_tables
-- LEFT JOIN: a page reads its sessions in order and looks their conversations up, whatever the planner believes of the filters.
sessions s LEFT JOIN conversations c ON c.id = s.conversation
LEFT JOIN nodes n ON n.id = coalesce(CASE WHEN c.tip = s.id THEN c.holder END, s.node)

-- name: sessions_of_owner
-- A page of an owner's sessions, the most recently active first, below the cursor (:at, :id).
SELECT {session_columns} FROM {paged_tables}
WHERE s.owner = :owner AND (s.last_activity_at, s.id) < (:at, :id) {session_filter}
ORDER BY s.last_activity_at DESC, s.id DESC LIMIT :limit;

-- name: sessions_of_all
-- The same for an operator.
SELECT {session_columns} FROM {paged_tables}
WHERE (s.last_activity_at, s.id) < (:at, :id) {session_filter}
ORDER BY s.last_activity_at DESC, s.id DESC LIMIT :limit;

-- fragment: alive
s.ended_at IS NULL AND s.no IN (
    SELECT t.no FROM conversations h JOIN sessions t ON t.id = h.tip WHERE h.holder IS NOT NULL
    UNION ALL SELECT no FROM sessions WHERE node > '' AND ended_at IS NULL AND attached = TRUE

-- name: alive_of_owner
-- Open sessions: all with a running turn or an attached process, and others among the newest.
SELECT {session_columns} FROM {session_tables} WHERE +s.owner = :owner AND {alive}
    UNION ALL SELECT no FROM (SELECT no FROM sessions WHERE owner = :owner
                              ORDER BY last_activity_at DESC, id DESC LIMIT :looked_at))
ORDER BY +s.last_activity_at DESC, s.id DESC LIMIT :limit;

-- name: alive_of_all
-- scans: one end
-- The same for an operator.
SELECT {session_columns} FROM {session_tables} WHERE {alive}
    UNION ALL SELECT no FROM (SELECT no FROM sessions ORDER BY last_activity_at DESC, id DESC LIMIT :looked_at))
ORDER BY +s.last_activity_at DESC, s.id DESC LIMIT :limit;

-- name: ended_since
-- Recently ended sessions, the latest first.
SELECT {session_columns} FROM {session_tables}
WHERE s.ended_at >= :since AND (:owner::text IS NULL OR +s.owner = :owner) ORDER BY s.ended_at DESC LIMIT :limit;
