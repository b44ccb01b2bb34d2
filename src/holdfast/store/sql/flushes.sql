-- bigint: active_at, after_seq, at, before, below, enough, first, last, last_seq, limit, now, seq, since, token

-- fragment: flush_columns
f.session, f.conversation, f.owner, c.key, f.reason, f.state, f.after_seq, f.last_seq, f.attempts, f.interruptions,
f.next_attempt_at, f.node, f.token, f.error, f.created_at, f.settled_at

-- fragment: flush_tables
flushes f JOIN conversations c ON c.id = f.conversation

-- fragment: its_node_is_gone
NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = f.node AND n.left_at IS NULL AND n.reaped_at IS NULL)

-- name: insert_flush
-- In the transaction that ends the session, and once: a session has one flush.
INSERT INTO flushes (session, conversation, owner, reason, state, after_seq, last_seq, active_at, next_attempt_at, created_at)
VALUES (:session, :conversation, :owner, :reason, 'pending', :after_seq, :last_seq, :active_at, :at, :now);

-- name: flushed_seq
-- The seq up to which earlier flushes have read this session's context.
SELECT flushed_seq FROM sessions WHERE id = :session;

-- name: set_flushed_seq
UPDATE sessions SET flushed_seq = :seq WHERE id = :session;

-- name: count_said
-- How many messages of a span still count; counting stops when enough are found.
SELECT count(*) FROM (
    SELECT 1 FROM messages m
    WHERE m.conversation = :conversation AND m.seq BETWEEN :first AND :last AND m.deleted_at IS NULL AND NOT m.inner
      AND NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = m.conversation AND e.seq = m.seq)
    LIMIT :enough) AS said;

-- name: was_continued
-- True: another session has already continued its context.
SELECT 1 FROM sessions
WHERE conversation = :conversation AND parent = :parent AND edge IN ('resume', 'compaction') AND id <> :session LIMIT 1;

-- name: take_flush
-- The session is resumed: the session that continues it is flushed instead, with these messages.
UPDATE flushes SET state = 'taken', taken_by = :by, next_attempt_at = NULL, settled_at = :now
WHERE session = :session AND state = 'pending';

-- name: flush_by_session
-- locks: lock_flush(session)
SELECT {flush_columns} FROM {flush_tables} WHERE f.session = :session AND (:owner::text IS NULL OR f.owner = :owner);

-- name: flush_number
SELECT no FROM flushes WHERE session = :session;

-- name: flushes_of_owner
-- A page, the newest first, below the cursor.
SELECT {flush_columns} FROM {flush_tables}
WHERE f.owner = :owner AND f.no < :below AND (:state::text IS NULL OR f.state = :state) ORDER BY f.no DESC LIMIT :limit;

-- name: unsettled_flushes
-- The same for pending, running and dead flushes, of an owner or of all: few, by their own index.
SELECT {flush_columns} FROM flushes f INDEXED BY flushes_unsettled JOIN conversations c ON c.id = f.conversation
WHERE f.state IN ('pending', 'running', 'dead') AND f.state = :state AND (:owner::text IS NULL OR f.owner = :owner)
  AND f.no < :below ORDER BY f.no DESC LIMIT :limit;

-- name: flushes_of_all
-- The same for an operator.
SELECT {flush_columns} FROM {flush_tables}
WHERE f.no < :below AND (:state::text IS NULL OR f.state = :state) ORDER BY f.no DESC LIMIT :limit;

-- name: flushes_due
-- True: there is a flush to claim: a due one, or one whose node is gone. Costs nothing if there is none.
SELECT 1 FROM flushes WHERE state = 'pending' AND next_attempt_at <= :now
UNION ALL SELECT 1 FROM flushes f WHERE f.state = 'running' AND {its_node_is_gone}
LIMIT 1;

-- name: next_flush_token
-- First statement of a claim: serialises claimants.
UPDATE flush_turnstile SET token = token + 1 WHERE one = 1 RETURNING token;

-- name: abandoned_flushes
-- Claims of nodes that are gone.
SELECT f.session, f.interruptions FROM flushes f WHERE f.state = 'running' AND {its_node_is_gone}
FOR UPDATE SKIP LOCKED;

-- name: flushes_held_by
-- Claims of this node, locked: none of them is freed and claimed by another node before this transaction ends.
SELECT session FROM flushes WHERE state = 'running' AND node = :node FOR NO KEY UPDATE;

-- name: free_flush
-- Its node is gone, or gave it back. Not counted as an attempt: the model did not fail.
UPDATE flushes SET state = 'pending', node = NULL, attempts = attempts - 1, interruptions = interruptions + 1,
                   next_attempt_at = :now
WHERE session = :session AND state = 'running';

-- name: running_flushes
SELECT count(*) FROM flushes WHERE state = 'running';

-- name: forget_flush_attempts
-- Only those of the last minute count. Attempts dated in the future (wrong clock) do not count either.
DELETE FROM flush_attempts WHERE at <= :since OR at > :now;

-- name: recent_flush_attempts
SELECT count(*) FROM flush_attempts;

-- name: insert_flush_attempt
INSERT INTO flush_attempts (token, at) VALUES (:token, :now);

-- name: due_flushes
-- The longest waiting first. Rows locked by another transaction (such as a resume) are skipped.
SELECT session FROM flushes WHERE state = 'pending' AND next_attempt_at <= :now ORDER BY next_attempt_at, no LIMIT :limit
FOR UPDATE SKIP LOCKED;

-- name: claim_flush
UPDATE flushes SET state = 'running', node = :node, token = :token, attempts = attempts + 1, next_attempt_at = NULL
WHERE session = :session AND state = 'pending';

-- name: finish_flush
-- Only by the holder of the claim; together with the memory, or without one.
UPDATE flushes SET state = 'done', node = NULL, error = NULL, settled_at = :now
WHERE session = :session AND state = 'running' AND token = :token;

-- name: fail_flush
-- Requeue until then.
UPDATE flushes SET state = 'pending', node = NULL, error = :error, next_attempt_at = :at
WHERE session = :session AND state = 'running' AND token = :token;

-- name: bury_flush
-- A dead letter: retried only by a person.
UPDATE flushes SET state = 'dead', node = NULL, error = :error, settled_at = :now
WHERE session = :session AND state = 'running' AND token = :token;

-- name: is_claimed
-- locks: lock_flush(session)
SELECT 1 FROM flushes WHERE session = :session AND state = 'running' AND token = :token;

-- name: retry_flush
-- A dead, skipped or pending flush is due now, with a fresh count of attempts.
UPDATE flushes SET state = 'pending', attempts = 0, interruptions = 0, next_attempt_at = :now, settled_at = NULL, error = NULL
WHERE session = :session AND state IN ('dead', 'skipped', 'pending');

-- name: dead_letters
SELECT session FROM flushes INDEXED BY flushes_dead
WHERE state = 'dead' AND (:owner::text IS NULL OR owner = :owner) ORDER BY no LIMIT :limit
FOR NO KEY UPDATE SKIP LOCKED;

-- name: skip_flush
UPDATE flushes SET state = 'skipped', next_attempt_at = NULL, error = :error, settled_at = :now
WHERE session = :session AND state IN ('pending', 'dead');

-- name: flushes_to_skip
-- Of sessions without activity since.
SELECT session, conversation, owner FROM flushes
WHERE state IN ('pending', 'dead') AND active_at < :before AND (:owner::text IS NULL OR owner = :owner)
ORDER BY active_at LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: sessions_to_skip
-- Open sessions with something to flush: their messages so far are to be skipped.
SELECT s.id, s.owner, c.last_seq FROM sessions s JOIN conversations c ON c.id = s.conversation
WHERE s.ended_at IS NULL AND s.last_activity_at < :before AND (:owner::text IS NULL OR s.owner = :owner)
  AND s.flushed_seq < c.last_seq AND c.holder IS NULL
ORDER BY s.last_activity_at LIMIT :limit FOR NO KEY UPDATE OF c SKIP LOCKED;

-- name: flush_figures
-- scans: small indexes
-- Pending, running and dead flushes, and memories. Counts only through small indexes.
SELECT (SELECT count(*) FROM flushes WHERE state = 'pending'),
       (SELECT count(*) FROM flushes WHERE state = 'running'),
       (SELECT count(*) FROM flushes WHERE state = 'dead');

-- name: sessions_due_now
-- How many sessions the policies of this stamp will reset at once.
SELECT count(*) FROM sessions
WHERE ended_at IS NULL AND next_due_at IS NOT NULL AND dated_by = :stamp AND coalesce(recheck_at, next_due_at) <= :now;
