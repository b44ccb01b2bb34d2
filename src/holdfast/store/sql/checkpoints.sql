-- bigint: bytes, limit, now, ordinal
-- bytea: body

-- fragment: checkpoint_columns
k.conversation, c.key, k.ns, k.id, k.parent, k.kind, k.metadata, k.body

-- name: weigh_checkpoint
-- rows: any
-- Before a checkpoint is put: its conversation holds this many bytes more, less those of the one that is replaced.
UPDATE conversations SET bytes = bytes + :bytes - coalesce(
    (SELECT length(k.body) FROM checkpoints k WHERE k.conversation = :conversation AND k.ns = :ns AND k.id = :id), 0)
WHERE id = :conversation;

-- name: put_checkpoint
-- many: conversation
-- rows: one
-- A checkpoint of this id is replaced; the time of its creation stays.
INSERT INTO checkpoints (conversation, ns, id, parent, run, kind, metadata, created_at, body)
VALUES (:conversation, :ns, :id, :parent, :run, :kind, :metadata, :now, :body)
ON CONFLICT (conversation, ns, id) DO UPDATE SET parent = excluded.parent, run = excluded.run, kind = excluded.kind,
    metadata = excluded.metadata, body = excluded.body;

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
-- The same over all namespaces.
SELECT {checkpoint_columns} FROM checkpoints k JOIN conversations c ON c.id = k.conversation
WHERE k.conversation = :conversation AND (k.id < :older_than OR (k.id = :older_than AND k.ns > :ns))
ORDER BY k.id DESC, k.ns LIMIT :limit;

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
INSERT INTO checkpoints (conversation, ns, id, parent, run, kind, metadata, created_at, body)
SELECT :target, ns, id, parent, run, kind, metadata, created_at, body FROM checkpoints
WHERE conversation = :conversation ON CONFLICT DO NOTHING;

-- name: copy_checkpoint_writes
-- rows: any
INSERT INTO checkpoint_writes (conversation, ns, checkpoint, task, ordinal, channel, path, kind, body)
SELECT :target, ns, checkpoint, task, ordinal, channel, path, kind, body FROM checkpoint_writes
WHERE conversation = :conversation ON CONFLICT DO NOTHING;
