-- How much of a turn's answer a client has received: 0 nothing, 1 it is being sent, 2 a part, or perhaps a part, 3 all of
-- it. A request that is sent again gets an answer that no client has received whole; see docs/explanation/continuity.md.
-- Answers from before count as received.
ALTER TABLE turns ADD COLUMN delivery INTEGER NOT NULL DEFAULT 3;
