-- bigint: above, attempt, brought, bytes, created_at, deleted_at, edited_at, ended_at, first, first_seq
-- bigint: flushed_seq, fresh_since, input_tokens, last, last_activity_at, last_row, last_seq, limit, next_due_at
-- bigint: now, opened_at, ordinal, output_tokens, seen_seq, seq, started_at
-- boolean: anonymous, background, inner
-- bytea: answer, body, body_hash, history

-- name: import_mark
-- locks: lock_import(owner, origin, name)
-- Import state of an item, and its conversation's current version.
SELECT i.conversation, i.session, i.last_row, i.whole, i.last_seq, c.last_seq, c.tip, c.holder
FROM imports i LEFT JOIN conversations c ON c.id = i.conversation
WHERE i.owner = :owner AND i.origin = :origin AND i.name = :name;

-- name: mark_import
-- Import progress.
INSERT INTO imports (owner, origin, name, conversation, session, last_row, whole, last_seq, imported_at)
VALUES (:owner, :origin, :name, :conversation, :session, :last_row, :whole::boolean, :last_seq, :now)
ON CONFLICT (owner, origin, name) DO UPDATE SET conversation = excluded.conversation, session = excluded.session,
    last_row = excluded.last_row, whole = excluded.whole, last_seq = excluded.last_seq, imported_at = excluded.imported_at;

-- name: import_conversation
INSERT INTO conversations (id, owner, key, title, source, tip, last_seq, bytes, forked_from, anonymous, history_hash, metadata,
                           created_at)
VALUES (:id, :owner, :key, :title, :source, :tip, :last_seq, :bytes, :forked_from, :anonymous, :history, :metadata, :created_at);

-- name: grow_conversation
-- Append after the version that was read, only if no turn runs there and no message was added since.
UPDATE conversations SET tip = :tip, last_seq = :last_seq, bytes = bytes + :bytes, history_hash = :history, revision = revision + 1
WHERE id = :id AND owner = :owner AND last_seq = :seen_seq AND tip = :seen_tip AND turn IS NULL RETURNING id;

-- name: import_alias
INSERT INTO aliases (owner, alias, conversation, session, created_at)
VALUES (:owner, :alias, :conversation, :session, :created_at) ON CONFLICT DO NOTHING;

-- name: import_session
INSERT INTO sessions (id, conversation, owner, ordinal, edge, parent, source, attached, opened_at, last_activity_at,
                      next_due_at, dated_by, ended_at, end_reason, model, input_tokens, output_tokens, first_seq, last_seq,
                      view, fresh_by, fresh_since, flushed_seq)
VALUES (:id, :conversation, :owner, :ordinal, :edge, :parent, :source, FALSE, :opened_at, :last_activity_at,
        :next_due_at, :dated_by, :ended_at, :end_reason, :model, :input_tokens, :output_tokens, :first_seq, :last_seq,
        :view, :fresh_by, :fresh_since, :flushed_seq);

-- name: extend_session
-- More of an ended session's messages were imported; an open one has no last seq.
UPDATE sessions SET last_seq = :last_seq WHERE id = :id AND ended_at IS NOT NULL;

-- name: import_turn
INSERT INTO turns (id, conversation, session, owner, status, node, attempt, first_seq, started_at, ended_at, model, error,
                   usage, response_id, answer, joined)
VALUES (:id, :conversation, :session, :owner, :status, :node, :attempt, :first_seq, :started_at, :ended_at, :model, :error,
        :usage, :response_id, :answer, :joined);

-- name: import_request
INSERT INTO requests (turn, owner, route, key, body_hash, created_at)
SELECT no, :owner, :route, :key, :body_hash, :created_at FROM turns WHERE id = :turn ON CONFLICT DO NOTHING;

-- name: import_response
INSERT INTO responses (id, owner, turn, previous, background, brought, request, created_at)
VALUES (:id, :owner, :turn, :previous, :background, :brought, :request, :created_at);

-- name: import_message
INSERT INTO messages (conversation, seq, session, turn, role, status, calls, answers, created_at, deleted_at, origin, gaps,
                      body, inner, own_calls, extra)
VALUES (:conversation, :seq, :session, :turn, :role, :status, :calls, :answers, :created_at, :deleted_at, :origin, :gaps,
        :body, :inner, :own_calls, :extra);

-- name: import_exclusion
INSERT INTO exclusions (conversation, seq, reason, created_at)
VALUES (:conversation, :seq, :reason, :created_at) ON CONFLICT DO NOTHING;

-- name: taken_turn
-- True: a turn of this id, or a response of that id, exists.
SELECT 1 FROM turns WHERE id = :id UNION ALL SELECT 1 FROM responses WHERE id = :response;

-- name: conversations_forward
-- Ids, in the order in which they began.
SELECT no, conversation FROM sessions
WHERE ordinal = 1 AND no > :above AND (:owner::text IS NULL OR owner = :owner) ORDER BY no LIMIT :limit;

-- name: conversation_record
SELECT id, owner, key, title, source, created_at, last_seq, forked_from, anonymous,
       CASE WHEN holder IS NULL THEN nullif(history_hash, x'') END, metadata
FROM conversations WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- name: alias_records
SELECT alias, created_at, session FROM aliases WHERE conversation = :conversation ORDER BY created_at, alias;

-- name: session_records
SELECT id, ordinal, edge, parent, source, opened_at, last_activity_at, ended_at, end_reason, model, input_tokens,
       output_tokens, first_seq, view, fresh_by, fresh_since, flushed_seq
FROM sessions WHERE conversation = :conversation ORDER BY ordinal;

-- name: turn_records
-- With the request and the response that belong to it.
SELECT t.id, t.session, t.status, t.node, t.attempt, t.first_seq, t.started_at, t.ended_at, t.model, t.error, t.usage,
       t.response_id, t.answer, q.route, q.key, q.body_hash, q.created_at,
       r.id, r.previous, r.background, r.brought, r.request, r.created_at, t.joined
FROM turns t LEFT JOIN requests q ON q.turn = t.no LEFT JOIN responses r ON r.turn = t.id
WHERE t.conversation = :conversation AND t.status <> 'queued' ORDER BY t.no;

-- name: message_records
-- Deleted ones too: their seqs stay.
SELECT seq, session, turn, role, status, created_at, body, calls, answers, deleted_at, origin, gaps, "inner", own_calls, extra
FROM messages WHERE conversation = :conversation AND seq BETWEEN :first AND :last ORDER BY seq LIMIT :limit;

-- name: exclusion_records
SELECT seq, reason, created_at FROM exclusions WHERE conversation = :conversation ORDER BY seq;

-- name: import_memory
INSERT INTO memories (id, owner, conversation, session, origin, text, created_at, edited_at)
VALUES (:id, :owner, :conversation, :session, :origin, :text, :created_at, :edited_at);

-- name: memory_records
SELECT id, session, origin, text, created_at, edited_at FROM memories WHERE conversation = :conversation ORDER BY no;

-- name: messages_by_origin
-- Imported messages that still count, with their origin.
SELECT m.origin, m.seq FROM messages m
WHERE m.conversation = :conversation AND m.origin IS NOT NULL AND m.deleted_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = m.conversation AND e.seq = m.seq);

-- name: give_key
-- A conversation that has a key keeps it.
UPDATE conversations SET key = :key WHERE id = :id AND owner = :owner AND (key IS NULL OR key = :key) RETURNING id;

-- name: release_key
UPDATE conversations SET key = NULL WHERE id = :id AND owner = :owner AND key = :key;
