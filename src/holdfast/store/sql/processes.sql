-- bigint: at, before, below, exit_code, limit, now, pid, shim_pid, until
-- boolean: listening, may_stop, running, watched

-- fragment: process_columns
id, owner, conversation, session, host, boot_id, pid_ns, pid, pid_start, machine, command, cwd, state, started_at, supervisor,
shim_pid, shim_start, exit_code, last_active_at, activity, listening, sampled_at, ended_at, stop_requested_at,
stop_reason, pinned_until, watched, may_stop

-- name: insert_process
INSERT INTO processes (id, owner, conversation, session, host, boot_id, pid_ns, pid, pid_start, machine, command, cwd, state,
                       started_at, last_active_at, activity, supervisor, watched, may_stop)
VALUES (:id, :owner, :conversation, :session, :host, :boot_id, :pid_ns, :pid, :pid_start, :machine, :command, :cwd, :state,
        :now, :now, 'it was started', :supervisor, :watched, :may_stop);

-- name: process_by_id
-- locks: lock_by_process(id) lock_process(id)
SELECT {process_columns} FROM processes WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- name: process_number
SELECT no FROM processes WHERE id = :id AND (:owner::text IS NULL OR owner = :owner);

-- fragment: process_page
AND no < :below AND (:running::boolean IS NULL OR (ended_at IS NULL) = :running) ORDER BY no DESC LIMIT :limit

-- name: processes_of_owner
-- A page of an owner's processes, the newest first, below the cursor.
SELECT {process_columns} FROM processes WHERE owner = :owner {process_page};

-- name: processes_of_all
-- The same for an operator.
SELECT {process_columns} FROM processes WHERE no > 0 {process_page};

-- name: running_processes
-- The same, only those that have not ended: cost depends on what runs, not on what is stored.
SELECT {process_columns} FROM processes INDEXED BY processes_unended
WHERE ended_at IS NULL AND (:owner::text IS NULL OR owner = :owner) AND no < :below ORDER BY +no DESC LIMIT :limit;

-- name: processes_of_session
SELECT {process_columns} FROM processes
WHERE session = :session AND (:owner::text IS NULL OR +owner = :owner) {process_page};

-- name: processes_of_conversation
SELECT {process_columns} FROM processes
WHERE conversation = :conversation AND (:owner::text IS NULL OR +owner = :owner) {process_page};

-- name: running_of_conversation
-- Processes that may defer a reset of a session of this conversation, oldest first.
SELECT {process_columns} FROM processes
WHERE conversation = :conversation AND ended_at IS NULL ORDER BY no;

-- name: unended_processes
-- Those of a machine: of its current boot, or of an earlier one. A database file is on one machine, so processes from
-- before machines had ids are this one's.
SELECT {process_columns} FROM processes INDEXED BY processes_unended
WHERE ended_at IS NULL AND (machine = :machine OR machine IS NULL OR boot_id = :boot_id) ORDER BY +no;

-- name: name_machine
-- A process started before machines had ids belongs to the machine of its boot.
UPDATE processes INDEXED BY processes_unended SET machine = :machine
WHERE ended_at IS NULL AND machine IS NULL AND boot_id = :boot_id;

-- name: process_started
-- Only one that is starting.
UPDATE processes SET state = 'running', host = :host, machine = :machine, boot_id = :boot_id, pid_ns = :pid_ns, pid = :pid,
                     pid_start = :pid_start, shim_pid = :shim_pid, shim_start = :shim_start
WHERE id = :id AND state = 'starting' RETURNING owner, conversation, session, watched;

-- name: sample_process
-- rows: any
-- Never touches the session's last activity. The time of last activity only moves forward.
UPDATE processes SET sampled_at = :now, listening = :listening,
                     last_active_at = CASE WHEN :activity::text IS NULL THEN last_active_at ELSE :now END,
                     activity = coalesce(:activity, activity)
WHERE id = :id AND ended_at IS NULL;

-- name: process_finished
-- The command itself has ended; its children still run.
UPDATE processes SET exit_code = :exit_code WHERE id = :id AND ended_at IS NULL AND exit_code IS NULL RETURNING id;

-- name: end_process
-- Only once.
UPDATE processes SET state = :state, exit_code = coalesce(:exit_code, exit_code), ended_at = greatest(started_at, :at)
WHERE id = :id AND ended_at IS NULL RETURNING owner, conversation, session, exit_code;

-- name: request_stop
-- The first reason is kept.
UPDATE processes SET stop_requested_at = :now, stop_reason = :reason
WHERE id = :id AND ended_at IS NULL AND stop_requested_at IS NULL RETURNING owner, conversation, session;

-- name: pin_process
UPDATE processes SET pinned_until = :until
WHERE id = :id AND ended_at IS NULL RETURNING owner, conversation, session;

-- name: claim_process
-- locks: share_node(id=node)
-- Compare and swap: only from the supervisor that was read, and only by a node that is present.
UPDATE processes SET supervisor = :node
WHERE id = :id AND ended_at IS NULL AND supervisor IS NOT DISTINCT FROM :seen
  AND EXISTS (SELECT 1 FROM nodes WHERE id = :node AND left_at IS NULL AND reaped_at IS NULL)
RETURNING owner, conversation, session;

-- name: conversation_exists
SELECT 1 FROM conversations WHERE id = :id;

-- name: delete_process
DELETE FROM processes WHERE id = :id;

-- name: forget_processes_of_conversation
-- Deletes a conversation's ended processes, and those that holdfast may not stop.
DELETE FROM processes WHERE conversation = :conversation AND (ended_at IS NOT NULL OR NOT may_stop);

-- name: prune_processes
DELETE FROM processes WHERE no IN (
    SELECT no FROM processes WHERE ended_at IS NOT NULL AND ended_at < :before ORDER BY ended_at LIMIT :limit
    FOR UPDATE SKIP LOCKED)
RETURNING id;
