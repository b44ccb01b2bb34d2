-- name: begun
-- At the start of every writing transaction: the time by which everything in it is dated, its number (to ask what
-- became of it, should the connection be lost in its COMMIT), and the oldest program that may write here.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_current_xact_id()::text, (SELECT oldest FROM store),
       set_config('lock_timeout', :patience, true);

-- name: outcome
-- What became of a transaction: committed, aborted, in progress; NULL: too long ago.
SELECT pg_xact_status(:number::text::xid8);

-- name: server_history
-- To which line of writes this server belongs: a standby that was promoted, or a backup that was restored, begins a
-- line of its own, in which numbers of transactions are given to others.
SELECT (SELECT system_identifier FROM pg_control_system())::text || ' ' ||
       CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END;

-- name: end_backend
-- Ends what a lost connection of ours may have left behind, so that its outcome is final.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = :pid AND usename = current_user
  AND application_name = current_setting('application_name') AND pid <> pg_backend_pid();

-- name: clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: event_lock
-- One transaction at a time numbers its events, from here to its end: so they are numbered in the order in which they
-- become visible, and nobody who has read up to one misses an earlier one. Taken last of all, so nobody who has it
-- waits for anything but the disk. Behind many nodes that may take longer than a lock is waited for elsewhere: to give
-- up here would only break a group apart that has done all its work, and have each of its members wait again.
SELECT set_config('lock_timeout', '20s', true), pg_advisory_xact_lock(1751478372, 'events'::regclass::oid::integer);

-- name: number_all
-- Numbers for the messages of many turns at once; those whose lease was lost are not among the rows.
UPDATE conversations c SET last_seq = c.last_seq + a.count, bytes = c.bytes + a.size
FROM unnest(:ids::text[], :tokens::bigint[], :nodes::text[], :counts::bigint[], :sizes::bigint[])
    AS a (id, token, node, count, size)
WHERE c.id = a.id AND c.token = a.token AND c.holder = a.node
RETURNING c.id, c.token, c.holder, c.last_seq;

-- name: plan_freely
-- For what follows in this transaction, PostgreSQL may read tables whole and join them by hashing.
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true),
       set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'on', true);

-- name: take_time
-- What follows in this transaction goes over whole tables.
SELECT set_config('statement_timeout', :seconds, true);
