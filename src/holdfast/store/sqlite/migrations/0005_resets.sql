-- Resets: when a session is due, by which policies that was reckoned, and what defers it.

-- The stamp of the policies that `next_due_at` was reckoned by: sessions dated by others are dated again.
ALTER TABLE sessions ADD COLUMN dated_by TEXT;
-- What defers a due reset, in one word per reason: a change is told, the same again is not.
ALTER TABLE sessions ADD COLUMN deferral TEXT;
-- The reset that made it fresh, if one did: its first reply says so, however often that is asked for.
ALTER TABLE sessions ADD COLUMN fresh_by TEXT;
-- When its context began, or was taken up on purpose: from here its policy counts. NULL: when it was opened.
ALTER TABLE sessions ADD COLUMN fresh_since INTEGER;
DROP INDEX sessions_due;
CREATE INDEX sessions_due ON sessions (dated_by, coalesce(recheck_at, next_due_at))
    WHERE ended_at IS NULL AND next_due_at IS NOT NULL;
CREATE INDEX sessions_dated ON sessions (dated_by) WHERE ended_at IS NULL;

-- When a reply carried a notice: the next one does not.
ALTER TABLE notices ADD COLUMN told_at INTEGER;
CREATE INDEX notices_untold ON notices (conversation) WHERE told_at IS NULL;
