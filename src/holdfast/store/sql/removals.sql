-- bigint: no, now, seq
-- bytea: body

-- name: insert_exclusion
INSERT INTO exclusions (conversation, seq, reason, created_at)
SELECT conversation, seq, :reason, :now FROM messages WHERE conversation = :conversation AND seq = :seq
ON CONFLICT DO NOTHING;

-- name: exclude_steps
-- rows: any
-- The steps that led to a reply leave the context with it: the calls of the server's own tools and their results.
INSERT INTO exclusions (conversation, seq, reason, created_at)
SELECT conversation, seq, :reason, :now FROM messages
WHERE conversation = :conversation AND seq < :seq AND ("inner" OR own_calls IS NOT NULL)
  AND seq > (SELECT coalesce(max(seq), 0) FROM messages
             WHERE conversation = :conversation AND seq < :seq AND NOT "inner" AND own_calls IS NULL)
ON CONFLICT DO NOTHING;

-- name: empty_message
-- The row and its number stay; the text is gone.
UPDATE messages SET body = x'', calls = NULL, answers = NULL, extra = NULL, deleted_at = :now
WHERE conversation = :conversation AND seq = :seq AND deleted_at IS NULL RETURNING no;

-- name: reduce_message
-- A part of its text is deleted, the rest stays. Data stored with it might reveal the part.
UPDATE messages SET body = :body, calls = :calls, gaps = :gaps, extra = NULL
WHERE conversation = :conversation AND seq = :seq AND deleted_at IS NULL RETURNING no;

-- name: empty_answer
-- The token probabilities of a deleted reply contain its words.

-- name: empty_drafts
-- The drafts of a deleted message contain its text.
DELETE FROM drafts WHERE after_seq < :seq
  AND turn = (SELECT turn FROM messages WHERE conversation = :conversation AND seq = :seq);

-- name: unindex_message
-- locks: lock_unindexed(no)
INSERT INTO unindexed (no) VALUES (:no);

-- name: unindex_conversation
-- locks: lock_unindexed_of(conversation)
INSERT INTO unindexed (no) SELECT no FROM messages WHERE conversation = :conversation;
