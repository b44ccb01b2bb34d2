-- Turns that servers finish after their own died, was stopped, or was refused by the model.

-- What is needed to ask the model again, as JSON, without any key: written when the turn begins, deleted when it completes or
-- is cancelled, or at `kept_until`. `recover`: the policy, as it was then, covers this turn. NULL and 0 for older turns, which
-- are left as they are.
ALTER TABLE turns ADD COLUMN request BLOB;
ALTER TABLE turns ADD COLUMN kept_until INTEGER;
ALTER TABLE turns ADD COLUMN origin TEXT;
ALTER TABLE turns ADD COLUMN recover INTEGER NOT NULL DEFAULT 0;

-- Attempts begun, since the last step that was stored (`step_seq`) and in all; an attempt that ended by an orderly stop or by
-- the model's refusal is not counted, but in `stops` and `refusals`.
ALTER TABLE turns ADD COLUMN tries INTEGER NOT NULL DEFAULT 1;
ALTER TABLE turns ADD COLUMN all_tries INTEGER NOT NULL DEFAULT 1;
ALTER TABLE turns ADD COLUMN stops INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN refusals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN refused_since INTEGER;
ALTER TABLE turns ADD COLUMN step_seq INTEGER NOT NULL DEFAULT 0;

-- Not NULL: the turn waits to be taken up, from then on, because of `cause`. Its conversation still names it, without a holder.
ALTER TABLE turns ADD COLUMN due_at INTEGER;
ALTER TABLE turns ADD COLUMN cause TEXT;
ALTER TABLE turns ADD COLUMN why TEXT;

CREATE INDEX turns_due ON turns (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX turns_kept ON turns (kept_until) WHERE kept_until IS NOT NULL;
