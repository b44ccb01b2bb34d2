-- name: insert_events
-- All events of a transaction, in order, under the lock. For a conversation deleted meanwhile, only the deletion is
-- published.
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
-- Events of a session and of what it started, the newest first; turns are listed elsewhere. Reads at most this many
-- of the conversation's events.
SELECT id, at, type, owner, conversation, session, turn, data
FROM (SELECT * FROM events WHERE conversation = :conversation ORDER BY id DESC LIMIT :looked_at) newest
WHERE session = :session AND (type LIKE 'session.%' OR type LIKE 'process.%') ORDER BY id DESC LIMIT :limit;

-- name: event_bounds
-- The oldest stored event, and the newest.
SELECT min(id), (SELECT max(id) FROM events) FROM events;

-- name: forget_events
-- A deleted conversation leaves one event, which reports the deletion.
DELETE FROM events WHERE conversation = :conversation;
