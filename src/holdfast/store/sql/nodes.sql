-- bigint: beat, now, pid, stale_ms

-- fragment: node_columns
id, kind, host, boot_id, pid_ns, pid, pid_start, machine, beat, started_at, heartbeat_at, left_at, reaped_at,
stale_ms, version, reaped_why

-- name: insert_node
INSERT INTO nodes (id, kind, host, boot_id, pid_ns, pid, pid_start, machine, started_at, heartbeat_at, stale_ms, version)
VALUES (:id, :kind, :host, :boot_id, :pid_ns, :pid, :pid_start, :machine, :now, :now, :stale_ms, :version);

-- name: beat
-- One write for everything a node holds. Zero rows: it was reaped.
UPDATE nodes SET beat = beat + 1, heartbeat_at = :now
WHERE id = :id AND left_at IS NULL AND reaped_at IS NULL RETURNING beat;

-- name: node_is_present
-- locks: share_node(id)
SELECT 1 FROM nodes WHERE id = :id AND left_at IS NULL AND reaped_at IS NULL;

-- name: leave_node
-- locks: lock_node(id)
UPDATE nodes SET left_at = :now WHERE id = :id AND left_at IS NULL AND reaped_at IS NULL RETURNING id;

-- name: reap_node
-- locks: lock_node(id)
-- Only if its heartbeat is still the one that was read: a node that came back is not reaped.
UPDATE nodes SET reaped_at = :now, reaped_why = :why
WHERE id = :id AND beat = :beat AND left_at IS NULL AND reaped_at IS NULL RETURNING id;

-- name: present_nodes
SELECT {node_columns} FROM nodes WHERE settled_at IS NULL AND left_at IS NULL AND reaped_at IS NULL
ORDER BY started_at, id;

-- name: unsettled_nodes
-- Nodes that are gone but may still have orphans.
SELECT id FROM nodes WHERE settled_at IS NULL AND (left_at IS NOT NULL OR reaped_at IS NOT NULL);

-- name: settle_node
-- locks: lock_node(id)
-- Only when no lease and no attached session refers to it any more.
UPDATE nodes SET settled_at = :now
WHERE id = :id AND settled_at IS NULL AND (left_at IS NOT NULL OR reaped_at IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM conversations WHERE holder = :id)
  AND NOT EXISTS (SELECT 1 FROM sessions WHERE node = :id AND ended_at IS NULL AND attached = TRUE);

-- name: all_nodes
-- scans: a small table
SELECT {node_columns} FROM nodes ORDER BY started_at DESC, id LIMIT 1000;

-- name: attached_to
-- Open sessions that end with this node.
SELECT id FROM sessions WHERE node = :node AND ended_at IS NULL AND attached = TRUE ORDER BY id;

-- name: still_attached_to
-- locks: lock_by_session(id)
-- Returns a row if it is open, attached to this node, and held by no turn. Read under the conversation's lock.
SELECT 1 FROM sessions s JOIN conversations c ON c.id = s.conversation
WHERE s.id = :id AND s.node = :node AND s.ended_at IS NULL AND s.attached = TRUE AND c.holder IS NULL;

-- name: is_attached_to_the_gone
-- locks: lock_by_session(id)
-- Returns a row if it is open, attached to a node that has left or was reaped, and held by no turn.
SELECT 1 FROM sessions s JOIN conversations c ON c.id = s.conversation JOIN nodes n ON n.id = s.node
WHERE s.id = :id AND s.ended_at IS NULL AND s.attached = TRUE AND c.holder IS NULL
  AND (n.left_at IS NOT NULL OR n.reaped_at IS NOT NULL);
