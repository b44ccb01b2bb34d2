-- bigint: limit

-- Objects of an owner (or, for an operator, of all) whose id is between two texts: those that begin with the first.

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
