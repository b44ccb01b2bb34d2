-- bigint: now, rank

-- name: policies
-- scans: a small table
SELECT part, value FROM policies;

-- name: policy
SELECT value FROM policies WHERE part = :part;

-- name: record_policy
-- The last record of the same rank or a higher one applies; a record without changes writes nothing.
INSERT INTO policies (part, rank, value, recorded_by, recorded_at) VALUES (:part, :rank, :value, :recorded_by, :now)
ON CONFLICT (part) DO UPDATE
SET rank = excluded.rank, value = excluded.value, recorded_by = excluded.recorded_by, recorded_at = excluded.recorded_at
WHERE excluded.rank > policies.rank OR (excluded.rank = policies.rank AND excluded.value <> policies.value);

-- name: policy_to_record
-- True: recording this would change something.
SELECT 1 WHERE NOT EXISTS (
    SELECT 1 FROM policies WHERE part = :part AND (rank > :rank OR (rank = :rank AND value = :value)));
