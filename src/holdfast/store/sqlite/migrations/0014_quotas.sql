-- How much a conversation holds: the bytes of its messages' bodies. Kept by the statements that number messages, so
-- that a quota costs no statement of its own. The search index is made anew by itself: its file has its own version.
ALTER TABLE conversations ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE conversations SET bytes = (
    SELECT coalesce(sum(length(m.body)), 0) FROM messages m WHERE m.conversation = conversations.id);
