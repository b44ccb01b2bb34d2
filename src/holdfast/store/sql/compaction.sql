-- bigint: failures, now, recheck_at, retry_at, revision, token, until

-- name: compaction_of
-- The holder of this conversation's compaction claim, if still valid, and the record of earlier attempts.
SELECT k.token, k.failures, k.retry_at,
       CASE WHEN k.until > :now AND n.left_at IS NULL AND n.reaped_at IS NULL THEN n.id END
FROM compactions k LEFT JOIN nodes n ON n.id = k.node WHERE k.conversation = :conversation;

-- name: claim_compaction
-- locks: share_node(id=node)
-- Only from the token that was read, and only by a node that is present. The token rises with each holder.
UPDATE compactions SET session = :session, node = :node, token = token + 1, until = :until
WHERE conversation = :conversation AND token = :token
  AND EXISTS (SELECT 1 FROM nodes WHERE id = :node AND left_at IS NULL AND reaped_at IS NULL)
RETURNING token;

-- name: insert_compaction
INSERT INTO compactions (conversation) VALUES (:conversation) ON CONFLICT DO NOTHING;

-- name: release_compaction
-- Zero rows: another holder has taken it over.
UPDATE compactions SET session = NULL, node = NULL, until = NULL, failures = :failures, retry_at = :retry_at
WHERE conversation = :conversation AND token = :token AND node = :node RETURNING failures;

-- name: compare_tip
-- Compare and swap: only if the tip and its visible messages are still what was summarised, and the conversation is
-- free or held only by the turn that compacts its own context.
UPDATE conversations SET revision = revision + 1
WHERE id = :id AND tip = :tip AND revision = :revision AND (holder IS NULL OR (holder = :node AND token = :token))
RETURNING id;

-- name: session_deferral
SELECT recheck_at, deferral FROM sessions WHERE id = :id;

-- name: carry_over
-- What a continuing session inherits from the one before it.
UPDATE sessions SET model = :model, recheck_at = :recheck_at, deferral = :deferral WHERE id = :id;

-- name: move_turn
UPDATE turns SET session = :session WHERE id = :id;

-- name: move_processes
-- Running processes, and ended ones not yet reported to the model, move to the session that continues.
UPDATE processes SET session = :child
WHERE session = :parent AND (ended_at IS NULL OR id IN (
    SELECT process FROM notices WHERE conversation = :conversation AND told_at IS NULL AND process IS NOT NULL));

-- name: newest_usages
-- Usage of the newest turns, the newest first.
SELECT usage, session, model FROM turns WHERE conversation = :conversation ORDER BY no DESC LIMIT 20;
