-- bigint: limit, now, ordinal
-- bytea: body

-- fragment: checkpoint_columns
k.conversation, c.key, k.ns, k.id, k.parent, k.kind, k.metadata, k.body, k.segments

-- name: checkpoint_clashes
-- many: conversation
-- usually: empty
-- Read under the conversation's lock. A row: a new checkpoint shares parts with one that is not stored or has other parts, or
-- one of its id is stored, or its message.
SELECT c.id FROM conversations c
WHERE c.id = :conversation AND (
    (:base::text IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM checkpoints k
        WHERE k.conversation = c.id AND k.ns = :ns AND k.id = :base AND k.segments = :base_segments))
    OR EXISTS (SELECT 1 FROM checkpoints k WHERE k.conversation = c.id AND k.ns = :ns AND k.id = :id)
    OR EXISTS (SELECT 1 FROM message_names n WHERE n.conversation = c.id AND n.name = :name));

-- name: checkpoint_segments_of
SELECT segments FROM checkpoints WHERE conversation = :conversation AND ns = :ns AND id = :id;

-- name: insert_checkpoint_part
-- many: conversation
-- rows: one
INSERT INTO checkpoint_parts (conversation, id, body) VALUES (:conversation, :id, :body);

-- name: checkpoint_parts
SELECT p.id, p.body FROM json_each(:ids) given
CROSS JOIN checkpoint_parts p WHERE p.conversation = :conversation AND p.id = given.value;

-- name: checkpoint_part_sizes
SELECT id, length(body) FROM checkpoint_parts WHERE conversation = :conversation;

-- name: checkpoint_segments
SELECT segments FROM checkpoints WHERE conversation = :conversation AND segments IS NOT NULL;

-- name: delete_checkpoint_part
-- rows: any
DELETE FROM checkpoint_parts WHERE conversation = :conversation AND id = :id;

-- name: copy_checkpoint_parts
-- rows: any
INSERT INTO checkpoint_parts (conversation, id, body)
SELECT :target, id, body FROM checkpoint_parts WHERE conversation = :conversation ON CONFLICT DO NOTHING;

-- name: put_checkpoint
-- many: conversation
-- rows: one
-- A checkpoint of this id is replaced; the time of its creation stays.
INSERT INTO checkpoints (conversation, ns, id, parent, run, kind, metadata, created_at, body, segments)
VALUES (:conversation, :ns, :id, :parent, :run, :kind, :metadata, :now, :body, :segments)
ON CONFLICT (conversation, ns, id) DO UPDATE SET parent = excluded.parent, run = excluded.run, kind = excluded.kind,
    metadata = excluded.metadata, body = excluded.body, segments = excluded.segments;

-- name: checkpoint_size
SELECT length(body) FROM checkpoints WHERE conversation = :conversation AND ns = :ns AND id = :id;

-- name: insert_checkpoint_write
-- many: conversation
-- rows: any
-- The first write of a task at a position counts: a task that is run again writes the same.
INSERT INTO checkpoint_writes (conversation, ns, checkpoint, task, ordinal, channel, path, kind, body)
VALUES (:conversation, :ns, :checkpoint, :task, :ordinal, :channel, :path, :kind, :body) ON CONFLICT DO NOTHING;

-- name: replace_checkpoint_write
-- rows: any
-- Errors, interrupts and resumes: the last one counts.
INSERT INTO checkpoint_writes (conversation, ns, checkpoint, task, ordinal, channel, path, kind, body)
VALUES (:conversation, :ns, :checkpoint, :task, :ordinal, :channel, :path, :kind, :body)
ON CONFLICT (conversation, ns, checkpoint, task, ordinal) DO UPDATE
SET channel = excluded.channel, path = excluded.path, kind = excluded.kind, body = excluded.body;

-- name: checkpoint_write_sizes
-- many: conversation
-- usually: empty
-- Read under the conversation's lock. What this task has written before.
SELECT ordinal, length(body) FROM checkpoint_writes
WHERE conversation = :conversation AND ns = :ns AND checkpoint = :checkpoint AND task = :task;

-- name: size_of_writes_after
SELECT coalesce(sum(length(body)), 0)::bigint FROM checkpoint_writes
WHERE conversation = :conversation AND ns = :ns AND checkpoint = :id;

-- name: checkpoint_writes_size
SELECT coalesce(sum(length(body)), 0)::bigint FROM checkpoint_writes WHERE conversation = :conversation;

-- name: checkpoint_by_id
SELECT {checkpoint_columns} FROM checkpoints k JOIN conversations c ON c.id = k.conversation
WHERE k.conversation = :conversation AND k.ns = :ns AND k.id = :id;

-- name: newest_checkpoint
SELECT {checkpoint_columns} FROM checkpoints k JOIN conversations c ON c.id = k.conversation
WHERE k.conversation = :conversation AND k.ns = :ns ORDER BY k.id DESC LIMIT 1;

-- name: checkpoints_of_ns
-- A page, the newest first. Ids sort by time.
SELECT {checkpoint_columns} FROM checkpoints k JOIN conversations c ON c.id = k.conversation
WHERE k.conversation = :conversation AND k.ns = :ns AND k.id < :older_than ORDER BY k.id DESC LIMIT :limit;

-- name: checkpoints_of_conversation
-- The same over all namespaces. Keys alone are sorted, which their index holds: not the states of a long thread.
SELECT {checkpoint_columns} FROM checkpoints k JOIN conversations c ON c.id = k.conversation
WHERE k.conversation = :conversation AND (k.ns, k.id) IN (
    SELECT p.ns, p.id FROM checkpoints p
    WHERE p.conversation = :conversation AND (p.id < :older_than OR (p.id = :older_than AND p.ns > :ns))
    ORDER BY p.id DESC, p.ns LIMIT :limit)
ORDER BY k.id DESC, k.ns;

-- name: checkpoints_of_owner
-- scans: whole tables
-- time: usual
-- The same over all conversations of an owner. Reads all its checkpoints: for a search by metadata.
SELECT {checkpoint_columns} FROM checkpoints k JOIN conversations c ON c.id = k.conversation
WHERE c.owner = :owner AND (k.id < :older_than OR (k.id = :older_than AND (k.conversation > :conversation
      OR (k.conversation = :conversation AND k.ns > :ns))))
ORDER BY k.id DESC, k.conversation, k.ns LIMIT :limit;

-- name: writes_of_checkpoint
SELECT task, ordinal, channel, path, kind, body FROM checkpoint_writes
WHERE conversation = :conversation AND ns = :ns AND checkpoint = :checkpoint;

-- name: checkpoint_sizes
SELECT ns, id, length(body) FROM checkpoints WHERE conversation = :conversation ORDER BY ns, id;

-- name: checkpoints_of_run
SELECT k.conversation, k.ns, k.id, length(k.body) FROM checkpoints k JOIN conversations c ON c.id = k.conversation
WHERE k.run = :run AND c.owner = :owner ORDER BY k.conversation, k.ns, k.id;

-- name: delete_checkpoint
-- rows: any
DELETE FROM checkpoints WHERE conversation = :conversation AND ns = :ns AND id = :id;

-- name: delete_checkpoint_writes
-- rows: any
DELETE FROM checkpoint_writes WHERE conversation = :conversation AND ns = :ns AND checkpoint = :id;

-- name: copy_checkpoints
-- rows: any
INSERT INTO checkpoints (conversation, ns, id, parent, run, kind, metadata, created_at, body, segments)
SELECT :target, ns, id, parent, run, kind, metadata, created_at, body, segments FROM checkpoints
WHERE conversation = :conversation ON CONFLICT DO NOTHING;

-- name: copy_checkpoint_writes
-- rows: any
INSERT INTO checkpoint_writes (conversation, ns, checkpoint, task, ordinal, channel, path, kind, body)
SELECT :target, ns, checkpoint, task, ordinal, channel, path, kind, body FROM checkpoint_writes
WHERE conversation = :conversation ON CONFLICT DO NOTHING;
