-- name: insert_events
-- All events of a transaction, in order, under the lock. Of a conversation that was deleted meanwhile nothing is told
-- but that.
INSERT INTO events (at, type, owner, conversation, session, turn, data)
SELECT at, type, owner, conversation, session, turn, data
FROM unnest(:ats::bigint[], :types::text[], :owners::text[], :conversations::text[], :sessions::text[], :turns::text[],
            :texts::text[]) WITH ORDINALITY AS e (at, type, owner, conversation, session, turn, data, place)
WHERE conversation IS NULL OR type = 'conversation.deleted'
   OR EXISTS (SELECT 1 FROM conversations c WHERE c.id = e.conversation)
ORDER BY place;

-- name: events_after
SELECT id, at, type, owner, conversation, session, turn, data FROM events
WHERE id > :after AND id <= :upto AND (:owner::text IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: events_of_conversation
SELECT id, at, type, owner, conversation, session, turn, data FROM events
WHERE conversation = :conversation AND id > :after AND id <= :upto AND (:owner::text IS NULL OR owner = :owner)
ORDER BY id LIMIT :limit;

-- name: newest_events_of_session
-- What happened to a session and what it started, the newest first; turns are told elsewhere. Looks at so many of the
-- conversation's events at most.
SELECT id, at, type, owner, conversation, session, turn, data
FROM (SELECT * FROM events WHERE conversation = :conversation ORDER BY id DESC LIMIT :looked_at) newest
WHERE session = :session AND (type LIKE 'session.%' OR type LIKE 'process.%') ORDER BY id DESC LIMIT :limit;

-- name: event_bounds
-- The oldest that is kept, and the newest.
SELECT min(id), (SELECT max(id) FROM events) FROM events;

-- name: forget_events
-- A deleted conversation leaves one event behind, which says so.
DELETE FROM events WHERE conversation = :conversation;
