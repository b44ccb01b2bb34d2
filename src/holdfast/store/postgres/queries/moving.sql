-- name: make_moves
-- One row, in a store migrated here: the source, and since when it is complete.
CREATE TABLE IF NOT EXISTS moves (source TEXT PRIMARY KEY, started_at BIGINT NOT NULL, finished_at BIGINT);

-- name: one_mover
-- Held by the migrating connection: two at once would undo each other's work.
SELECT pg_try_advisory_lock(hashtextextended(current_schema() || '.moves', 0));

-- name: known_moves
SELECT source, finished_at FROM moves;

-- name: has_moves
SELECT to_regclass('moves') IS NOT NULL;

-- name: unfinished_moves
SELECT EXISTS (SELECT 1 FROM moves WHERE finished_at IS NULL);

-- name: begin_move
INSERT INTO moves (source, started_at) VALUES (%(source)s, %(now)s) ON CONFLICT (source) DO NOTHING;

-- name: finish_move
UPDATE moves SET finished_at = %(now)s WHERE source = %(source)s;

-- name: is_used
-- True: the store already holds data.
SELECT EXISTS (SELECT 1 FROM conversations) OR EXISTS (SELECT 1 FROM nodes) OR EXISTS (SELECT 1 FROM api_keys)
    OR EXISTS (SELECT 1 FROM events);

-- name: moved_columns
-- A table's columns with their types, and whether they number their rows themselves.
SELECT column_name, data_type, is_identity = 'YES' FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name = %(table)s;

-- name: moved_key
-- The columns of a table's primary key, in its order.
SELECT attribute.attname
FROM pg_index, unnest(pg_index.indkey) WITH ORDINALITY AS part (number, place), pg_attribute AS attribute
WHERE pg_index.indrelid = to_regclass(%(table)s) AND pg_index.indisprimary
  AND attribute.attrelid = pg_index.indrelid AND attribute.attnum = part.number
ORDER BY part.place;

-- name: moved_rows
SELECT {columns} FROM {table} WHERE {range} ORDER BY {order};

-- name: remove_moved_rows
DELETE FROM {table} WHERE {range};

-- name: move_rows
COPY {table} ({columns}) FROM STDIN;

-- name: highest_number
SELECT max({column}) FROM {table};

-- name: number_on
-- The next number that a table allocates is above this one.
SELECT setval(pg_get_serial_sequence(%(table)s, %(column)s), %(last)s);
