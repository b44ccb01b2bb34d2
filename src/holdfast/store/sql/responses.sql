-- bigint: after_event, brought, first_event, last_event, now, reserved_to, token
-- boolean: background, restarts
-- bytea: events

-- name: turn_answer
SELECT answer FROM turns WHERE id = :id;

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
