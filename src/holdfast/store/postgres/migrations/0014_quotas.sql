-- oldest: 14
-- How much a conversation holds. See SQLite's migration of this number. A program that does not know the column would not keep it.
ALTER TABLE conversations ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
UPDATE conversations c SET bytes = m.bytes
FROM (SELECT conversation, sum(length(body)) AS bytes FROM messages GROUP BY conversation) m
WHERE m.conversation = c.id;

-- The index holds words behind a mark of their owner from now on: everything is indexed again, in the background.
TRUNCATE search;
INSERT INTO unindexed (no, conversation, seq) SELECT no, conversation, seq FROM messages WHERE deleted_at IS NULL
ON CONFLICT DO NOTHING;
