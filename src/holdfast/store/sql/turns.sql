-- bigint: after_event, below, brought, delivery, first_event, first_seq, kept_until, last_event, limit, now, reserved_to
-- bigint: all_tries, due_at, refusals, refused_since, since, step_seq, stops, token, tries
-- boolean: background, recover, restarts
-- bytea: answer, body_hash, events, stored

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

-- name: turn_by_request
-- many: owner, route, key
-- locks: lock_by_request(owner, route, key)
-- conversation in: column 1
-- The turn of a request key, and the fingerprint of its request.
SELECT {columns_of_turn}, r.body_hash
FROM requests r JOIN turns t ON t.no = r.turn
WHERE r.owner = :owner AND r.route = :route AND r.key = :key AND r.created_at >= :since;

-- name: stored_request
SELECT request FROM turns WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- name: turn_answer
SELECT answer FROM turns WHERE id = :id;

-- name: turns_of_conversation
SELECT {turn_columns} FROM turns
WHERE conversation = :conversation AND no < :below AND (:owner::text IS NULL OR owner = :owner)
  AND (:session::text IS NULL OR session = :session)
ORDER BY no DESC LIMIT :limit;

-- name: turn_number
SELECT no FROM turns WHERE id = :id AND conversation = :conversation;

-- name: newest_turn
-- Without queued turns, those that never began or joined another, and those that the conversation was rewound before.
-- By their messages: a queued turn is stored before a turn that overtakes it, and begins after it.
SELECT id FROM turns t WHERE t.conversation = :conversation AND t.first_seq > 0 AND t.joined IS NULL
  AND NOT EXISTS (SELECT 1 FROM exclusions e
                  WHERE e.conversation = t.conversation AND e.seq = t.first_seq AND e.reason = 'rewound')
ORDER BY t.first_seq DESC, t.no DESC LIMIT 1;

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

-- name: park_turn
-- rows: any
-- After `settle_turn`: the turn waits to be retried.
UPDATE turns SET due_at = :due_at, cause = :cause, tries = :tries, all_tries = :all_tries, stops = :stops,
                 refusals = :refusals, refused_since = :refused_since, step_seq = :step_seq, kept_until = NULL
WHERE id = :id;

-- name: end_waiting_turn
-- rows: one
-- A waiting turn is given up, withdrawn or cancelled; it ended when its last attempt did.
UPDATE turns SET status = :status, error = :error, why = :why, due_at = NULL, cause = NULL, kept_until = :kept_until,
                 request = CASE WHEN :kept_until::bigint IS NULL THEN NULL ELSE request END
WHERE id = :id AND due_at IS NOT NULL;

-- name: is_waiting
SELECT 1 FROM turns WHERE id = :id AND due_at IS NOT NULL;

-- name: due_turns
-- Turns that wait to be retried and are due, the longest due first. One that ended after now is due too: the clock was set
-- back, and the turn would wait for as long.
SELECT {turn_columns} FROM turns WHERE due_at IS NOT NULL AND (due_at <= :now OR ended_at > :now)
  AND status IN ('interrupted', 'failed') ORDER BY due_at LIMIT :limit;

-- name: waiting_turns
-- All turns that wait to be retried, the first due first.
SELECT {turn_columns} FROM turns WHERE due_at IS NOT NULL AND (:owner::text IS NULL OR owner = :owner)
ORDER BY due_at LIMIT :limit;

-- name: turns_that_run
-- By the index of held conversations.
SELECT {columns_of_turn} FROM conversations c JOIN turns t ON t.id = c.turn
WHERE c.holder IS NOT NULL AND (:owner::text IS NULL OR c.owner = :owner) ORDER BY t.no DESC LIMIT :limit;

-- name: count_waiting
SELECT count(*) FROM turns WHERE due_at IS NOT NULL;

-- name: note_delivery
-- What clients have received. `WHOLE` never changes back. May change no row.
UPDATE turns SET delivery = :delivery WHERE id = :id AND delivery < 3;

-- name: insert_request
-- many: owner, route, key
-- rows: any
INSERT INTO requests (turn, owner, route, key, body_hash, created_at)
SELECT no, :owner, :route, :key, :body_hash, :now FROM turns WHERE id = :turn;

-- name: replace_request
-- many: owner, route, key
-- rows: any
-- A body without a key belongs to the newest request that sent it.
INSERT INTO requests (turn, owner, route, key, body_hash, created_at)
SELECT no, :owner, :route, :key, :body_hash, :now FROM turns WHERE id = :turn
ON CONFLICT (owner, route, key) DO UPDATE
SET turn = excluded.turn, body_hash = excluded.body_hash, created_at = excluded.created_at;

-- name: renew_request
-- rows: any
-- The same turn, retried; or a body that turned out to belong to two conversations.
UPDATE requests SET body_hash = :body_hash WHERE owner = :owner AND route = :route AND key = :key;

-- name: insert_response
-- rows: any
INSERT INTO responses (id, owner, turn, previous, background, brought, request, webhook, created_at)
VALUES (:id, :owner, :turn, :previous, :background, :brought, :request, :webhook, :now);

-- name: response_by_id
SELECT r.previous, r.background, r.brought, r.request, r.created_at, {columns_of_turn}
FROM responses r JOIN turns t ON t.id = r.turn WHERE r.id = :id AND (:owner::text IS NULL OR r.owner = :owner);

-- name: delete_response
DELETE FROM responses WHERE id = :id AND owner = :owner;

-- name: insert_draft
-- locks: lock_conversation(id=conversation)
-- A draft, only under the lease. Zero rows: it was lost, and nothing is written.
INSERT INTO drafts (turn, first_event, last_event, reserved_to, after_seq, created_at, restarts, adds, events)
SELECT :turn, :first_event, :last_event, :reserved_to, last_seq, :now, :restarts, :adds, :events
FROM conversations WHERE id = :conversation AND token = :token AND holder = :node
  AND NOT EXISTS (SELECT 1 FROM drafts WHERE turn = :turn AND last_event >= :first_event);

-- name: same_draft
-- Returns a row if this same draft is stored: its writer lost its connection in the commit and retries.
SELECT 1 FROM drafts
WHERE turn = :turn AND first_event = :first_event AND last_event = :last_event AND adds = :adds AND events = :events;

-- name: holds_lease
-- locks: lock_conversation(id=conversation)
SELECT 1 FROM conversations WHERE id = :conversation AND token = :token AND holder = :node;

-- name: next_event
-- Above every number that earlier drafts of this turn used or reserved.
SELECT coalesce(max(reserved_to) + 1, 0) FROM drafts WHERE turn = :turn;

-- name: drafts_of_turn
SELECT first_event, last_event, events, adds, restarts, after_seq FROM drafts
WHERE turn = :turn AND last_event > :after_event ORDER BY first_event;

-- name: drafts_of_reply
-- Drafts of the unfinished reply: those after the conversation's last message.
SELECT first_event, last_event, x'', adds, restarts, after_seq FROM drafts
WHERE turn = :turn AND after_seq = (SELECT last_seq FROM conversations WHERE id = :conversation)
ORDER BY first_event;
