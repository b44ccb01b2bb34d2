-- Notices are also sent to a webhook, if the settings name one.

-- `send_at`: when it may be sent, next; whoever sends it moves it on first, so that the others leave it alone. NULL: it
-- was sent (`sent_at`), is too old to be sent, or is from a time before there was a webhook.
ALTER TABLE notices ADD COLUMN send_at INTEGER;
ALTER TABLE notices ADD COLUMN sent_at INTEGER;
ALTER TABLE notices ADD COLUMN send_attempts INTEGER NOT NULL DEFAULT 0;
CREATE INDEX notices_to_send ON notices (send_at) WHERE send_at IS NOT NULL;
