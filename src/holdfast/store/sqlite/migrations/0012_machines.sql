-- Machines by an id of their own, and notices by the turn that was given them.

-- Which machine a node or a process runs on: a hostname may be shared. NULL: written before this was known.
ALTER TABLE nodes ADD COLUMN machine TEXT;
ALTER TABLE processes ADD COLUMN machine TEXT;

-- The turn that was given this notice when it began: its reply carries it, and marks it told.
ALTER TABLE notices ADD COLUMN given_to TEXT;
