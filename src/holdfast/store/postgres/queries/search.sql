-- name: lazily
-- The index is derived: index rows lost in a crash are in `unindexed` again.
SELECT set_config('synchronous_commit', 'off', true);

-- name: take_unindexed
-- Skips rows that another node is indexing.
DELETE FROM unindexed WHERE no IN (
    SELECT no FROM unindexed ORDER BY no LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING no, conversation, seq;

-- name: texts_to_index
SELECT m.no, m.conversation, m.seq, c.owner, m.body
FROM unnest(:conversations::text[], :seqs::bigint[]) AS k (conversation, seq)
JOIN messages m ON m.conversation = k.conversation AND m.seq = k.seq AND m.deleted_at IS NULL
JOIN conversations c ON c.id = m.conversation;

-- name: insert_indexed
INSERT INTO search (no, conversation, seq, whole, words)
SELECT no, conversation, seq, whole, array_to_tsvector(string_to_array(words, ' '))
FROM unnest(:nos::bigint[], :conversations::text[], :seqs::bigint[], :wholes::boolean[], :texts::text[])
    AS k (no, conversation, seq, whole, words)
ON CONFLICT DO NOTHING;

-- fragment: found_columns
m.no, m.conversation, m.seq, m.session, m.turn, m.role, m.status, m.created_at, m.origin, m.body, m.gaps, m.inner,
m.own_calls, m.extra, c.key, c.title

-- name: unindexed_tail
-- How many messages are not indexed yet, up to a limit.
SELECT count(*) FROM (SELECT 1 FROM unindexed LIMIT :limit) AS waiting;

-- name: unindexed_total
SELECT count(*) FROM unindexed;

-- name: unindexed_messages
-- Messages not indexed yet, the newest first, below the cursor; the row's own number first, so that a page of other
-- owners' and deleted ones still advances the cursor.
SELECT u.no, {found_columns}
FROM (SELECT * FROM unindexed WHERE no < :below ORDER BY no DESC LIMIT :limit) u
LEFT JOIN (messages m JOIN conversations c ON c.id = m.conversation)
    ON m.conversation = u.conversation AND m.seq = u.seq AND m.deleted_at IS NULL
   AND (:owner::text IS NULL OR c.owner = :owner) AND (:conversation::text IS NULL OR c.id = :conversation)
ORDER BY u.no DESC;

-- name: search_deadline
-- For the rest of this transaction.
SELECT set_config('statement_timeout', :timeout, true);

-- name: indexed_messages
-- Candidates from the index, the newest first, below the cursor; and messages it could not hold whole. Index first,
-- then sort: walking back through all messages for a rare word would take too long.
WITH hits AS MATERIALIZED (
    SELECT no, conversation, seq FROM search WHERE words @@ :query::text::tsquery
    UNION ALL
    SELECT no, conversation, seq FROM search WHERE NOT whole AND (:scope::text IS NULL OR words @@ :scope::text::tsquery))
SELECT {found_columns}
FROM (SELECT * FROM hits WHERE no < :below ORDER BY no DESC LIMIT :limit) h
JOIN messages m ON m.conversation = h.conversation AND m.seq = h.seq AND m.deleted_at IS NULL
JOIN conversations c ON c.id = m.conversation
WHERE :owner::text IS NULL OR c.owner = :owner ORDER BY m.no DESC;

-- name: index_anew
-- Requeue everything for indexing.
INSERT INTO unindexed (no, conversation, seq) SELECT no, conversation, seq FROM messages WHERE deleted_at IS NULL
ON CONFLICT DO NOTHING;

-- name: empty_index
DELETE FROM search;

-- name: messages_unknown_to_search
-- Existing messages that are neither indexed nor queued for it, and index rows without an existing message.
SELECT m.conversation || ' number ' || m.seq FROM messages m
WHERE m.deleted_at IS NULL AND NOT EXISTS (SELECT 1 FROM search s WHERE s.no = m.no)
  AND NOT EXISTS (SELECT 1 FROM unindexed u WHERE u.no = m.no)
UNION ALL
SELECT s.conversation || ' number ' || s.seq FROM search s
WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.conversation = s.conversation AND m.seq = s.seq
                  AND m.no = s.no AND m.deleted_at IS NULL);
