-- bigint: delivery, first_seq, limit, more, now, steers
-- boolean: recover
-- bytea: messages, stored

-- name: queue_of
-- The queued turns of a conversation, in order.
SELECT q.turn, q.steers, q.source, q.messages FROM queued_turns q
WHERE q.conversation = :conversation ORDER BY q.no;

-- name: first_queued
SELECT turn FROM queued_turns WHERE conversation = :conversation ORDER BY no LIMIT 1;

-- name: steering_turns
-- Queued turns whose messages may join the running one, in order.
SELECT turn, messages FROM queued_turns WHERE conversation = :conversation AND steers = 1 ORDER BY no;

-- name: queue_heads
-- scans: a small table
-- The first queued turn of each conversation that no turn holds or waits in: the oldest of each owner, then the next of
-- each, so that an owner with many does not hold up the others.
SELECT turn FROM (
  SELECT q.turn, q.no, row_number() OVER (PARTITION BY c.owner ORDER BY q.no) AS place
  FROM queued_turns q CROSS JOIN conversations c
  WHERE c.id = q.conversation AND c.turn IS NULL
    AND NOT EXISTS (SELECT 1 FROM queued_turns o WHERE o.conversation = q.conversation AND o.no < q.no)
) heads ORDER BY place, no LIMIT :limit;

-- name: count_all_queued
-- scans: a small table
SELECT count(*) FROM queued_turns;

-- name: queued_bytes
-- scans: a small table
-- Of an owner's queued turns.
SELECT coalesce(sum(length(q.messages)), 0)::bigint FROM queued_turns q CROSS JOIN turns t
WHERE t.id = q.turn AND t.owner = :owner;

-- name: queued_turns
-- scans: a small table
-- CROSS JOIN: SQLite reads the queue first, not all turns.
SELECT {columns_of_turn} FROM queued_turns q CROSS JOIN turns t
WHERE t.id = q.turn AND (:owner::text IS NULL OR t.owner = :owner) ORDER BY q.no LIMIT :limit;

-- name: insert_queued_turn
-- rows: any
INSERT INTO turns (id, conversation, session, owner, status, node, first_seq, started_at, ended_at, model, response_id,
                   delivery, request, origin, recover, why)
VALUES (:id, :conversation, :session, :owner, 'queued', :node, 0, :now, :now, :model, :response_id,
        :delivery, :stored, :origin, :recover, :why);

-- name: insert_queued
-- rows: any
INSERT INTO queued_turns (turn, conversation, no, steers, source, messages)
SELECT id, conversation, no, :steers, :source, :messages FROM turns WHERE id = :turn;

-- name: edit_queued
UPDATE queued_turns SET messages = :messages WHERE turn = :turn;

-- name: drop_queued
DELETE FROM queued_turns WHERE turn = :turn;

-- name: count_queued
-- rows: any
UPDATE conversations SET queued = queued + :more WHERE id = :id;

-- name: start_queued_turn
-- rows: one
UPDATE turns SET status = 'running', ended_at = NULL, started_at = :now, node = :node, session = :session,
                 first_seq = :first_seq, why = NULL
WHERE id = :id AND status = 'queued';

-- name: end_queued_turn
-- A queued turn ends without having begun: withdrawn, or its messages joined another turn, as `first_seq` and after.
UPDATE turns SET status = :status, ended_at = :now, why = :why, joined = :joined, first_seq = :first_seq, request = NULL
WHERE id = :id AND status = 'queued';

-- name: set_brought
-- rows: any
-- How many messages came with the request of a response.
UPDATE responses SET brought = :more WHERE id = :id;

