-- bigint: after, again_at, before, limit, no, now, until
-- boolean: undelivered, delivered, untried

-- fragment: notice_columns
t.id, t.owner, t.conversation, c.key, t.kind, t.text, t.created_at, t.delivered_at, t.process, t.sent_at, t.told_at

-- fragment: notice_tables
notices t JOIN conversations c ON c.id = t.conversation

-- fragment: notice_place
no

-- name: insert_notice
-- rows: any
INSERT INTO notices (id, owner, conversation, kind, text, created_at, process, send_at)
VALUES (:id, :owner, :conversation, :kind, :text, :now, :process, :now);

-- name: deliver_notice
-- Idempotent: a delivered notice keeps its first time.
UPDATE notices SET delivered_at = :now
WHERE id = :id AND delivered_at IS NULL AND (:owner::text IS NULL OR owner = :owner);

-- name: deliver_notices_of_owner
-- The same for all notices of an owner.
UPDATE notices SET delivered_at = :now WHERE delivered_at IS NULL AND owner = :owner;

-- name: deliver_all_notices
-- scans: small indexes
-- The same for an operator.
UPDATE notices SET delivered_at = :now WHERE delivered_at IS NULL;

-- name: deliveries_of_notice
SELECT d.connector, p.key, d.state, d.sent_at, d.error FROM deliveries d JOIN places p ON p.id = d.place
WHERE d.notice = :notice ORDER BY d.no;

-- name: notice_by_id
SELECT {notice_columns} FROM {notice_tables} WHERE t.id = :id AND (:owner::text IS NULL OR t.owner = :owner);

-- name: notice_number
SELECT {notice_place} FROM notices WHERE id = :id;

-- name: notices_of_owner
-- A page, oldest first, after the cursor: in commit order.
SELECT {notice_columns} FROM {notice_tables}
WHERE t.owner = :owner AND t.{notice_place} > :after ORDER BY t.{notice_place} LIMIT :limit;

-- name: undelivered_of_owner
-- The same, only undelivered ones.
SELECT {notice_columns} FROM {notice_tables}
WHERE t.owner = :owner AND t.delivered_at IS NULL AND t.{notice_place} > :after ORDER BY t.{notice_place} LIMIT :limit;

-- name: notices_of_all
-- The same for an operator.
SELECT {notice_columns} FROM {notice_tables}
WHERE t.{notice_place} > :after AND (NOT :undelivered OR t.delivered_at IS NULL) ORDER BY t.{notice_place} LIMIT :limit;

-- name: newest_notices_of_owner
-- The newest first, before the cursor. `delivered` is NULL: in either state.
SELECT {notice_columns} FROM {notice_tables}
WHERE t.owner = :owner AND t.{notice_place} < :after
  AND (:delivered::boolean IS NULL OR (t.delivered_at IS NOT NULL) = :delivered)
ORDER BY t.{notice_place} DESC LIMIT :limit;

-- name: newest_notices_of_all
-- The same for an operator.
SELECT {notice_columns} FROM {notice_tables}
WHERE t.{notice_place} < :after AND (:delivered::boolean IS NULL OR (t.delivered_at IS NOT NULL) = :delivered)
ORDER BY t.{notice_place} DESC LIMIT :limit;

-- name: undelivered_of_conversation
-- locks: lock_conversation(id=conversation)
-- A conversation has few notices, and fewer undelivered ones.
SELECT {notice_columns} FROM {notice_tables}
WHERE t.conversation = :conversation AND t.delivered_at IS NULL ORDER BY t.no;

-- name: untold_of_conversation
-- many: conversation
-- usually: empty
-- Carried by no reply and not delivered yet.
SELECT {notice_columns} FROM {notice_tables}
WHERE t.conversation = :conversation AND t.told_at IS NULL AND t.delivered_at IS NULL ORDER BY t.no;

-- name: give_notice
-- rows: any
-- Assign to a turn that begins. A turn that ended without an answer has carried none: the next turn gets the same.
UPDATE notices SET given_to = :turn WHERE id = :id;

-- name: tell_notices
-- many: turn
-- rows: any
-- The reply of this turn carried the notices assigned when it began, and no others.
UPDATE notices SET told_at = :now WHERE conversation = :conversation AND told_at IS NULL AND given_to = :turn;

-- name: notices_to_send
SELECT 1 FROM notices WHERE send_at <= :now LIMIT 1;

-- name: give_up_notices
-- Too old to be sent. Returns for each whether it was tried.
UPDATE notices SET send_at = NULL
WHERE no IN (SELECT no FROM notices WHERE send_at <= :now AND created_at < :before ORDER BY send_at LIMIT :limit
             FOR UPDATE SKIP LOCKED)
RETURNING send_attempts > 0;

-- name: claim_notices
-- The longest waiting first. No other node sends them until then.
UPDATE notices SET send_at = :until, send_attempts = send_attempts + 1
WHERE no IN (SELECT no FROM notices WHERE send_at <= :now ORDER BY send_at LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING no, send_attempts;

-- name: notice_by_number
SELECT {notice_columns} FROM {notice_tables} WHERE t.no = :no;

-- name: notice_sent
UPDATE notices SET sent_at = :now, send_at = NULL WHERE id = :id AND sent_at IS NULL;

-- name: notice_unsent
-- Requeue; a notice that was not tried does not count as an attempt.
UPDATE notices SET send_at = :again_at, send_attempts = send_attempts - :untried::boolean::integer WHERE id = :id AND sent_at IS NULL;
