-- bigint: at, first, last, now, seq, to
-- bytea: history

-- name: rewinds_of
SELECT at_seq, to_seq FROM rewinds WHERE conversation = :conversation ORDER BY at_seq;

-- name: put_rewind
-- rows: any
-- The newest rewind at this point replaces earlier ones: no message followed those.
INSERT INTO rewinds (conversation, at_seq, to_seq, created_at) VALUES (:conversation, :at, :to, :now)
ON CONFLICT (conversation, at_seq) DO UPDATE SET to_seq = excluded.to_seq, created_at = excluded.created_at;

-- name: drop_rewind
DELETE FROM rewinds WHERE conversation = :conversation AND at_seq = :at;

-- name: import_rewind
-- rows: any
INSERT INTO rewinds (conversation, at_seq, to_seq, created_at) VALUES (:conversation, :at, :to, :now)
ON CONFLICT (conversation, at_seq) DO NOTHING;

-- name: restore_rewound
-- Messages that only a rewind has excluded come back.
DELETE FROM exclusions
WHERE conversation = :conversation AND seq BETWEEN :first AND :last AND reason = 'rewound';

-- name: exclude_rewound
-- Messages excluded for another reason keep it.
INSERT INTO exclusions (conversation, seq, reason, created_at)
SELECT m.conversation, m.seq, 'rewound', :now FROM messages m
WHERE m.conversation = :conversation AND m.seq BETWEEN :first AND :last AND m.deleted_at IS NULL
ON CONFLICT DO NOTHING;

-- name: why_excluded
SELECT reason FROM exclusions WHERE conversation = :conversation AND seq = :seq;

-- name: session_of_message
SELECT session FROM messages WHERE conversation = :conversation AND seq = :seq;

-- name: last_of_turn
-- The number of a turn's last message, and whether it has one.
SELECT max(seq) FROM messages
WHERE conversation = :conversation AND turn = :turn
  AND seq >= (SELECT first_seq FROM turns WHERE id = :turn AND conversation = :conversation);

-- name: set_history
-- rows: any
-- The fingerprint of what clients see now. Only of a free conversation: a running turn's is unknown until its end.
UPDATE conversations SET history_hash = :history WHERE id = :id AND holder IS NULL;

-- name: is_rewound
SELECT 1 FROM exclusions WHERE conversation = :conversation AND seq = :seq AND reason = 'rewound';

-- name: newest_turn
-- Without queued turns, those that never began or joined another, and those that the conversation was rewound before.
-- By their messages: a queued turn is stored before a turn that overtakes it, and begins after it.
SELECT id FROM turns t WHERE t.conversation = :conversation AND t.first_seq > 0 AND t.joined IS NULL
  AND NOT EXISTS (SELECT 1 FROM exclusions e
                  WHERE e.conversation = t.conversation AND e.seq = t.first_seq AND e.reason = 'rewound')
ORDER BY t.first_seq DESC, t.no DESC LIMIT 1;
