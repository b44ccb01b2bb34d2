-- bigint: after, again_at, before, count, edited_at, expires_at, hears_all, limit, linked, no, now, ordinal, seq, token
-- bytea: code_hash

-- fragment: chat_place_columns
p.id, p.connector, p.address, p.kind, p.owner, p.key, p.conversation, p.linked, p.hears_all

-- fragment: inbox_columns
i.no, i.platform_id, i.sender, i.sender_name, i.text, i.state, i.turn, i.attempts, i.received_at, i.files

-- fragment: unless_done
text = CASE WHEN :state = 'done' THEN '' ELSE text END, files = CASE WHEN :state = 'done' THEN NULL ELSE files END

-- fragment: delivery_columns
d.no, d.id, d.connector, p.address, d.owner, d.conversation, p.key, d.kind, d.turn, d.notice, d.text, d.reply_to, d.parts,
d.state, d.attempts, d.error, d.created_at, d.due_at, d.sent_at

-- fragment: delivery_tables
deliveries d JOIN places p ON p.id = d.place

-- fragment: pairing_columns
id, connector, person, name, address, key, owner, state, created_at, expires_at, decided_at

-- name: insert_connector
-- rows: any
INSERT INTO connectors (name, kind, state, since) VALUES (:name, :kind, 'stopped', :now) ON CONFLICT DO NOTHING;

-- name: claim_connector
-- A connector that no living node runs. The token rises, so the last owner's late writes are refused. No row: a present
-- node runs it.
UPDATE connectors SET node = :node, token = token + 1, kind = :kind
WHERE name = :name AND (node IS NULL OR node = :node OR NOT EXISTS (
    SELECT 1 FROM nodes n WHERE n.id = connectors.node AND n.left_at IS NULL AND n.reaped_at IS NULL))
RETURNING token, cursor;

-- name: connector_node
SELECT node FROM connectors WHERE name = :name;

-- name: connector_kind
-- locks: lock_connector(name)
-- For revoking a pairing: no message of this connector is being taken, so no chat is bound meanwhile.
SELECT kind FROM connectors WHERE name = :name;

-- name: connector_claim
-- locks: lock_connector(name)
-- A row: this token is the newest.
SELECT 1 FROM connectors WHERE name = :name AND token = :token;

-- name: move_cursor
-- rows: any
UPDATE connectors SET cursor = :cursor WHERE name = :name;

-- name: note_connector
-- Changes nothing if that is noted already: `since` is the time of the change.
UPDATE connectors SET state = :state, problem = :problem, since = CASE WHEN state = :state THEN since ELSE :now END
WHERE name = :name AND (state <> :state OR problem IS DISTINCT FROM :problem);

-- name: release_connector
UPDATE connectors SET node = NULL, state = 'stopped', problem = NULL, since = :now WHERE name = :name AND token = :token;

-- name: connector_states
-- scans: a small table
-- As many rows as the settings have connectors. Both counts are by small indexes.
SELECT name, kind, node, state, problem, since,
       (SELECT count(*) FROM deliveries d WHERE d.connector = connectors.name AND d.state = 'pending'),
       (SELECT count(*) FROM deliveries d WHERE d.connector = connectors.name AND d.state = 'dead')
FROM connectors ORDER BY name;

-- name: insert_chat_place
-- rows: any
INSERT INTO places (id, connector, address, kind, owner, key, created_at)
VALUES (:id, :connector, :address, :kind, :owner, :key, :now) ON CONFLICT DO NOTHING;

-- name: chat_place_at
SELECT {chat_place_columns} FROM places p WHERE p.connector = :connector AND p.address = :address;

-- name: chat_place_by_id
SELECT {chat_place_columns} FROM places p WHERE p.id = :id;

-- name: chat_place_to_bind
-- Locked: no other node binds it before this transaction ends.
SELECT {chat_place_columns} FROM places p WHERE p.id = :id FOR NO KEY UPDATE;

-- name: chat_places_of_conversation
SELECT {chat_place_columns} FROM places p WHERE p.conversation = :conversation ORDER BY p.id;

-- name: chat_places_of_owner
-- scans: whole tables
-- time: usual
-- For listing an owner's places.
SELECT {chat_place_columns} FROM places p WHERE :owner::text IS NULL OR p.owner = :owner ORDER BY p.connector, p.address;

-- name: chat_places_of_person
-- scans: whole tables
-- time: usual
-- By hand: the direct chat in which this person asked to be paired, those in which they wrote, and, because old messages
-- are dropped, those of the owner that they are, unless another person is paired to it.
SELECT {chat_place_columns} FROM places p WHERE p.connector = :connector AND p.kind = 'direct' AND (p.address = :address
    OR p.id IN (SELECT i.place FROM inbox i WHERE i.connector = :connector AND i.sender = :person)
    OR (p.owner = :owner AND NOT EXISTS (SELECT 1 FROM pairings o WHERE o.connector = :connector AND o.owner = :owner
                                         AND o.person <> :person AND o.state = 'approved')))
ORDER BY p.conversation, p.id;

-- name: own_chat_place
-- rows: any
UPDATE places SET owner = :owner, key = :key WHERE id = :id;

-- name: bind_chat_place
-- rows: any
UPDATE places SET conversation = :conversation, linked = :linked, hears_all = :hears_all WHERE id = :id;

-- name: count_chat_places
-- rows: any
-- The conversation is locked: what others have bound to it is committed, and visible to this statement.
UPDATE conversations SET places = (SELECT count(*) FROM places WHERE conversation = :id) WHERE id = :id;

-- name: clear_home
-- rows: any
UPDATE places SET home = 0 WHERE home = 1;

-- name: set_home
-- scans: whole tables
-- time: usual
-- By hand, or once when a server starts.
UPDATE places SET home = 1 WHERE key = :key;

-- name: insert_inbox
-- No row: the platform has sent this update before.
INSERT INTO inbox (connector, platform_id, place, sender, sender_name, text, ordinal, state, due_at, received_at, edited_at,
                   files)
VALUES (:connector, :platform_id, :place, :sender, :sender_name, :text, :ordinal, 'new', :now, :now, :edited_at, :files)
ON CONFLICT DO NOTHING;

-- name: edit_inbox
-- A message that no turn has yet is answered as it is now; else only the edit is recorded.
UPDATE inbox SET edited_at = :now, text = CASE WHEN state = 'new' THEN :text ELSE text END
WHERE connector = :connector AND platform_id = :platform_id;

-- name: withdraw_inbox
-- rows: any
UPDATE inbox SET deleted_at = :now, state = CASE WHEN state = 'new' THEN 'withdrawn' ELSE state END,
                 text = CASE WHEN state = 'new' THEN '' ELSE text END, files = CASE WHEN state = 'new' THEN NULL ELSE files END
WHERE connector = :connector AND platform_id = :platform_id AND deleted_at IS NULL;

-- fragment: inbox_due_at
-- One that was received after now is due: the clock was set back, and the message would wait for as long.
CASE WHEN received_at > :now THEN :now ELSE due_at END

-- name: withdraw_inbox_of_person
-- rows: any
-- What a person wrote and no turn has yet, when the person is refused.
UPDATE inbox SET deleted_at = :now, state = 'withdrawn', text = '', files = NULL
WHERE connector = :connector AND sender = :person AND state IN ('new', 'taken') AND state = 'new';

-- name: open_inbox_places
-- Places with messages that are not answered, each with the time of its first attempt that is due.
SELECT place, min({inbox_due_at}) FROM inbox WHERE connector = :connector AND state IN ('new', 'taken')
GROUP BY place ORDER BY min(no) LIMIT :limit;

-- name: open_inbox
SELECT {inbox_columns} FROM inbox i
WHERE i.connector = :connector AND i.place = :place AND i.state IN ('new', 'taken') ORDER BY i.ordinal, i.no LIMIT :limit;

-- name: inbox_due
-- When this place's first message may be tried again.
SELECT min({inbox_due_at}) FROM inbox WHERE connector = :connector AND place = :place AND state = 'taken';

-- name: inbox_of_turn
SELECT {inbox_columns} FROM inbox i WHERE i.turn = :turn ORDER BY i.ordinal, i.no;

-- name: inbox_place_of_turn
SELECT {chat_place_columns} FROM places p WHERE p.id = (SELECT place FROM inbox WHERE turn = :turn ORDER BY no LIMIT 1);

-- name: take_inbox
-- rows: any
UPDATE inbox SET state = 'taken', turn = :turn, conversation = :conversation WHERE no = :no AND state = 'new';

-- name: assign_inbox
-- rows: any
-- A command that asks for a turn has that turn's id from now on.
UPDATE inbox SET state = 'taken', turn = :turn, conversation = :conversation WHERE no = :no AND state IN ('new', 'taken');

-- name: join_inbox
-- rows: any
-- The messages of a queued turn have joined another turn, whose reply answers them too.
UPDATE inbox SET turn = :joined WHERE turn = :turn;

-- name: new_commands
-- Messages that begin like a command which does not wait for its turn (AT_ONCE), the first few of each place: no place's
-- messages hide those of others.
SELECT no, platform_id, sender, sender_name, text, state, turn, attempts, received_at, files, place FROM (
    SELECT {inbox_columns}, i.place, row_number() OVER (PARTITION BY i.place ORDER BY i.no) AS position FROM inbox i
    WHERE i.connector = :connector AND i.state IN ('new', 'taken') AND i.state = 'new'
      AND (lower(substr(i.text, 1, 5)) IN ('/stop', '/help') OR lower(substr(i.text, 1, 4)) = '/why'
           OR lower(substr(i.text, 1, 3)) = '/ps')) c
WHERE position <= 10 ORDER BY no LIMIT :limit;

-- name: settle_inbox
-- No row: it was finished before. What was answered is in the conversation: it is not kept twice.
UPDATE inbox SET state = :state, error = :error, {unless_done}
WHERE no = :no AND state IN ('new', 'taken');

-- name: settle_inbox_of_turn
-- rows: any
UPDATE inbox SET state = :state, error = :error, {unless_done}
WHERE turn = :turn AND state IN ('new', 'taken');

-- name: empty_inbox
-- rows: any
-- What was not answered keeps its text, until the message is deleted.
UPDATE inbox SET text = '', files = NULL, error = NULL WHERE state NOT IN ('new', 'taken')
  AND turn = (SELECT turn FROM messages WHERE conversation = :conversation AND seq = :seq);

-- name: postpone_inbox
-- rows: any
-- A time of receipt that is ahead is corrected: else it would be due at once, see `inbox_due_at`.
UPDATE inbox SET attempts = attempts + :count, due_at = :again_at, error = :error,
                 received_at = CASE WHEN received_at > :now THEN :now ELSE received_at END
WHERE no = :no AND state IN ('new', 'taken');

-- name: prune_inbox
DELETE FROM inbox WHERE no IN (
    SELECT no FROM inbox WHERE received_at < :before AND state NOT IN ('new', 'taken') ORDER BY received_at LIMIT :limit);

-- name: insert_delivery
-- rows: any
INSERT INTO deliveries (id, connector, place, owner, conversation, kind, turn, notice, text, reply_to, state, due_at, created_at)
VALUES (:id, :connector, :place, :owner, :conversation, :kind, :turn, :notice, :text, :reply_to, 'pending', :now, :now)
ON CONFLICT DO NOTHING;

-- name: complete_delivery
-- The reply is whole. The same platform message is completed: its parts stay. No row: nothing was shown of it yet.
UPDATE deliveries SET text = :text, state = 'pending', due_at = :now, claimed_by = NULL
WHERE turn = :turn AND place = :place AND kind = :kind AND state = 'growing';

-- name: insert_growing
-- rows: any
INSERT INTO deliveries (id, connector, place, owner, conversation, kind, turn, text, reply_to, state, due_at, created_at)
VALUES (:id, :connector, :place, :owner, :conversation, 'reply', :turn, '', :reply_to, 'growing', :now, :now)
ON CONFLICT DO NOTHING;

-- name: has_pending
-- A row: something before it is not sent to this place yet.
SELECT 1 FROM deliveries WHERE connector = :connector AND place = :place AND state = 'pending' LIMIT 1;

-- name: growing_of_turn
SELECT {delivery_columns} FROM {delivery_tables}
WHERE d.turn = :turn AND d.place = :place AND d.kind = 'reply' AND d.state = 'growing';

-- name: deliver_to_places
-- rows: any
-- A notice goes to every place of its conversation, or to the home place if it has none.
INSERT INTO deliveries (id, connector, place, owner, conversation, kind, notice, text, state, due_at, created_at)
SELECT 'dlv_' || :id || '_' || p.id, p.connector, p.id, p.owner, :conversation, 'notice', :id, :text, 'pending', :now, :now
FROM places p WHERE p.conversation = :conversation
   OR (p.home = 1 AND NOT EXISTS (SELECT 1 FROM places q WHERE q.conversation = :conversation)) ON CONFLICT DO NOTHING;

-- name: webhook_of_response
-- No row: no connector is notified of this response.
SELECT r.webhook, r.owner, t.conversation FROM responses r JOIN turns t ON t.id = r.turn
WHERE r.id = :id AND r.webhook IS NOT NULL;

-- fragment: delivery_due_at
-- One that was made after now is due: see `inbox_due_at`.
CASE WHEN d.created_at > :now THEN :now ELSE d.due_at END

-- name: due_deliveries
-- The oldest of each place that is not sent: what comes after it in the same place waits for it.
SELECT d.no FROM deliveries d
WHERE d.connector = :connector AND d.state = 'pending' AND {delivery_due_at} <= :now
  AND (d.claimed_by IS NULL OR d.claimed_by <> :token)
  AND NOT EXISTS (SELECT 1 FROM deliveries e WHERE e.connector = :connector AND e.place = d.place
                  AND e.state = 'pending' AND e.no < d.no)
ORDER BY d.no LIMIT :limit;

-- name: next_delivery_due
SELECT min({delivery_due_at}) FROM deliveries d WHERE connector = :connector AND state = 'pending';

-- name: claim_delivery
-- rows: any
UPDATE deliveries SET claimed_by = :token, attempts = attempts + 1 WHERE no = :no AND state = 'pending';

-- name: delivery_by_number
SELECT {delivery_columns} FROM {delivery_tables} WHERE d.no = :no;

-- name: delivery_by_id
SELECT {delivery_columns} FROM {delivery_tables} WHERE d.id = :id AND (:owner::text IS NULL OR d.owner = :owner);

-- name: note_parts
-- No row: it was completed by the reply's commit, or deleted.
UPDATE deliveries SET parts = :parts WHERE id = :id;

-- name: delivery_sent
-- The text is in the conversation, or was only for this message: it is not kept twice.
UPDATE deliveries SET state = 'sent', sent_at = :now, parts = :parts, text = '', error = NULL, claimed_by = NULL
WHERE id = :id AND state = 'pending' RETURNING notice;

-- name: delivery_failed
-- A time of creation that is ahead is corrected: see `postpone_inbox`.
UPDATE deliveries SET state = :state, due_at = :again_at, error = :error, claimed_by = NULL,
                      created_at = CASE WHEN created_at > :now THEN :now ELSE created_at END
WHERE id = :id AND state = 'pending' RETURNING owner, conversation, attempts, kind, place;

-- name: report_dead
-- rows: any
-- A dead letter is reported in the other places of its conversation, and in the home place.
INSERT INTO deliveries (id, connector, place, owner, conversation, kind, text, state, due_at, created_at)
SELECT 'dlv_dead_' || :id || '_' || p.id, p.connector, p.id, p.owner, :conversation, 'notice', :text, 'pending', :now, :now
FROM places p WHERE (p.conversation = :conversation OR p.home = 1) AND p.id <> :place ON CONFLICT DO NOTHING;

-- name: retry_delivery
UPDATE deliveries SET state = 'pending', due_at = :now, attempts = 0, claimed_by = NULL WHERE id = :id AND state = 'dead';

-- name: end_growing
-- rows: any
-- A reply that will not be completed is shown as far as it came. It is the turn's no longer: a retry sends its own.
UPDATE deliveries SET state = 'pending', turn = NULL, text = :text, due_at = :now, claimed_by = NULL
WHERE id = :id AND state = 'growing';

-- name: forget_deliveries
-- rows: any
-- What a deleted message says is not sent any more, and not kept as a dead letter.
DELETE FROM deliveries WHERE state IN ('pending', 'dead')
  AND turn = (SELECT turn FROM messages WHERE conversation = :conversation AND seq = :seq)
  AND (kind = 'said' OR (SELECT role FROM messages WHERE conversation = :conversation AND seq = :seq) = 'assistant');

-- name: drop_unsent_of_others
-- rows: any
-- scans: whole tables
-- time: usual
-- By hand. Notices and messages of other places that were not sent to this place yet.
DELETE FROM deliveries WHERE place = :place AND state IN ('pending', 'dead') AND kind IN ('notice', 'said');

-- name: drop_growing
-- rows: any
DELETE FROM deliveries WHERE id = :id AND state = 'growing';

-- name: deliveries_of_all
SELECT {delivery_columns} FROM {delivery_tables}
WHERE d.no > :after AND (:state::text IS NULL OR d.state = :state OR (:state = 'pending' AND d.state = 'growing'))
ORDER BY d.no LIMIT :limit;

-- name: deliveries_of_owner
SELECT {delivery_columns} FROM {delivery_tables}
WHERE d.owner = :owner AND d.no > :after
  AND (:state::text IS NULL OR d.state = :state OR (:state = 'pending' AND d.state = 'growing'))
ORDER BY d.no LIMIT :limit;

-- name: prune_deliveries
DELETE FROM deliveries WHERE no IN (
    SELECT no FROM deliveries WHERE state = 'sent' AND sent_at < :before ORDER BY sent_at LIMIT :limit);

-- name: pairing_of_person
-- locks: share_pairing(connector, person)
-- For storing what the person wrote: a revocation waits, and then finds it.
SELECT {pairing_columns} FROM pairings WHERE connector = :connector AND person = :person;

-- name: pairing_by_code
SELECT {pairing_columns} FROM pairings WHERE code_hash = :code_hash AND state = 'pending' AND expires_at > :now;

-- name: pairing_by_id
SELECT {pairing_columns} FROM pairings WHERE id = :id;

-- name: pairings_of
-- scans: whole tables
-- time: usual
-- People of one installation: each was paired by hand or has asked within the hour.
SELECT {pairing_columns} FROM pairings WHERE :state::text IS NULL OR state = :state ORDER BY created_at, id LIMIT :limit;

-- name: pending_pairings
-- scans: whole tables
-- time: usual
SELECT count(*) FROM pairings WHERE connector = :connector AND state = 'pending' AND expires_at > :now;

-- name: drop_expired_pairings
-- rows: any
-- scans: whole tables
-- time: usual
DELETE FROM pairings WHERE connector = :connector AND state = 'pending' AND expires_at <= :now;

-- name: insert_pairing
-- No row: this person has a pairing, or a code that is still valid.
INSERT INTO pairings (id, connector, person, name, address, key, state, code_hash, expires_at, created_at)
VALUES (:id, :connector, :person, :name, :address, :key, 'pending', :code_hash, :expires_at, :now)
ON CONFLICT DO NOTHING;

-- name: approve_pairing
-- A code is used once: its hash is deleted.
UPDATE pairings SET state = 'approved', owner = :owner, key = :key, code_hash = NULL, expires_at = NULL, decided_at = :now
WHERE id = :id AND state = 'pending';

-- name: revoke_pairing
-- No row: it was revoked before, or is unknown.
UPDATE pairings SET state = 'revoked', code_hash = NULL, expires_at = NULL, decided_at = :now
WHERE id = :id AND state <> 'revoked';

-- name: insert_link_code
-- rows: any
INSERT INTO link_codes (code_hash, owner, conversation, expires_at) VALUES (:code_hash, :owner, :conversation, :expires_at);

-- name: use_link_code
-- A code is used once, and only by its owner.
DELETE FROM link_codes WHERE code_hash = :code_hash AND owner = :owner AND expires_at > :now RETURNING conversation;

-- name: drop_expired_link_codes
-- rows: any
-- scans: whole tables
-- time: usual
DELETE FROM link_codes WHERE expires_at <= :now;
