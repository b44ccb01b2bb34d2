-- Tools that the server runs itself within a turn, and what finished processes have to say.

-- `inner`: said between the model and the server's tools, and never shown to a client. `own_calls` is a JSON list: of a
-- message's calls those that the server answers itself; a client is shown the others.
ALTER TABLE messages ADD COLUMN inner INTEGER NOT NULL DEFAULT 0;
ALTER TABLE messages ADD COLUMN own_calls TEXT;

-- The process that a notice tells the end of.
ALTER TABLE notices ADD COLUMN process TEXT;
