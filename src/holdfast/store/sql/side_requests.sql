-- bigint: after, before, input_tokens, limit, now, output_tokens
-- boolean: truncated
-- bytea: messages

-- fragment: side_request_columns
s.id, s.owner, s.name, s.conversation, s.kind, s.request, s.reply, s.truncated, s.model, s.input_tokens, s.output_tokens,
s.created_at

-- fragment: side_requests_of
SELECT o.no FROM side_requests o WHERE o.conversation = :conversation
UNION ALL
SELECT n.no FROM aliases a JOIN side_requests n ON n.owner = a.owner AND n.name = a.alias
WHERE a.conversation = :conversation AND n.conversation IS NULL

-- name: insert_side_request
-- rows: any
INSERT INTO side_requests (id, owner, name, conversation, kind, request, reply, truncated, model, input_tokens, output_tokens,
                           created_at)
VALUES (:id, :owner, :name, :conversation, :kind, :messages, :reply, :truncated, :model, :input_tokens, :output_tokens, :now);

-- name: drop_surplus_side_request
-- rows: any
-- Each new one drops at most one, so a name never has more than `limit`.
DELETE FROM side_requests WHERE no = (
    SELECT no FROM side_requests WHERE owner = :owner AND name = :name ORDER BY no DESC LIMIT 1 OFFSET :limit);

-- name: forget_side_requests
-- rows: any
-- Of one conversation: those linked to it, and those of its names from before it began.
DELETE FROM side_requests WHERE no IN ({side_requests_of});

-- name: side_request_number
SELECT no FROM side_requests WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- name: side_requests_of_conversation
-- A page, oldest first, after the cursor.
SELECT {side_request_columns} FROM side_requests s
WHERE s.no IN ({side_requests_of}) AND s.no > :after ORDER BY s.no LIMIT :limit;

-- name: count_side_requests
SELECT count(*) FROM ({side_requests_of}) linked;

-- name: prune_side_requests
-- scans: one end
DELETE FROM side_requests WHERE no IN (
    SELECT no FROM (SELECT no, created_at FROM side_requests ORDER BY no LIMIT :limit) oldest WHERE created_at < :before);
