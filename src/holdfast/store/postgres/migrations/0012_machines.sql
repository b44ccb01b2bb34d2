-- Machines by an id of their own, and notices by the turn that was given them. See SQLite's migration of this number.

ALTER TABLE nodes ADD COLUMN machine TEXT COLLATE "C";
ALTER TABLE processes ADD COLUMN machine TEXT COLLATE "C";

ALTER TABLE notices ADD COLUMN given_to TEXT COLLATE "C";

-- In the order in which notices are committed (see `event_lock`): `no` is taken before that, and a reader who has
-- seen a later one would never see an earlier one that was committed after it. The default is for programs of the
-- schema before this one; ours number again as they commit.
CREATE SEQUENCE notice_places;
ALTER TABLE notices ADD COLUMN place BIGINT;
UPDATE notices SET place = no;
SELECT setval('notice_places', coalesce((SELECT max(no) FROM notices), 0) + 1);
ALTER TABLE notices ALTER COLUMN place SET DEFAULT nextval('notice_places'), ALTER COLUMN place SET NOT NULL;
ALTER SEQUENCE notice_places OWNED BY notices.place;
CREATE INDEX notices_in_order ON notices (place);
CREATE INDEX notices_of_owner_in_order ON notices (owner, place);
CREATE INDEX notices_undelivered_in_order ON notices (owner, place) WHERE delivered_at IS NULL;
DROP INDEX notices_by_owner;
DROP INDEX notices_undelivered;
