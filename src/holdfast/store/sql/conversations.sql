-- bigint: below, bytes, count, last_seq, limit, now, token
-- boolean: anonymous, waits
-- bytea: history

-- fragment: conversation_columns
id, owner, key, title, source, tip, last_seq, token, holder, turn, created_at, forked_from,
revision, nullif(history_hash, x'')

-- name: conversations_titled
-- scans: whole tables
-- time: usual
-- Some conversations whose title or key contains this.
SELECT id FROM conversations WHERE (:owner::text IS NULL OR owner = :owner)
  AND strpos(lower(coalesce(title, '') || ' ' || coalesce(key, '')), lower(:title)) > 0 LIMIT :limit;

-- name: conversation_by_id
-- locks: lock_conversation(id)
-- A conversation by its own id, for its owner (or for an operator, owner NULL).
SELECT {conversation_columns} FROM conversations WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- name: conversation_by_alias
-- locks: lock_by_alias(owner, id)
-- conversation in: column 0
-- A conversation by its alias.
SELECT {conversation_columns} FROM conversations
WHERE id = (SELECT conversation FROM aliases WHERE owner = :owner AND alias = :id);

-- name: insert_conversation
-- rows: any
-- A conversation and its first session are inserted together. One that begins with a turn is inserted with its lease.
INSERT INTO conversations (id, owner, key, title, source, tip, last_seq, bytes, forked_from, anonymous, created_at,
                           token, holder, turn)
VALUES (:id, :owner, :key, :title, :source, :tip, :last_seq, :bytes, :forked_from, :anonymous, :now,
        :token, :holder, :turn);

-- name: conversations_with_history
-- Conversations begun without a name whose whole visible history is this one. LIMIT 2: only whether exactly one
-- matches is needed.
SELECT {conversation_columns} FROM conversations
WHERE owner = :owner AND history_hash = :history AND anonymous = TRUE AND holder IS NULL LIMIT 2;

-- name: forks_with_history
-- Forks of a conversation whose whole visible history is this one. LIMIT 2: only whether exactly one matches is
-- needed.
SELECT {conversation_columns} FROM conversations
WHERE forked_from IN (SELECT id FROM sessions WHERE conversation = :conversation)
  AND owner = :owner AND history_hash = :history AND holder IS NULL LIMIT 2;

-- name: conversation_with_metadata
SELECT {conversation_columns}, metadata FROM conversations WHERE id = :id;

-- name: conversations_of_owner
-- A page of an owner's conversations, the newest first, below the one whose first session has this number.
SELECT {conversation_columns}, metadata
FROM (SELECT conversation, no FROM sessions WHERE owner = :owner AND ordinal = 1 AND no < :below) f
JOIN conversations ON id = f.conversation ORDER BY f.no DESC LIMIT :limit;

-- name: conversations_of_all
-- The same for an operator.
SELECT {conversation_columns}, metadata
FROM (SELECT conversation, no FROM sessions WHERE ordinal = 1 AND no < :below) f
JOIN conversations ON id = f.conversation ORDER BY f.no DESC LIMIT :limit;

-- name: first_session
-- The number of a conversation's first session: sessions are numbered as they are opened.
SELECT no FROM sessions WHERE conversation = :conversation AND ordinal = 1 AND (:owner::text IS NULL OR owner = :owner);

-- name: owners
-- scans: whole tables
-- time: usual
-- For an operator's search, which has set its own time limit: a longer one would replace it.
SELECT DISTINCT owner FROM sessions WHERE ordinal = 1;

-- name: conversation_bytes
SELECT bytes FROM conversations WHERE id = :id;

-- name: owner_conversations
-- Index-only, by the index of first sessions.
SELECT count(*) FROM sessions WHERE owner = :owner AND ordinal = 1;

-- name: owner_bytes
-- Of an owner's conversations, and of its items that belong to none.
SELECT (coalesce(sum(c.bytes), 0) + (
    SELECT coalesce(sum(octet_length(i.value)), 0) FROM items i WHERE i.owner = :owner AND i.conversation IS NULL))::bigint
FROM sessions s JOIN conversations c ON c.id = s.conversation
WHERE s.owner = :owner AND s.ordinal = 1;

-- name: usage
-- scans: whole tables
-- Stored bytes per owner, the most first. Scans all conversations: for an operator.
SELECT c.owner, count(*), (coalesce(sum(c.bytes), 0) + coalesce(max(i.held), 0))::bigint AS held FROM conversations c
LEFT JOIN (SELECT owner, sum(octet_length(value)) AS held FROM items WHERE conversation IS NULL GROUP BY owner) i
    ON i.owner = c.owner
GROUP BY c.owner ORDER BY held DESC, c.owner LIMIT :limit;

-- name: usage_of_owner
-- The same for one owner, by the index of its first sessions.
SELECT s.owner, count(*), (coalesce(sum(c.bytes), 0) + (
    SELECT coalesce(sum(octet_length(i.value)), 0) FROM items i WHERE i.owner = :owner AND i.conversation IS NULL))::bigint
FROM sessions s JOIN conversations c ON c.id = s.conversation
WHERE s.owner = :owner AND s.ordinal = 1 GROUP BY s.owner;

-- name: grow
-- many: id
-- rows: any
-- It holds this many bytes more.
UPDATE conversations SET bytes = bytes + :bytes WHERE id = :id;

-- name: free_bytes
-- rows: any
-- A message has lost this many bytes.
UPDATE conversations SET bytes = bytes - :bytes WHERE id = :id;

-- name: recount_bytes
UPDATE conversations SET bytes = (
    SELECT coalesce(sum(length(m.body)), 0) FROM messages m WHERE m.conversation = conversations.id) + (
    SELECT coalesce(sum(length(k.body)), 0) FROM checkpoints k WHERE k.conversation = conversations.id) + (
    SELECT coalesce(sum(length(p.body)), 0) FROM checkpoint_parts p WHERE p.conversation = conversations.id) + (
    SELECT coalesce(sum(length(w.body)), 0) FROM checkpoint_writes w WHERE w.conversation = conversations.id) + (
    SELECT coalesce(sum(octet_length(i.value)), 0) FROM items i WHERE i.conversation = conversations.id) + (
    SELECT coalesce(sum(a.size), 0) FROM attachments a WHERE a.conversation = conversations.id) WHERE id = :id;

-- name: set_metadata
UPDATE conversations SET metadata = :metadata
WHERE id = :id AND (:owner::text IS NULL OR owner = :owner) RETURNING id;

-- name: add_messages
-- locks: lock_conversation(id)
-- Seqs for messages outside of a turn, only while no turn runs. The visible history changes.
UPDATE conversations SET last_seq = last_seq + :count, bytes = bytes + :bytes, history_hash = NULL
WHERE id = :id AND holder IS NULL RETURNING last_seq;

-- name: number_in_ready
-- many: id
-- locks: share_node(id=node)
-- rows: one
-- The same in a conversation that was read as free, at this last_seq, in this transaction, by a node that is present.
UPDATE conversations SET last_seq = last_seq + :count, bytes = bytes + :bytes, history_hash = NULL
WHERE id = :id AND holder IS NULL AND last_seq = :last_seq
  AND EXISTS (SELECT 1 FROM nodes WHERE id = :node AND left_at IS NULL AND reaped_at IS NULL);

-- name: meant_by_alias
-- The exact session that this alias referred to, if any.
SELECT session FROM aliases WHERE conversation = :conversation AND alias = :alias AND session IS NOT NULL;

-- name: insert_alias
-- rows: any
INSERT INTO aliases (owner, alias, conversation, created_at) VALUES (:owner, :alias, :conversation, :now);

-- name: insert_free_alias
-- rows: any
-- No row: another conversation of this owner has the alias.
INSERT INTO aliases (owner, alias, conversation, created_at) VALUES (:owner, :alias, :conversation, :now)
ON CONFLICT DO NOTHING;

-- name: set_tip
-- rows: any
-- Every id of the conversation resolves to the newest session of the line.
UPDATE conversations SET tip = :tip, revision = revision + 1 WHERE id = :id;

-- name: set_title
UPDATE conversations SET title = :title WHERE id = :id AND (:owner::text IS NULL OR owner = :owner) RETURNING id;

-- name: suggest_title
-- Zero rows: it has a title, or is gone.
UPDATE conversations SET title = :title WHERE id = :id AND owner = :owner AND title IS NULL;

-- name: touch_revision
-- rows: any
-- A context changed other than by an appended message: cached contexts are invalid. So is the history of a running
-- turn: the empty chain is the mark for release_lease.
UPDATE conversations SET revision = revision + 1, history_hash = CASE WHEN holder IS NOT NULL THEN x'' END
WHERE id = :id;

-- name: take_lease
-- many: id
-- locks: share_node(id=node)
-- rows: one
-- Only a free conversation, still at the token that was read, only by a node that is present. The token rises with
-- each holder. Messages get their seqs in the same statement. The visible history is about to change.
UPDATE conversations SET holder = :node, turn = :turn, token = :token + 1, last_seq = last_seq + :count,
                         bytes = bytes + :bytes, history_hash = NULL
WHERE id = :id AND holder IS NULL AND token = :token
  AND EXISTS (SELECT 1 FROM nodes WHERE id = :node AND left_at IS NULL AND reaped_at IS NULL);

-- fragment: is_held_by
holder = :node

-- name: number_messages
-- Seqs for a turn's messages. Zero rows: the lease was lost, and nothing is written.
UPDATE conversations SET last_seq = last_seq + :count, bytes = bytes + :bytes
WHERE id = :id AND token = :token AND {is_held_by}
RETURNING last_seq, owner;

-- name: release_lease
-- many: id
-- Number the last messages and release the lease, in one statement. The token stays, so it is never reused. The
-- history is the one the turn gives, unless something was removed from it meanwhile.
UPDATE conversations SET last_seq = last_seq + :count, bytes = bytes + :bytes, holder = NULL, turn = NULL,
                         history_hash = CASE WHEN history_hash IS NULL THEN :history END
WHERE id = :id AND token = :token AND {is_held_by}
RETURNING last_seq, owner, places;

-- name: fence_lease
-- Take the lease away from its holder: a late writer's token no longer matches. A turn that `waits` to be retried
-- keeps the conversation's place.
UPDATE conversations SET last_seq = last_seq + :count, bytes = bytes + :bytes, holder = NULL,
                         turn = CASE WHEN :waits THEN turn END, token = token + 1, history_hash = NULL
WHERE id = :id AND turn = :turn
RETURNING last_seq;

-- name: claim_for_waiting
-- A free conversation keeps the place of a turn that is to be retried. Zero rows: it is not free.
UPDATE conversations SET turn = :turn WHERE id = :id AND turn IS NULL AND holder IS NULL;

-- name: release_waiting
-- rows: any
-- The waiting turn is given up or withdrawn: the conversation is free.
UPDATE conversations SET turn = NULL WHERE id = :id AND turn = :turn AND holder IS NULL;

-- name: held_by
-- What a node holds according to the store.
SELECT id, turn FROM conversations WHERE holder = :node ORDER BY id;

-- name: turns_by_node
SELECT holder, count(*) FROM conversations WHERE holder IS NOT NULL AND turn IS NOT NULL GROUP BY holder;

-- name: still_held_by
-- locks: lock_conversation(id)
-- The turn of this conversation, if this node holds it; read under the conversation's lock.
SELECT turn FROM conversations WHERE id = :id AND holder = :node;

-- name: holder_is_gone
-- locks: lock_conversation(id)
-- Returns the turn, if this conversation is held by a node that has left or was reaped.
SELECT c.turn FROM conversations c JOIN nodes n ON n.id = c.holder
WHERE c.id = :id AND (n.left_at IS NOT NULL OR n.reaped_at IS NOT NULL);

-- name: free_stray_lease
-- locks: lock_conversation(id)
-- A lease without a turn row protects nothing.
UPDATE conversations SET holder = NULL, turn = NULL, token = token + 1, history_hash = NULL WHERE id = :id;

-- name: holds_only_turn
-- locks: lock_conversation(id=conversation)
-- The turn, at its first attempt, began this conversation, and nobody has added anything since.
SELECT 1 FROM turns t JOIN conversations c ON c.id = t.conversation
WHERE t.id = :turn AND c.id = :conversation AND t.attempt = 1 AND t.first_seq = 1 AND t.started_at = c.created_at
  AND c.title IS NULL AND c.metadata IS NULL
  AND NOT EXISTS (SELECT 1 FROM turns x WHERE x.conversation = c.id AND x.id <> t.id)
  AND NOT EXISTS (SELECT 1 FROM messages x WHERE x.conversation = c.id AND (x.turn IS NULL OR x.turn <> t.id))
  AND NOT EXISTS (SELECT 1 FROM aliases x WHERE x.conversation = c.id AND x.created_at <> c.created_at)
  AND NOT EXISTS (SELECT 1 FROM sessions x JOIN conversations f ON f.forked_from = x.id WHERE x.conversation = c.id)
  AND NOT EXISTS (SELECT 1 FROM processes x WHERE x.conversation = c.id)
  AND NOT EXISTS (SELECT 1 FROM memories x WHERE x.conversation = c.id)
  AND NOT EXISTS (SELECT 1 FROM items x WHERE x.conversation = c.id)
  AND NOT EXISTS (SELECT 1 FROM checkpoints x WHERE x.conversation = c.id)
  AND NOT EXISTS (SELECT 1 FROM notices x WHERE x.conversation = c.id)
  AND NOT EXISTS (SELECT 1 FROM places x WHERE x.conversation = c.id)
  AND NOT EXISTS (SELECT 1 FROM inbox x WHERE x.conversation = c.id);

-- name: delete_conversation
-- Sessions, turns, messages, drafts, requests, aliases and exclusions are deleted with it, by foreign key.
DELETE FROM conversations WHERE id = :id;
