-- bigint: below, delivery, first_seq, kept_until, limit, now
-- boolean: recover
-- bytea: answer, stored

-- fragment: turn_columns
id, conversation, session, owner, status, node, attempt, first_seq, started_at, ended_at, error, model, usage, response_id,
delivery, why, origin, recover, tries, all_tries, stops, refusals, refused_since, step_seq, due_at, cause,
joined

-- fragment: columns_of_turn
t.id, t.conversation, t.session, t.owner, t.status, t.node, t.attempt, t.first_seq, t.started_at, t.ended_at, t.error, t.model,
t.usage, t.response_id, t.delivery, t.why, t.origin, t.recover, t.tries, t.all_tries, t.stops, t.refusals, t.refused_since,
t.step_seq, t.due_at, t.cause, t.joined

-- name: turn_by_id
-- locks: lock_by_turn(id)
SELECT {turn_columns} FROM turns WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- name: turns_of_conversation
SELECT {turn_columns} FROM turns
WHERE conversation = :conversation AND no < :below AND (:owner::text IS NULL OR owner = :owner)
  AND (:session::text IS NULL OR session = :session)
ORDER BY no DESC LIMIT :limit;

-- name: turn_number
SELECT no FROM turns WHERE id = :id AND conversation = :conversation;

-- name: insert_turn
-- many: id
-- rows: any
INSERT INTO turns (id, conversation, session, owner, status, node, first_seq, started_at, model, response_id,
                   delivery, request, origin, recover)
VALUES (:id, :conversation, :session, :owner, 'running', :node, :first_seq, :now, :model, :response_id,
        :delivery, :stored, :origin, :recover);

-- name: take_up_turn
-- rows: any
-- An unfinished turn is resumed: it runs again, on this node, in this session. The attempt is counted before the model is
-- called. Its first request stays; one that is no longer kept is replaced by the retry's.
UPDATE turns SET status = 'running', ended_at = NULL, error = NULL, node = :node, session = :session,
                 attempt = attempt + 1, delivery = :delivery, tries = tries + 1, all_tries = all_tries + 1,
                 due_at = NULL, cause = NULL, why = NULL, kept_until = NULL, request = coalesce(request, :stored)
WHERE id = :id;

-- name: settle_turn
-- many: id
-- rows: any
-- The stored request is deleted unless it may be needed for a retry, until `kept_until`.
UPDATE turns SET status = :status, ended_at = :now, error = :error, usage = coalesce(:usage, usage),
                 answer = :answer, delivery = coalesce(:delivery, delivery), model = coalesce(model, :model),
                 why = :why, due_at = NULL, cause = :cause, kept_until = CASE WHEN request IS NOT NULL THEN :kept_until::bigint END,
                 request = CASE WHEN :kept_until::bigint IS NULL THEN NULL ELSE request END
WHERE id = :id;

-- name: turns_that_run
-- By the index of held conversations.
SELECT {columns_of_turn} FROM conversations c JOIN turns t ON t.id = c.turn
WHERE c.holder IS NOT NULL AND (:owner::text IS NULL OR c.owner = :owner) ORDER BY t.no DESC LIMIT :limit;
