-- bigint: after, limit, upto

-- name: events_after
SELECT id, at, type, owner, conversation, session, turn, data FROM events
WHERE id > :after AND id <= :upto AND (:owner::text IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: events_of_conversation
SELECT id, at, type, owner, conversation, session, turn, data FROM events
WHERE conversation = :conversation AND id > :after AND id <= :upto AND (:owner::text IS NULL OR owner = :owner)
ORDER BY id LIMIT :limit;

-- name: newest_events_of_session
-- Events of a session and of what it started, the newest first; turns are listed elsewhere. Reads at most this many
-- of the conversation's events.

-- name: event_bounds
-- The oldest stored event, and the newest.
SELECT min(id), (SELECT max(id) FROM events) FROM events;

-- name: forget_events
-- A deleted conversation leaves one event, which reports the deletion.
DELETE FROM events WHERE conversation = :conversation;
