-- bigint: at, first_seq, fresh_since, input_tokens, last_activity_at, limit, looked_at, next_due_at, now, ordinal
-- bigint: output_tokens, since
-- boolean: attached, ended, newest

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

-- name: attached_to
-- Open sessions that end with this node.
SELECT id FROM sessions WHERE node = :node AND ended_at IS NULL AND attached = TRUE ORDER BY id;

-- name: still_attached_to
-- locks: lock_by_session(id)
-- Returns a row if it is open, attached to this node, and held by no turn. Read under the conversation's lock.
SELECT 1 FROM sessions s JOIN conversations c ON c.id = s.conversation
WHERE s.id = :id AND s.node = :node AND s.ended_at IS NULL AND s.attached = TRUE AND c.holder IS NULL;

-- name: is_attached_to_the_gone
-- locks: lock_by_session(id)
-- Returns a row if it is open, attached to a node that has left or was reaped, and held by no turn.
SELECT 1 FROM sessions s JOIN conversations c ON c.id = s.conversation JOIN nodes n ON n.id = s.node
WHERE s.id = :id AND s.ended_at IS NULL AND s.attached = TRUE AND c.holder IS NULL
  AND (n.left_at IS NOT NULL OR n.reaped_at IS NOT NULL);

-- name: newest_ordinal
SELECT max(ordinal) FROM sessions WHERE conversation = :conversation;

-- name: session_totals
-- scans: whole tables
SELECT count(*), count(*) FILTER (WHERE ended_at IS NULL) FROM sessions WHERE :owner::text IS NULL OR owner = :owner;

-- name: session_end_reasons
-- scans: whole tables
SELECT end_reason, count(*) FROM sessions WHERE ended_at IS NOT NULL AND (:owner::text IS NULL OR owner = :owner)
GROUP BY end_reason ORDER BY 2 DESC, 1;

-- name: session_sources
-- scans: whole tables
SELECT source, count(*) FROM sessions WHERE :owner::text IS NULL OR owner = :owner GROUP BY source ORDER BY 2 DESC, 1;
