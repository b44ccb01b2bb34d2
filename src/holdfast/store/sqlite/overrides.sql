-- Statements of SQLite alone, and those that differ here: see `queries.py`.

-- ---- events -----------------------------------------------------------------------------------------------------

-- name: insert_event
INSERT INTO events (at, type, owner, conversation, session, turn, data) VALUES (?, ?, ?, ?, ?, ?, ?);

-- override: newest_events_of_session
SELECT id, at, type, owner, conversation, session, turn, data
FROM (SELECT * FROM events WHERE conversation = :conversation ORDER BY id DESC LIMIT :looked_at)
WHERE session = :session AND (type GLOB 'session.*' OR type GLOB 'process.*') ORDER BY id DESC LIMIT :limit;

-- ---- messages ---------------------------------------------------------------------------------------------------

-- override: insert_message
INSERT INTO messages (conversation, seq, session, turn, role, status, calls, answers, created_at, body, inner, own_calls,
                      extra)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- override: bodies
SELECT CAST(group_concat(body, ',') AS BLOB) FROM (
    SELECT body FROM messages WHERE conversation = :conversation AND seq BETWEEN :first AND :last ORDER BY seq);

-- override: empty_answer
UPDATE turns SET answer = iif(json_valid(CAST(answer AS TEXT)),
    CAST(json_remove(CAST(answer AS TEXT), '$.choices[0].logprobs') AS BLOB), NULL)
WHERE answer IS NOT NULL AND id = (SELECT turn FROM messages WHERE conversation = :conversation AND seq = :seq);

-- name: forgotten
-- Deletes a row that the indexer has processed.
DELETE FROM unindexed WHERE id = :id;

-- name: found_message
-- A search hit, read from the message's row: only if it still exists and belongs to the owner.
SELECT m.conversation, m.seq, m.session, m.turn, m.role, m.status, m.created_at, m.origin, m.body, m.gaps, m.inner,
       m.own_calls, m.extra, c.key, c.title
FROM messages m JOIN conversations c ON c.id = m.conversation
WHERE m.no = :no AND m.deleted_at IS NULL AND (:owner IS NULL OR c.owner = :owner);

-- ---- sessions ---------------------------------------------------------------------------------------------------

-- override: may_have_notices
EXISTS (SELECT 1 FROM notices WHERE conversation = c.id AND told_at IS NULL)

-- override: may_have_memories
EXISTS (SELECT 1 FROM memories WHERE conversation = c.id)

-- ---- turns ------------------------------------------------------------------------------------------------------

-- override: number_messages
-- SQLite keeps what RETURNING returns in a temporary table first, which costs more than the second statement.
UPDATE conversations SET last_seq = last_seq + :count, bytes = bytes + :bytes
WHERE id = :id AND token = :token AND {is_held_by};
SELECT last_seq, owner FROM conversations WHERE changes() = 1 AND id = :id;

-- override: release_lease
UPDATE conversations SET last_seq = last_seq + :count, bytes = bytes + :bytes, holder = NULL, turn = NULL,
                         history_hash = CASE WHEN history_hash IS NULL THEN :history END
WHERE id = :id AND token = :token AND {is_held_by};
SELECT last_seq, owner, places FROM conversations WHERE changes() = 1 AND id = :id;

-- fragment: number_of_turn
-- Nearly always the row that was inserted last, which is found without the index.
coalesce((SELECT no FROM turns WHERE no = last_insert_rowid() AND id = :turn), (SELECT no FROM turns WHERE id = :turn))

-- override: insert_request
INSERT INTO requests (turn, owner, route, key, body_hash, created_at)
VALUES ({number_of_turn}, :owner, :route, :key, :body_hash, :now);

-- override: replace_request
INSERT INTO requests (turn, owner, route, key, body_hash, created_at)
VALUES ({number_of_turn}, :owner, :route, :key, :body_hash, :now)
ON CONFLICT (owner, route, key) DO UPDATE
SET turn = excluded.turn, body_hash = excluded.body_hash, created_at = excluded.created_at;

-- ---- overviews --------------------------------------------------------------------------------------------------

-- override: figures
-- scans: small indexes
-- Counts only through small indexes.
SELECT (SELECT count(*) FROM sessions WHERE ended_at IS NULL),
       (SELECT count(*) FROM conversations WHERE holder IS NOT NULL),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0),
       (SELECT count(*) FROM notices WHERE delivered_at IS NULL);

-- ---- snapshots --------------------------------------------------------------------------------------------------

-- name: snapshot_store
-- scans: a small table
SELECT id FROM store;

-- name: snapshot_tables
-- scans: a small table
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name;

-- name: snapshot_references
-- scans: a small table
-- The tables that this one refers to.
SELECT DISTINCT "table" FROM pragma_foreign_key_list(?);

-- name: snapshot_columns
-- scans: a small table
SELECT name FROM pragma_table_info(?) ORDER BY cid;

-- name: snapshot_count
-- scans: whole tables
SELECT count(*) FROM {table};

-- name: snapshot_rows
-- scans: whole tables
SELECT {columns} FROM {table} ORDER BY {order};

-- name: snapshot_numbers
-- scans: a small table
SELECT name, seq FROM sqlite_sequence;
