-- What pages show of nodes and notices. See SQLite's migration 24.
ALTER TABLE nodes ADD COLUMN version TEXT;
ALTER TABLE nodes ADD COLUMN reaped_why TEXT;

CREATE INDEX deliveries_of_notice ON deliveries (notice) WHERE notice IS NOT NULL;
