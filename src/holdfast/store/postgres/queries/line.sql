-- name: keep_line_alive
-- A peer that lost its power or its network is disconnected after some ten seconds, which frees its lock.
SELECT set_config('tcp_keepalives_idle', '4', false), set_config('tcp_keepalives_interval', '2', false),
       set_config('tcp_keepalives_count', '3', false), set_config('idle_session_timeout', '0', false);

-- name: listen
LISTEN holdfast;

-- name: tell
-- Received by every listening node once this is committed; `tag` lets the sender recognise its own.
SELECT pg_notify('holdfast', %(tag)s);

-- name: take_node_lock
SELECT pg_try_advisory_lock(%(key)s::bigint);

-- name: free_node_lock
SELECT pg_advisory_unlock(%(key)s::bigint);

-- name: claim_node_lock
-- While this transaction reaps a node, that node cannot take its lock again; false if it already has.
SELECT pg_try_advisory_xact_lock(%(key)s::bigint);

-- name: held_node_locks
-- The keys of all advisory locks held in this database.
SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
