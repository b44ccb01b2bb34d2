-- bigint: first_seq, fresh_since, input_tokens, last_activity_at, next_due_at, now, ordinal, output_tokens
-- boolean: attached

-- fragment: session_columns
s.id, s.conversation, s.owner, c.key, c.title, s.source, s.attached, s.node, s.edge, s.parent, c.tip, s.ordinal,
s.opened_at, s.last_activity_at, s.next_due_at, s.ended_at, s.end_reason, s.model, s.view, s.first_seq,
coalesce(s.last_seq, c.last_seq), CASE WHEN c.tip = s.id THEN c.turn END, CASE WHEN c.tip = s.id THEN c.holder END,
n.host, n.heartbeat_at, s.input_tokens, s.output_tokens, s.fresh_by, s.fresh_since

-- fragment: session_tables
sessions s JOIN conversations c ON c.id = s.conversation
LEFT JOIN nodes n ON n.id = coalesce(CASE WHEN c.tip = s.id THEN c.holder END, s.node)

-- name: session_by_id
-- locks: lock_by_session(id)
SELECT {session_columns} FROM {session_tables} WHERE s.id = :id AND (:owner::text IS NULL OR s.owner = :owner);

-- fragment: place_columns
{session_columns}, c.source, c.last_seq, c.token, c.created_at, c.forked_from, c.revision,
nullif(c.history_hash, x''), s.dated_by, c.bytes, c.queued, {may_have_notices}, {may_have_memories}

-- fragment: may_have_notices
-- FALSE: it has no notice that no reply has carried. PostgreSQL is asked by the turn that begins, for all turns of a group.
TRUE

-- fragment: may_have_memories
-- FALSE: it has no memory. PostgreSQL is asked for the memories themselves.
TRUE

-- fragment: place_tables
conversations c JOIN sessions s ON s.id = c.tip LEFT JOIN nodes n ON n.id = coalesce(c.holder, s.node)

-- name: place_by_conversation
-- many: id
-- locks: lock_conversation(id)
-- A conversation and its tip, by the conversation's own id, for its owner (or for an operator, owner NULL).
SELECT {place_columns} FROM {place_tables} WHERE c.id = :id AND (:owner::text IS NULL OR c.owner = :owner);

-- name: place_by_session
-- many: id
-- locks: lock_by_session(id)
-- From any session, however stale: one step.
SELECT {place_columns} FROM {place_tables}
WHERE c.id = (SELECT conversation FROM sessions WHERE id = :id) AND (:owner::text IS NULL OR c.owner = :owner);

-- name: place_by_turn
-- locks: lock_by_turn(id)
SELECT {place_columns} FROM {place_tables}
WHERE c.id = (SELECT conversation FROM turns WHERE id = :id) AND (:owner::text IS NULL OR c.owner = :owner);

-- name: place_by_response
-- many: id
-- locks: lock_by_response(id)
SELECT {place_columns} FROM {place_tables}
WHERE c.id = (SELECT t.conversation FROM responses r JOIN turns t ON t.id = r.turn WHERE r.id = :id)
  AND (:owner::text IS NULL OR c.owner = :owner);

-- name: place_by_key
-- many: owner, key
-- locks: lock_by_key(owner, key)
-- conversation in: column 1
-- By the conversation's session key.
SELECT {place_columns} FROM {place_tables} WHERE c.owner = :owner AND c.key = :key;

-- name: places_by_key_anywhere
-- locks: lock_by_key_anywhere(key)
-- conversation in: column 1
-- scans: whole tables
-- time: usual
-- The same for an operator, over all owners.
SELECT {place_columns} FROM {place_tables} WHERE c.key = :key LIMIT 2;

-- name: place_by_alias
-- many: owner, id
-- locks: lock_by_alias(owner, id)
-- conversation in: column 1
-- By an alias.
SELECT {place_columns} FROM {place_tables}
WHERE c.id = (SELECT conversation FROM aliases WHERE owner = :owner AND alias = :id);

-- name: places_by_alias_anywhere
-- locks: lock_by_alias_anywhere(id)
-- conversation in: column 1
-- scans: whole tables
-- time: usual
-- The same for an operator.
SELECT {place_columns} FROM {place_tables}
WHERE c.id IN (SELECT conversation FROM aliases WHERE alias = :id) LIMIT 2;

-- name: insert_session
-- rows: any
-- The unique index allows one open session per conversation.
INSERT INTO sessions (id, conversation, owner, ordinal, edge, parent, source, attached, node, opened_at,
                      last_activity_at, next_due_at, dated_by, fresh_by, fresh_since, first_seq, view, model)
VALUES (:id, :conversation, :owner, :ordinal, :edge, :parent, :source, :attached, :node, :now,
        :last_activity_at, :next_due_at, :dated_by, :fresh_by, :fresh_since, :first_seq, :view, :model);

-- name: end_session
-- Only an open session ends, and only once.
UPDATE sessions SET ended_at = :now, end_reason = :reason, next_due_at = NULL, recheck_at = NULL,
                    deferral = NULL, attached = FALSE, node = NULL,
                    last_seq = (SELECT last_seq FROM conversations WHERE id = sessions.conversation)
WHERE id = :id AND ended_at IS NULL;

-- name: touch_session
-- many: id
-- rows: any
-- A client wrote, or its turn ended: only these change last_activity_at. A null `now` leaves it: a server retries a
-- turn, or has it wait for a retry.
UPDATE sessions SET last_activity_at = coalesce(:now, last_activity_at), model = coalesce(:model, model),
                    input_tokens = input_tokens + :input_tokens, output_tokens = output_tokens + :output_tokens
WHERE id = :id;

-- name: detach_session
-- rows: any
-- Another node writes to it: from now on it outlives the process that opened it.
UPDATE sessions SET attached = FALSE, node = NULL WHERE id = :id AND attached = TRUE AND node <> :node;

-- name: newest_ordinal
SELECT max(ordinal) FROM sessions WHERE conversation = :conversation;
