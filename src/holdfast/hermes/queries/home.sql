-- name: prepare_messages
-- The order in which things were said, and what is asked of every row, without its text.
CREATE INDEX holdfast_messages ON messages (session_id, id, active, compacted, timestamp, role);

-- name: prepare_results
CREATE INDEX holdfast_results ON messages (session_id, tool_call_id) WHERE tool_call_id IS NOT NULL;

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
-- Of each row of a session behind a row, in order: is it undone, is it compacted away, and how it begins.
SELECT m.id, {undone}, coalesce(m.active, 1) = 0, m.timestamp,
       CASE WHEN m.role IN ('user', 'assistant') THEN substr(m.content, 1, 40) END
FROM messages m WHERE m.session_id = :session AND m.id > :after ORDER BY m.id;

-- name: rows
-- The rows of a session behind a row, in the order in which they were written; what was undone is left out.
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

-- name: orphan_calls
-- Tool calls without a result in their session.
SELECT count(*) FROM messages m, json_each(CASE WHEN json_valid(m.tool_calls) AND json_type(m.tool_calls) = 'array'
                                                THEN m.tool_calls ELSE '[]' END) c
WHERE m.tool_calls IS NOT NULL AND c.type = 'object' AND NOT ({undone}) AND NOT EXISTS (
    SELECT 1 FROM messages r WHERE r.session_id = m.session_id AND r.tool_call_id IS NOT NULL
      AND r.tool_call_id IN (json_extract(c.value, '$.id'), json_extract(c.value, '$.call_id')));

-- name: repeated_rows
-- Rows that say again what stands right before them, answer a call for the second time, or bear a platform's number for
-- the second time.
SELECT count(*) FROM (
    SELECT id FROM (
        SELECT m.id, m.role, m.content, m.tool_calls, m.tool_call_id, lag(m.role) OVER w AS role_before,
               lag(m.content) OVER w AS content_before, lag(m.tool_calls) OVER w AS calls_before,
               lag(m.tool_call_id) OVER w AS answered_before
        FROM messages m WHERE NOT ({undone}) WINDOW w AS (PARTITION BY m.session_id ORDER BY m.id))
    WHERE role = role_before AND content IS content_before AND tool_calls IS calls_before
      AND tool_call_id IS answered_before AND coalesce(content, tool_calls, '') <> ''
    UNION
    SELECT m.id FROM messages m WHERE m.tool_call_id IS NOT NULL AND m.role = 'tool' AND NOT ({undone}) AND EXISTS (
        SELECT 1 FROM messages r WHERE r.session_id = m.session_id AND r.tool_call_id = m.tool_call_id
          AND r.role = 'tool' AND r.id < m.id AND coalesce(r.active, 1) = coalesce(m.active, 1))
    UNION
    SELECT id FROM (
        SELECT m.id, row_number() OVER (PARTITION BY m.session_id, m.role, m.platform_message_id ORDER BY m.id) AS time
        FROM messages m WHERE m.platform_message_id IS NOT NULL AND NOT ({undone}) AND coalesce(m.active, 1) <> 0)
    WHERE time > 1);
