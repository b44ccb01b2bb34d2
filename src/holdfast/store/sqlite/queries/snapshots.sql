-- name: snapshot_store
SELECT id FROM store;

-- name: snapshot_tables
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name;

-- name: snapshot_references
-- The tables that this one refers to.
SELECT DISTINCT "table" FROM pragma_foreign_key_list(?);

-- name: snapshot_columns
SELECT name FROM pragma_table_info(?) ORDER BY cid;

-- name: snapshot_count
SELECT count(*) FROM {table};

-- name: snapshot_rows
SELECT {columns} FROM {table} ORDER BY {order};

-- name: snapshot_numbers
SELECT name, seq FROM sqlite_sequence;
