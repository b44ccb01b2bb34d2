-- Executed by psycopg itself, before a connection is ours.

-- name: durability
SELECT current_setting('synchronous_commit');

-- name: set_up
-- Settings of every connection, whatever the server's defaults are. Plans are made once, and our statements use an
-- index, in its order, whatever their values and however old the statistics are; statements that scan whole tables
-- run `plan_freely` first.
SELECT set_config('search_path', %(schema)s, false), set_config('synchronous_commit', %(durability)s, false),
       set_config('statement_timeout', %(statement)s, false), set_config('lock_timeout', %(statement)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle)s, false), set_config('TimeZone', 'UTC', false),
       set_config('client_encoding', 'UTF8', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('plan_cache_mode', 'force_generic_plan', false), set_config('jit', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
       set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false);

-- name: backend
SELECT pg_backend_pid();

-- name: migration_lock
-- Until the end of the transaction: one node at a time migrates the stores of a database, without a time limit.
SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
       pg_advisory_xact_lock(1751478372, 0);

-- name: store_table
SELECT to_regclass(current_schema() || '.store');

-- name: schema_version
SELECT schema, oldest FROM store;

-- name: tables_in_schema
SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s);

-- name: insert_store
INSERT INTO store (id, created_at, schema, oldest)
VALUES (%(id)s, coalesce(%(now)s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), %(schema)s, %(oldest)s);

-- name: raise_schema
UPDATE store SET schema = %(schema)s, oldest = %(oldest)s;
