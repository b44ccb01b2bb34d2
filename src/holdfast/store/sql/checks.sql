-- name: at_most_one_open_session
-- scans: whole tables
SELECT conversation FROM sessions WHERE ended_at IS NULL GROUP BY conversation HAVING count(*) > 1;

-- name: gap_free_numbers
-- scans: whole tables
-- One pass over the (conversation, seq) index.
SELECT c.id FROM conversations c
LEFT JOIN (SELECT conversation, count(*) AS number, min(seq) AS lowest, max(seq) AS highest
           FROM messages GROUP BY conversation) m ON m.conversation = c.id
WHERE c.last_seq <> coalesce(m.number, 0) OR coalesce(m.lowest, 1) <> 1 OR c.last_seq <> coalesce(m.highest, 0);

-- name: messages_within_sessions
-- scans: whole tables
-- One pass over the messages. A message written into a session after its end is in no context of its line.
SELECT s.id FROM sessions s
JOIN (SELECT session, min(seq) AS lowest, max(seq) AS highest FROM messages GROUP BY session) m ON m.session = s.id
WHERE m.lowest < s.first_seq OR m.highest > s.last_seq;

-- name: sizes_are_true
-- scans: whole tables
SELECT c.id FROM conversations c
LEFT JOIN (SELECT conversation, sum(length(body)) AS held FROM messages GROUP BY conversation) m ON m.conversation = c.id
LEFT JOIN (SELECT conversation, sum(length(body)) AS held FROM checkpoints GROUP BY conversation) k ON k.conversation = c.id
LEFT JOIN (SELECT conversation, sum(length(body)) AS held FROM checkpoint_parts GROUP BY conversation) p ON p.conversation = c.id
LEFT JOIN (SELECT conversation, sum(length(body)) AS held FROM checkpoint_writes GROUP BY conversation) w ON w.conversation = c.id
LEFT JOIN (SELECT conversation, sum(octet_length(value)) AS held FROM items GROUP BY conversation) i ON i.conversation = c.id
LEFT JOIN (SELECT conversation, sum(size) AS held FROM attachments GROUP BY conversation) a ON a.conversation = c.id
WHERE c.bytes <> coalesce(m.held, 0) + coalesce(k.held, 0) + coalesce(p.held, 0)
    + coalesce(w.held, 0) + coalesce(i.held, 0) + coalesce(a.held, 0);

-- name: tips_are_newest
-- scans: whole tables
SELECT c.id FROM conversations c
WHERE c.tip IS DISTINCT FROM (SELECT s.id FROM sessions s WHERE s.conversation = c.id ORDER BY s.ordinal DESC LIMIT 1);

-- name: turns_hold_leases
-- scans: whole tables
SELECT t.id FROM turns t JOIN conversations c ON c.id = t.conversation
WHERE t.status = 'running' AND (c.turn IS DISTINCT FROM t.id OR c.holder IS DISTINCT FROM t.node)
UNION ALL
SELECT c.id FROM conversations c LEFT JOIN turns t ON t.id = c.turn
WHERE c.holder IS NOT NULL AND (t.status IS NULL OR t.status <> 'running');

-- name: waiting_turns_have_their_place
-- scans: whole tables
-- A turn that is queued, or was withdrawn from the queue, has no messages; those of one that joined another are that one's.
SELECT t.id FROM turns t JOIN conversations c ON c.id = t.conversation
WHERE t.due_at IS NOT NULL
  AND (t.status NOT IN ('interrupted', 'failed') OR c.turn IS DISTINCT FROM t.id OR c.holder IS NOT NULL
       OR t.request IS NULL
       OR EXISTS (SELECT 1 FROM turns n WHERE n.conversation = t.conversation AND n.first_seq > t.first_seq
                    AND n.joined IS NULL))
UNION ALL
SELECT c.id FROM conversations c LEFT JOIN turns t ON t.id = c.turn
WHERE c.holder IS NULL AND c.turn IS NOT NULL AND t.due_at IS NULL;

-- name: settled_nodes_left_nothing
-- scans: whole tables
-- Also, nothing refers to an unknown node: no sweep would find it.
SELECT s.id FROM sessions s LEFT JOIN nodes n ON n.id = s.node
WHERE s.ended_at IS NULL AND s.attached = TRUE AND (n.id IS NULL OR n.settled_at IS NOT NULL)
UNION ALL
SELECT c.id FROM conversations c LEFT JOIN nodes n ON n.id = c.holder
WHERE c.holder IS NOT NULL AND (n.id IS NULL OR n.settled_at IS NOT NULL);

-- name: owners_agree
-- scans: whole tables
SELECT s.id FROM sessions s JOIN conversations c ON c.id = s.conversation WHERE s.owner <> c.owner
UNION ALL
SELECT t.id FROM turns t JOIN conversations c ON c.id = t.conversation WHERE t.owner <> c.owner;

-- name: ended_sessions_say_why
-- scans: whole tables
SELECT id FROM sessions WHERE (ended_at IS NULL) <> (end_reason IS NULL) OR (ended_at IS NULL) <> (last_seq IS NULL);

-- name: turns_in_known_states
-- scans: whole tables
SELECT id FROM turns WHERE status NOT IN ('queued', 'running', 'completed', 'interrupted', 'failed', 'cancelled')
   OR (status = 'running') <> (ended_at IS NULL);

-- name: queued_turns_are_whole
-- scans: whole tables
-- A queued turn has its request, its messages and its conversation; none that has begun is in a queue; each conversation knows
-- how many it has, and they are in the order in which they were accepted.
SELECT t.id FROM turns t LEFT JOIN queued_turns q ON q.turn = t.id
WHERE (t.status = 'queued') <> (q.turn IS NOT NULL) OR (t.status = 'queued' AND t.request IS NULL)
   OR q.no <> t.no OR q.conversation <> t.conversation
UNION ALL
SELECT c.id FROM conversations c
LEFT JOIN (SELECT conversation, count(*) AS number FROM queued_turns GROUP BY conversation) q ON q.conversation = c.id
WHERE c.queued <> coalesce(q.number, 0);

-- name: requests_have_turns
-- scans: whole tables
SELECT key FROM requests WHERE turn NOT IN (SELECT no FROM turns);

-- name: processes_in_known_states
-- scans: whole tables
SELECT id FROM processes WHERE state NOT IN ('starting', 'running', 'exited', 'stopped', 'lost')
   OR (state IN ('starting', 'running')) <> (ended_at IS NULL);

-- name: running_processes_are_identified
-- scans: whole tables
SELECT id FROM processes WHERE state = 'running' AND (pid <= 0 OR pid_start = '' OR boot_id = '' OR pid_ns = '');

-- name: one_memory_per_flush
-- scans: whole tables
-- Also no memory of a session whose flush is not done. An imported memory comes without its flush.
SELECT session FROM memories WHERE origin = 'flush' GROUP BY session HAVING count(*) > 1
UNION ALL
SELECT m.session FROM memories m JOIN flushes f ON f.session = m.session WHERE m.origin = 'flush' AND f.state <> 'done';

-- name: flushes_are_settled
-- scans: whole tables
SELECT session FROM flushes
WHERE state NOT IN ('pending', 'running', 'done', 'dead', 'skipped', 'taken')
   OR (state = 'pending') <> (next_attempt_at IS NOT NULL) OR (state = 'running') <> (node IS NOT NULL)
   OR (state = 'taken') <> (taken_by IS NOT NULL);

-- name: answered_messages_are_settled
-- scans: whole tables
SELECT i.platform_id FROM inbox i JOIN turns t ON t.id = i.turn WHERE i.state = 'taken' AND t.status = 'completed'
UNION ALL
SELECT d.id FROM deliveries d JOIN turns t ON t.id = d.turn WHERE d.state = 'growing' AND t.status = 'completed';

-- name: connector_rows_in_known_states
-- scans: whole tables
SELECT platform_id FROM inbox WHERE state NOT IN ('new', 'taken', 'done', 'failed', 'withdrawn')
   OR (state = 'taken' AND turn IS NULL)
UNION ALL
SELECT id FROM deliveries WHERE state NOT IN ('growing', 'pending', 'sent', 'dead') OR (state = 'sent') <> (sent_at IS NOT NULL)
   OR (state = 'growing' AND turn IS NULL)
UNION ALL
SELECT id FROM pairings WHERE state NOT IN ('pending', 'approved', 'revoked') OR (state = 'pending') <> (code_hash IS NOT NULL);

-- name: places_are_counted
-- scans: whole tables
SELECT c.id FROM conversations c
LEFT JOIN (SELECT conversation, count(*) AS number FROM places GROUP BY conversation) p ON p.conversation = c.id
WHERE c.places <> coalesce(p.number, 0);
