-- name: figures
-- Open sessions, running turns, messages and events ever written, notices nobody was told of. Counts only what
-- small indexes hold.
SELECT (SELECT count(*) FROM sessions WHERE ended_at IS NULL),
       (SELECT count(*) FROM conversations WHERE holder IS NOT NULL),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0),
       (SELECT count(*) FROM notices WHERE delivered_at IS NULL);
