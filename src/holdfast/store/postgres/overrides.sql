-- Statements of PostgreSQL alone, and those that differ here: see `queries.py`.
-- bigint: below, created_at, deleted_at, first, last, limit, looked_at, no, now, offset, pid, seq, since
-- bigint: tokens
-- boolean: inner
-- bytea: body

-- ---- connections ------------------------------------------------------------------------------------------------
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
       set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false),
       set_config('enable_material', 'off', false);

-- name: backend
SELECT pg_backend_pid();

-- name: migration_lock
-- Until the end of the transaction: one node at a time migrates the stores of a database, without a time limit.
SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
       pg_advisory_xact_lock(1751478372, 0);

-- name: store_table
-- Reads the catalogue itself: names that were resolved before another node committed the store may be cached.
SELECT max(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = current_schema() AND c.relname = 'store';

-- name: schema_version
SELECT schema, oldest FROM store;

-- name: tables_in_schema
SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s);

-- name: insert_store
INSERT INTO store (id, created_at, schema, oldest)
VALUES (%(id)s, coalesce(%(now)s, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), %(schema)s, %(oldest)s);

-- name: raise_schema
UPDATE store SET schema = %(schema)s, oldest = %(oldest)s;

-- ---- transactions -----------------------------------------------------------------------------------------------

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
WHERE c.id = a.id AND c.token = a.token AND c.holder IS NOT DISTINCT FROM a.node
RETURNING c.id, c.token, c.holder, c.last_seq;

-- override: is_held_by
-- With `=` the planner could search all conversations that the node holds.
holder IS NOT DISTINCT FROM :node

-- name: untold_of_many
-- Whether any of these conversations has a notice that no reply has carried.
SELECT 1 FROM notices
WHERE conversation = ANY (:conversation::text[]) AND told_at IS NULL AND delivered_at IS NULL LIMIT 1;

-- name: tell_notices_of_many
-- The same as `tell_notices`, for several turns: a notice is assigned to a turn of its own conversation.
UPDATE notices SET told_at = (SELECT max(at) FROM unnest(:now::bigint[]) AS given (at))
WHERE conversation = ANY (:conversation::text[]) AND told_at IS NULL AND given_to = ANY (:turn::text[]);

-- name: plan_freely
-- For the rest of this transaction, PostgreSQL may use sequential scans and hash joins.
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true),
       set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'on', true),
       set_config('enable_material', 'on', true);

-- name: take_time
-- The rest of this transaction scans whole tables.
SELECT set_config('statement_timeout', :seconds, true);

-- ---- listen connection ------------------------------------------------------------------------------------------

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

-- ---- locks ------------------------------------------------------------------------------------------------------
-- Locks that a writing transaction takes before it reads and decides: see `transaction.py`.

-- name: lock_conversation
-- many: id
SELECT id FROM conversations WHERE id = :id FOR NO KEY UPDATE;

-- name: lock_by_session
-- many: id
SELECT id FROM conversations WHERE id = (SELECT conversation FROM sessions WHERE id = :id) FOR NO KEY UPDATE;

-- name: lock_by_turn
SELECT id FROM conversations WHERE id = (SELECT conversation FROM turns WHERE id = :id) FOR NO KEY UPDATE;

-- name: lock_by_response
-- many: id
SELECT id FROM conversations
WHERE id = (SELECT t.conversation FROM responses r JOIN turns t ON t.id = r.turn WHERE r.id = :id) FOR NO KEY UPDATE;

-- name: lock_by_key
-- many: owner, key
SELECT id FROM conversations WHERE owner = :owner AND key = :key FOR NO KEY UPDATE;

-- name: lock_by_key_anywhere
SELECT id FROM conversations WHERE key = :key ORDER BY id FOR NO KEY UPDATE;

-- name: lock_by_alias
-- many: owner, id
SELECT id FROM conversations
WHERE id = (SELECT conversation FROM aliases WHERE owner = :owner AND alias = :id) FOR NO KEY UPDATE;

-- name: lock_by_alias_anywhere
SELECT id FROM conversations
WHERE id IN (SELECT conversation FROM aliases WHERE alias = :id) ORDER BY id FOR NO KEY UPDATE;

-- name: lock_by_request
-- many: owner, route, key
SELECT id FROM conversations
WHERE id = (SELECT t.conversation FROM requests r JOIN turns t ON t.no = r.turn
            WHERE r.owner = :owner AND r.route = :route AND r.key = :key)
FOR NO KEY UPDATE;

-- name: lock_by_process
-- rows: any
-- The conversation first, the same order as for stopping a conversation's processes. A process outlives its
-- conversation: then there is nothing to lock, and no concurrent decision about it.
SELECT id FROM conversations WHERE id = (SELECT conversation FROM processes WHERE id = :id) FOR NO KEY UPDATE;

-- name: lock_process
SELECT id FROM processes WHERE id = :id FOR NO KEY UPDATE;

-- name: share_node
-- For starting something in a node's name; heartbeats pass, reaping waits.
SELECT id FROM nodes WHERE id = :id FOR KEY SHARE;

-- name: lock_node
-- For ending a node: waits until everything begun in its name is committed.
SELECT id FROM nodes WHERE id = :id FOR UPDATE;

-- name: lock_unindexed
-- Waits for a node that is indexing this message right now.
SELECT no FROM unindexed WHERE no = :no FOR UPDATE;

-- name: lock_unindexed_of
SELECT no FROM unindexed WHERE no IN (SELECT no FROM messages WHERE conversation = :conversation) FOR UPDATE;

-- name: lock_flush
-- For decisions by a flush's state; claims skip the locked row.
SELECT session FROM flushes WHERE session = :session FOR NO KEY UPDATE;

-- name: share_pairing
SELECT id FROM pairings WHERE connector = :connector AND person = :person FOR SHARE;

-- name: lock_connector
-- One fenced write of a connector at a time: none is under way when another node claims it.
SELECT name FROM connectors WHERE name = :name FOR NO KEY UPDATE;

-- name: lock_import
-- One import of the same item at a time.
SELECT pg_advisory_xact_lock(hashtext('import ' || :owner), hashtext(:origin || ' ' || :name));

-- ---- conversations ----------------------------------------------------------------------------------------------

-- override: conversations_of_owner
-- The inner LIMIT keeps PostgreSQL from joining before it limits.
SELECT {conversation_columns}, metadata
FROM (SELECT conversation, no FROM sessions WHERE owner = :owner AND ordinal = 1 AND no < :below
      ORDER BY no DESC LIMIT :limit) f JOIN conversations ON id = f.conversation ORDER BY f.no DESC LIMIT :limit;

-- override: conversations_of_all
SELECT {conversation_columns}, metadata
FROM (SELECT conversation, no FROM sessions WHERE ordinal = 1 AND no < :below
      ORDER BY no DESC LIMIT :limit) f JOIN conversations ON id = f.conversation ORDER BY f.no DESC LIMIT :limit;

-- override: free_stray_lease
-- Checked again here: what was read before the lock may have changed.
UPDATE conversations SET holder = NULL, turn = NULL, token = token + 1, history_hash = NULL
WHERE id = :id AND holder IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.id = conversations.turn AND t.status = 'running');

-- override: delete_conversation
-- Messages have no foreign key here.
WITH said AS (DELETE FROM messages WHERE conversation = :id)
DELETE FROM conversations WHERE id = :id;

-- ---- events -----------------------------------------------------------------------------------------------------

-- override: newest_events_of_session
SELECT id, at, type, owner, conversation, session, turn, data
FROM (SELECT * FROM events WHERE conversation = :conversation ORDER BY id DESC LIMIT :looked_at) newest
WHERE session = :session AND (type LIKE 'session.%' OR type LIKE 'process.%') ORDER BY id DESC LIMIT :limit;

-- name: insert_events
-- All events of a transaction, in order, under the lock. For a conversation deleted meanwhile, only the deletion is
-- published.
INSERT INTO events (at, type, owner, conversation, session, turn, data)
SELECT at, type, owner, conversation, session, turn, data
FROM unnest(:ats::bigint[], :types::text[], :owners::text[], :conversations::text[], :sessions::text[], :turns::text[],
            :texts::text[]) WITH ORDINALITY AS e (at, type, owner, conversation, session, turn, data, place)
WHERE conversation IS NULL OR type = 'conversation.deleted'
   OR EXISTS (SELECT 1 FROM conversations c WHERE c.id = e.conversation)
ORDER BY place;

-- ---- flushes ----------------------------------------------------------------------------------------------------

-- override: sessions_due_now
-- How many sessions the policies of this stamp will reset at once; by the index of due sessions (see ORDER BY).
SELECT count(*) FROM (
    SELECT 1 FROM sessions
    WHERE ended_at IS NULL AND next_due_at IS NOT NULL AND dated_by = :stamp AND coalesce(recheck_at, next_due_at) <= :now
    ORDER BY coalesce(recheck_at, next_due_at) LIMIT 1000000) AS due;

-- ---- imports ----------------------------------------------------------------------------------------------------

-- override: import_message
-- Deleted ones are never indexed.
WITH written AS (
INSERT INTO messages (conversation, seq, session, turn, role, status, calls, answers, created_at, deleted_at, origin, gaps,
                      body, "inner", own_calls, extra)
VALUES (:conversation, :seq, :session, :turn, :role, :status, :calls, :answers, :created_at, :deleted_at, :origin, :gaps,
        :body, :inner, :own_calls, :extra)
RETURNING no, conversation, seq, deleted_at)
INSERT INTO unindexed (no, conversation, seq) SELECT no, conversation, seq FROM written WHERE deleted_at IS NULL;

-- ---- headings ---------------------------------------------------------------------------------------------------

-- override: given_ids
json_array_elements_text(CAST(:ids AS json)) given (value)

-- ---- checkpoints ------------------------------------------------------------------------------------------------

-- override: checkpoint_parts
SELECT p.id, p.body FROM json_array_elements_text(CAST(:ids AS json)) given (id)
CROSS JOIN checkpoint_parts p WHERE p.conversation = :conversation AND p.id = given.id;

-- ---- api_keys ---------------------------------------------------------------------------------------------------

-- override: drop_oldest_logins
DELETE FROM logins WHERE token_hash IN (
    SELECT token_hash FROM logins WHERE api_key = :name ORDER BY created_at DESC, token_hash OFFSET :limit);

-- ---- messages ---------------------------------------------------------------------------------------------------

-- override: insert_message
-- many: conversation, seq
-- The same statement records that the message is not in the search index yet.
WITH written AS (
    INSERT INTO messages (conversation, seq, session, turn, role, status, calls, answers, created_at, body, "inner",
                          own_calls, extra)
    VALUES (:conversation, :seq, :session, :turn, :role, :status, :calls, :answers, :now, :body, :inner, :own_calls,
            :extra)
    RETURNING no, conversation, seq)
INSERT INTO unindexed (no, conversation, seq) SELECT no, conversation, seq FROM written;

-- override: bodies
-- The joined bodies, and their total length. Bodies past
-- :most bytes are not joined: a value has at most 1 GB, and an error would end the transaction. One scan: the running
-- total is of lengths, which are known without reading the bodies.
SELECT coalesce(max(upto), 0), string_agg(body, ','::bytea ORDER BY seq) FILTER (WHERE upto <= :most::bigint)
FROM (SELECT seq, body, sum(length(body)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS upto FROM messages
      WHERE conversation = :conversation AND seq BETWEEN :first AND :last) AS running;

-- override: copy_messages
-- Also records that the copies are not in the search index yet.
WITH written AS (
INSERT INTO messages (conversation, seq, session, role, status, calls, answers, created_at, origin, body, "inner",
                      own_calls, extra)
SELECT :target, :offset + row_number() OVER (ORDER BY m.seq), :session, m.role, m.status, m.calls, m.answers,
       m.created_at, coalesce(m.origin, 'msg_' || substr(m.conversation, 6) || '_' || m.seq), m.body, m.inner, m.own_calls,
       m.extra
FROM messages m
WHERE m.conversation = :conversation AND m.seq BETWEEN :first AND :last AND m.deleted_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM exclusions e WHERE e.conversation = m.conversation AND e.seq = m.seq)
ORDER BY m.seq
RETURNING no, conversation, seq)
INSERT INTO unindexed (no, conversation, seq) SELECT no, conversation, seq FROM written;

-- override: empty_answer
UPDATE turns SET answer = without_logprobs(answer)
WHERE answer IS NOT NULL AND id = (SELECT turn FROM messages WHERE conversation = :conversation AND seq = :seq);

-- override: unindex_message
-- Its index entry is deleted; what is left of it, if anything, is indexed again.
WITH held AS (DELETE FROM search WHERE no = :no RETURNING no, conversation, seq)
INSERT INTO unindexed (no, conversation, seq) SELECT no, conversation, seq FROM held ON CONFLICT DO NOTHING;

-- override: unindex_conversation
WITH waiting AS (DELETE FROM unindexed WHERE no IN (SELECT no FROM messages WHERE conversation = :conversation))
DELETE FROM search WHERE no IN (SELECT no FROM messages WHERE conversation = :conversation);

-- name: insert_messages
-- Many at once: cheaper from a handful on.
WITH written AS (
    INSERT INTO messages (conversation, seq, session, turn, role, status, calls, answers, created_at, body, "inner",
                          own_calls, extra)
    SELECT m.conversation, m.seq, m.session, m.turn, m.role, m.status, m.calls, m.answers, :now, m.body, m.shown,
           m.own_calls, m.extra
    FROM unnest(:conversations::text[], :seqs::bigint[], :sessions::text[], :turns::text[], :roles::text[],
                :statuses::text[], :calls::text[], :answers::text[], :bodies::bytea[], :inners::boolean[],
                :own_calls::text[], :extras::text[])
        AS m (conversation, seq, session, turn, role, status, calls, answers, body, shown, own_calls, extra)
    RETURNING no, conversation, seq)
INSERT INTO unindexed (no, conversation, seq) SELECT no, conversation, seq FROM written;

-- ---- overviews --------------------------------------------------------------------------------------------------

-- override: figures
-- Many open sessions or notices are estimated from PostgreSQL's statistics: counting a million would take a second.
SELECT (SELECT CASE WHEN n <= 10000 THEN n
                    ELSE greatest(n, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'sessions_one_open'::regclass)) END
        FROM (SELECT count(*) AS n FROM (SELECT 1 FROM sessions WHERE ended_at IS NULL LIMIT 10001) AS few) AS counted),
       (SELECT count(*) FROM conversations WHERE holder IS NOT NULL),
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM messages_no_seq),
       (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM events_id_seq),
       (SELECT CASE WHEN n <= 10000 THEN n
                    ELSE greatest(n, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'notices_undelivered_in_order'::regclass)) END
        FROM (SELECT count(*) AS n FROM (SELECT 1 FROM notices WHERE delivered_at IS NULL LIMIT 10001) AS few) AS counted);

-- ---- processes --------------------------------------------------------------------------------------------------

-- override: unended_processes
-- Those of a machine: of its current boot, or of an earlier one. Two boots of one machine never overlap: if a node of
-- that boot was seen after one of this boot had joined, they are two machines that share an id, and the other's are
-- not returned.
SELECT {process_columns} FROM processes p
WHERE ended_at IS NULL AND (boot_id = :boot_id OR (machine = :machine AND NOT EXISTS (
    SELECT 1 FROM nodes theirs JOIN nodes ours ON ours.machine = theirs.machine
    WHERE theirs.machine = :machine AND theirs.boot_id = p.boot_id AND ours.boot_id = :boot_id
      AND greatest(theirs.heartbeat_at, theirs.left_at) > ours.started_at)))
ORDER BY no;

-- ---- sessions ---------------------------------------------------------------------------------------------------

-- override: forks_of_conversation
-- MATERIALIZED: the forks are found first, by index.
WITH forks AS MATERIALIZED (
    SELECT f.id FROM sessions p JOIN conversations f ON f.forked_from = p.id WHERE p.conversation = :conversation)
SELECT {session_columns} FROM forks CROSS JOIN {session_tables}
WHERE s.conversation = forks.id AND s.ordinal = 1 AND (:owner::text IS NULL OR s.owner = :owner)
ORDER BY s.opened_at, s.id;

-- override: alive
s.ended_at IS NULL AND s.id IN (
    SELECT tip FROM conversations WHERE holder IS NOT NULL
    UNION ALL SELECT id FROM sessions WHERE node > '' AND ended_at IS NULL AND attached

-- override: alive_of_owner
SELECT {session_columns} FROM {session_tables} WHERE s.owner = :owner AND {alive}
    UNION ALL SELECT id FROM (SELECT id FROM sessions WHERE owner = :owner
                              ORDER BY last_activity_at DESC, id DESC LIMIT :looked_at) newest)
ORDER BY s.last_activity_at DESC, s.id DESC LIMIT :limit;

-- override: alive_of_all
SELECT {session_columns} FROM {session_tables} WHERE {alive}
    UNION ALL SELECT id FROM (SELECT id FROM sessions ORDER BY last_activity_at DESC, id DESC LIMIT :looked_at) newest)
ORDER BY s.last_activity_at DESC, s.id DESC LIMIT :limit;

-- override: dated_by_others
-- Rows locked by another node are skipped.
SELECT s.id FROM (
    (SELECT id, conversation FROM sessions WHERE ended_at IS NULL AND dated_by IS NULL LIMIT :limit)
    UNION ALL (SELECT id, conversation FROM sessions WHERE ended_at IS NULL AND dated_by < :stamp LIMIT :limit)
    UNION ALL (SELECT id, conversation FROM sessions WHERE ended_at IS NULL AND dated_by > :stamp LIMIT :limit)
) s JOIN conversations c ON c.id = s.conversation LIMIT :limit FOR NO KEY UPDATE OF c SKIP LOCKED;

-- ---- moving -----------------------------------------------------------------------------------------------------

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

-- name: analyse_moved
-- Statistics for the planner, which autovacuum would gather only after a while.
ANALYZE {table};

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

-- ---- notices ----------------------------------------------------------------------------------------------------

-- override: notice_place
-- Allocated at the end of a transaction: in commit order.
place

-- name: place_notice
-- Under `event_lock`, right before the COMMIT: a reader that has read up to one never misses an earlier one.
UPDATE notices SET place = nextval('notice_places') WHERE id = :id;

-- ---- search -----------------------------------------------------------------------------------------------------

-- name: lazily
-- The index is derived: index rows lost in a crash are in `unindexed` again.
SELECT set_config('synchronous_commit', 'off', true);

-- name: take_unindexed
-- Skips rows that another node is indexing.
DELETE FROM unindexed WHERE no IN (
    SELECT no FROM unindexed ORDER BY no LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING no, conversation, seq;

-- name: texts_to_index
SELECT m.no, m.conversation, m.seq, c.owner, m.body
FROM unnest(:conversations::text[], :seqs::bigint[]) AS k (conversation, seq)
JOIN messages m ON m.conversation = k.conversation AND m.seq = k.seq AND m.deleted_at IS NULL
JOIN conversations c ON c.id = m.conversation;

-- name: insert_indexed
INSERT INTO search (no, conversation, seq, whole, words)
SELECT no, conversation, seq, whole, array_to_tsvector(string_to_array(words, ' '))
FROM unnest(:nos::bigint[], :conversations::text[], :seqs::bigint[], :wholes::boolean[], :texts::text[])
    AS k (no, conversation, seq, whole, words)
ON CONFLICT DO NOTHING;

-- fragment: found_columns
m.no, m.conversation, m.seq, m.session, m.turn, m.role, m.status, m.created_at, m.origin, m.body, m.gaps, m.inner,
m.own_calls, m.extra, c.key, c.title

-- fragment: is_wanted
-- What a search asks of a message besides its words.
(:owner::text IS NULL OR c.owner = :owner)
   AND (:role::text IS NULL OR m.role = :role) AND (:since::bigint IS NULL OR m.created_at >= :since)
   AND (:source::text IS NULL OR EXISTS (SELECT 1 FROM sessions s WHERE s.id = m.session AND s.source = :source))

-- name: unindexed_tail
-- How many messages are not indexed yet, up to a limit.
SELECT count(*) FROM (SELECT 1 FROM unindexed LIMIT :limit) AS waiting;

-- name: unindexed_tail_of
-- The same of one owner. Reads the whole tail of all owners, by its own and the conversations' keys.
SELECT count(*) FROM (SELECT 1 FROM unindexed u JOIN conversations c ON c.id = u.conversation
                      WHERE c.owner = :owner LIMIT :limit) AS waiting;

-- name: unindexed_total
-- scans: whole tables
SELECT count(*) FROM unindexed;

-- name: unindexed_messages
-- Messages not indexed yet, the newest first, below the cursor; the row's own number first, so that a page of other
-- owners' and deleted ones still advances the cursor.
SELECT u.no, {found_columns}
FROM (SELECT * FROM unindexed WHERE no < :below ORDER BY no DESC LIMIT :limit) u
LEFT JOIN (messages m JOIN conversations c ON c.id = m.conversation)
    ON m.conversation = u.conversation AND m.seq = u.seq AND m.deleted_at IS NULL
   AND (:conversation::text IS NULL OR c.id = :conversation) AND {is_wanted}
ORDER BY u.no DESC;

-- name: unindexed_of_owner
-- The same of one owner: a long tail of others is passed over here, not page by page.
SELECT u.no, {found_columns}
FROM (SELECT w.no, w.conversation, w.seq FROM unindexed w JOIN conversations o ON o.id = w.conversation
      WHERE w.no < :below AND o.owner = :owner AND (:conversation::text IS NULL OR o.id = :conversation)
      ORDER BY w.no DESC LIMIT :limit) u
LEFT JOIN (messages m JOIN conversations c ON c.id = m.conversation)
    ON m.conversation = u.conversation AND m.seq = u.seq AND m.deleted_at IS NULL AND {is_wanted}
ORDER BY u.no DESC;

-- name: search_deadline
-- For the rest of this transaction.
SELECT set_config('statement_timeout', :timeout, true);

-- name: indexed_messages
-- plan: free
-- Its index serves only this query.
-- Candidates from the index, the newest first, below the cursor; and messages it could not hold whole. Index first,
-- then sort: walking back through all messages for a rare word would take too long. The row's own number first, so
-- that a page of unwanted messages still advances the cursor.
WITH hits AS MATERIALIZED (
    SELECT no, conversation, seq FROM search WHERE words @@ :query::text::tsquery
    UNION ALL
    SELECT no, conversation, seq FROM search WHERE NOT whole AND (:scope::text IS NULL OR words @@ :scope::text::tsquery))
SELECT h.no, {found_columns}
FROM (SELECT * FROM hits WHERE no < :below ORDER BY no DESC LIMIT :limit) h
LEFT JOIN (messages m JOIN conversations c ON c.id = m.conversation)
    ON m.conversation = h.conversation AND m.seq = h.seq AND m.deleted_at IS NULL AND {is_wanted}
ORDER BY h.no DESC;

-- name: index_anew
-- scans: whole tables
-- Requeue everything for indexing.
INSERT INTO unindexed (no, conversation, seq) SELECT no, conversation, seq FROM messages WHERE deleted_at IS NULL
ON CONFLICT DO NOTHING;

-- name: empty_index
-- scans: whole tables
DELETE FROM search;

-- name: messages_unknown_to_search
-- scans: whole tables
-- Existing messages that are neither indexed nor queued for it, and index rows without an existing message.
SELECT m.conversation || ' number ' || m.seq FROM messages m
WHERE m.deleted_at IS NULL AND NOT EXISTS (SELECT 1 FROM search s WHERE s.no = m.no)
  AND NOT EXISTS (SELECT 1 FROM unindexed u WHERE u.no = m.no)
UNION ALL
SELECT s.conversation || ' number ' || s.seq FROM search s
WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.conversation = s.conversation AND m.seq = s.seq
                  AND m.no = s.no AND m.deleted_at IS NULL);
