-- name: prepare_messages
-- The order in which things were said, and what is asked of every row, without its text.
CREATE INDEX holdfast_messages ON messages (session_id, id, active, compacted, timestamp, role);

-- name: schema_version
SELECT max(version) FROM schema_version;

-- name: has_table
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = :name;

-- fragment: undone
coalesce(m.active, 1) = 0 AND coalesce(m.compacted, 0) = 0

-- name: sessions
-- Every session, with what is asked of its messages as a whole. What was undone does not count.
SELECT s.id, s.source, s.model, s.title, s.parent_session_id, s.started_at, s.ended_at, s.end_reason,
       s.message_count, s.input_tokens, s.output_tokens, s.session_key,
       CASE WHEN json_valid(s.model_config) THEN json_extract(s.model_config, '$._branched_from') END,
       CASE WHEN json_valid(s.model_config) THEN json_extract(s.model_config, '$._delegate_from') END,
       coalesce(c.said, 0), coalesce(c.shown, 0), coalesce(c.undone, 0), coalesce(c.last_row, 0), c.last_said_at
FROM sessions s LEFT JOIN (
    SELECT m.session_id, count(*) FILTER (WHERE NOT ({undone})) AS said,
           count(*) FILTER (WHERE coalesce(m.active, 1) <> 0) AS shown,
           count(*) FILTER (WHERE {undone}) AS undone,
           max(m.id) AS last_row, max(m.timestamp) FILTER (WHERE NOT ({undone})) AS last_said_at
    FROM messages m GROUP BY m.session_id) c ON c.session_id = s.id
ORDER BY s.rowid;

-- name: flags
-- Of each row of a session after a row, in order: is it undone, is it compacted away, and how it begins.
SELECT m.id, {undone}, coalesce(m.active, 1) = 0, m.timestamp,
       CASE WHEN m.role IN ('user', 'assistant') THEN substr(m.content, 1, 40) END
FROM messages m WHERE m.session_id = :session AND m.id > :after ORDER BY m.id;

-- name: rows
-- The rows of a session after a row, in the order in which they were written, without undone ones.
SELECT * FROM messages m WHERE m.session_id = :session AND m.id > :after AND NOT ({undone}) ORDER BY m.id;

-- name: content
SELECT content FROM messages WHERE id = :id;

-- name: kept_before
-- How many rows of a session up to this one are there still, and how many of them are still shown.
SELECT count(*), count(*) FILTER (WHERE coalesce(m.active, 1) <> 0) FROM messages m
WHERE m.session_id = :session AND m.id <= :row AND NOT ({undone});

-- name: undone_before
-- Rows of a session up to this one that were taken back.
SELECT m.id FROM messages m WHERE m.session_id = :session AND m.id <= :row AND {undone} ORDER BY m.id;

-- name: routing
-- Chats and where they go; the newest entry of a key last.
SELECT session_key, entry_json FROM gateway_routing ORDER BY updated_at;

-- name: strays
-- Messages of sessions that are not there.
SELECT count(*) FROM messages m WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = m.session_id);

-- name: unmarked
-- Rows whose mark of being undone is missing.
SELECT count(*) FROM messages WHERE active IS NULL;

-- name: gather_facts
-- What the doctor compares of every message that counts, without its text: one walk over the large table.
CREATE TEMP TABLE facts AS
SELECT m.id, m.session_id AS session, m.role, m.tool_call_id AS answers, m.platform_message_id AS number,
       coalesce(m.active, 1) AS active, octet_length(m.content) AS size, m.tool_calls IS NOT NULL AS calls
FROM messages m WHERE NOT ({undone});

-- name: sort_facts
CREATE INDEX temp.facts_in_order ON facts (session, id);

-- name: sort_answers
CREATE INDEX temp.facts_by_answer ON facts (session, answers, active) WHERE answers IS NOT NULL;

-- name: orphan_calls
-- Tool calls without a result in their session.
SELECT count(*) FROM facts f JOIN messages m ON m.id = f.id,
    json_each(CASE WHEN json_valid(m.tool_calls) AND json_type(m.tool_calls) = 'array' THEN m.tool_calls ELSE '[]' END) c
WHERE f.calls AND c.type = 'object' AND NOT EXISTS (
    SELECT 1 FROM facts r WHERE r.session = f.session AND r.answers IS NOT NULL
      AND r.answers IN (json_extract(c.value, '$.id'), json_extract(c.value, '$.call_id')));

-- name: repeated_rows
-- Duplicates: rows that repeat the row right before them, answer a call for the second time, or have a platform's number for
-- the second time.
SELECT count(*) FROM (
    SELECT a.id FROM (
        SELECT f.id, f.role, f.answers, f.size, lag(f.id) OVER w AS before, lag(f.role) OVER w AS role_before,
               lag(f.answers) OVER w AS answers_before, lag(f.size) OVER w AS size_before
        FROM facts f WINDOW w AS (PARTITION BY f.session ORDER BY f.id)) n
    JOIN messages a ON a.id = n.id JOIN messages b ON b.id = n.before
    WHERE n.role = n.role_before AND n.size IS n.size_before AND n.answers IS n.answers_before
      AND a.content IS b.content AND a.tool_calls IS b.tool_calls AND coalesce(a.content, a.tool_calls, '') <> ''
    UNION
    SELECT id FROM (SELECT f.id, row_number() OVER (PARTITION BY f.session, f.answers, f.active ORDER BY f.id) AS time
                    FROM facts f WHERE f.answers IS NOT NULL AND f.role = 'tool')
    WHERE time > 1
    UNION
    SELECT id FROM (SELECT f.id, row_number() OVER (PARTITION BY f.session, f.role, f.number ORDER BY f.id) AS time
                    FROM facts f WHERE f.number IS NOT NULL AND f.active <> 0)
    WHERE time > 1);
