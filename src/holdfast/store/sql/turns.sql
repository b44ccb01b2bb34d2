-- bigint: after_event, below, brought, delivery, first_event, first_seq, last_event, limit, now, reserved_to
-- bigint: since, token
-- boolean: background, restarts
-- bytea: answer, body_hash, events

-- fragment: turn_columns
id, conversation, session, owner, status, node, attempt, first_seq, started_at, ended_at, error, model, usage, response_id,
delivery

-- name: turn_by_id
-- locks: lock_by_turn(id)
SELECT {turn_columns} FROM turns WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- name: turn_by_request
-- locks: lock_by_request(owner, route, key)
-- conversation in: column 1
-- The turn of a request key, and the fingerprint of its request.
SELECT t.id, t.conversation, t.session, t.owner, t.status, t.node, t.attempt, t.first_seq, t.started_at, t.ended_at,
       t.error, t.model, t.usage, t.response_id, t.delivery, r.body_hash
FROM requests r JOIN turns t ON t.no = r.turn
WHERE r.owner = :owner AND r.route = :route AND r.key = :key AND r.created_at >= :since;

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
SELECT id FROM turns WHERE conversation = :conversation ORDER BY no DESC LIMIT 1;

-- name: insert_turn
-- rows: any
INSERT INTO turns (id, conversation, session, owner, status, node, first_seq, started_at, model, response_id,
                   delivery)
VALUES (:id, :conversation, :session, :owner, 'running', :node, :first_seq, :now, :model, :response_id,
        :delivery);

-- name: take_up_turn
-- rows: any
-- A retry resumes an unfinished turn: it runs again, on this node, in this session.
UPDATE turns SET status = 'running', ended_at = NULL, error = NULL, node = :node, session = :session,
                 attempt = attempt + 1, delivery = :delivery
WHERE id = :id;

-- name: settle_turn
-- rows: any
UPDATE turns SET status = :status, ended_at = :now, error = :error, usage = coalesce(:usage, usage),
                 answer = :answer, delivery = coalesce(:delivery, delivery)
WHERE id = :id;

-- name: note_delivery
-- What clients have received. `WHOLE` never changes back. May change no row.
UPDATE turns SET delivery = :delivery WHERE id = :id AND delivery < 3;

-- name: insert_request
-- rows: any
INSERT INTO requests (turn, owner, route, key, body_hash, created_at)
SELECT no, :owner, :route, :key, :body_hash, :now FROM turns WHERE id = :turn;

-- name: replace_request
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
INSERT INTO responses (id, owner, turn, previous, background, brought, request, created_at)
VALUES (:id, :owner, :turn, :previous, :background, :brought, :request, :now);

-- name: response_by_id
SELECT r.previous, r.background, r.brought, r.request, r.created_at, t.id, t.conversation, t.session, t.owner,
       t.status, t.node, t.attempt, t.first_seq, t.started_at, t.ended_at, t.error, t.model, t.usage, t.response_id,
       t.delivery
FROM responses r JOIN turns t ON t.id = r.turn WHERE r.id = :id AND (:owner::text IS NULL OR r.owner = :owner);

-- name: delete_response
DELETE FROM responses WHERE id = :id AND owner = :owner;

-- name: insert_draft
-- locks: lock_conversation(id=conversation)
-- A checkpoint, only under the lease. Zero rows: it was lost, and nothing is written.
INSERT INTO drafts (turn, first_event, last_event, reserved_to, after_seq, created_at, restarts, adds, events)
SELECT :turn, :first_event, :last_event, :reserved_to, last_seq, :now, :restarts, :adds, :events
FROM conversations WHERE id = :conversation AND token = :token AND holder = :node
  AND NOT EXISTS (SELECT 1 FROM drafts WHERE turn = :turn AND last_event >= :first_event);

-- name: same_draft
-- Returns a row if this same checkpoint is stored: its writer lost its connection in the commit and retries.
SELECT 1 FROM drafts
WHERE turn = :turn AND first_event = :first_event AND last_event = :last_event AND adds = :adds AND events = :events;

-- name: holds_lease
-- locks: lock_conversation(id=conversation)
SELECT 1 FROM conversations WHERE id = :conversation AND token = :token AND holder = :node;

-- name: next_event
-- Above every number that earlier checkpoints of this turn used or reserved.
SELECT coalesce(max(reserved_to) + 1, 0) FROM drafts WHERE turn = :turn;

-- name: drafts_of_turn
SELECT first_event, last_event, events, adds, restarts, after_seq FROM drafts
WHERE turn = :turn AND last_event > :after_event ORDER BY first_event;

-- name: drafts_of_reply
-- Checkpoints of the unfinished reply: those after the conversation's last message.
SELECT first_event, last_event, x'', adds, restarts, after_seq FROM drafts
WHERE turn = :turn AND after_seq = (SELECT last_seq FROM conversations WHERE id = :conversation)
ORDER BY first_event;
