-- name: begun
-- At the start of every writing transaction: its timestamp, its number (to ask for its outcome, if the connection is
-- lost in its COMMIT), and the oldest program that may write here.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_current_xact_id()::text, (SELECT oldest FROM store),
       set_config('lock_timeout', :patience, true);

-- name: outcome
-- Outcome of a transaction: committed, aborted, in progress; NULL: too long ago.
SELECT pg_xact_status(:number::text::xid8);

-- name: server_history
-- Id of the server's write history: a promoted standby or a restored backup begins its own, in which transaction
-- numbers are assigned to other transactions.
SELECT (SELECT system_identifier FROM pg_control_system())::text || ' ' ||
       CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END;

-- name: last_crash
-- Changes with every crash recovery: PostgreSQL resets its statistics then, and keeps them over an orderly restart.
-- The number of a transaction that left nothing in the log is assigned again after a crash.
SELECT coalesce(stats_reset::text, '') FROM pg_stat_bgwriter;

-- name: end_backend
-- Ends what a lost connection of ours may have left running, so that its outcome is final.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = :pid AND usename = current_user
  AND application_name = current_setting('application_name') AND pid <> pg_backend_pid();

-- name: clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: event_lock
-- One transaction at a time numbers its events, from here to its end: so they are numbered in commit order, and a
-- reader that has read up to one never misses an earlier one. Taken last of all, so its holder waits only for the
-- disk. With many nodes the wait may exceed the usual lock timeout: to give up here would only break a finished group
-- apart and make each of its jobs wait again.
SELECT set_config('lock_timeout', '20s', true), pg_advisory_xact_lock(1751478372, 'events'::regclass::oid::integer);

-- name: number_all
-- Allocate seqs for the messages of many turns at once; turns whose lease was lost are not among the rows.
UPDATE conversations c SET last_seq = c.last_seq + a.count, bytes = c.bytes + a.size
FROM unnest(:ids::text[], :tokens::bigint[], :nodes::text[], :counts::bigint[], :sizes::bigint[])
    AS a (id, token, node, count, size)
WHERE c.id = a.id AND c.token = a.token AND c.holder = a.node
RETURNING c.id, c.token, c.holder, c.last_seq;

-- name: plan_freely
-- For the rest of this transaction, PostgreSQL may use sequential scans and hash joins.
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true),
       set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'on', true);

-- name: take_time
-- The rest of this transaction scans whole tables.
SELECT set_config('statement_timeout', :seconds, true);
