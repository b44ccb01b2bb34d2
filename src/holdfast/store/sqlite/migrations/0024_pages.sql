-- What pages show of nodes and notices. `version`: the node's holdfast; NULL: it joined before this was recorded.
-- `reaped_why`: the evidence by which it was reaped.
ALTER TABLE nodes ADD COLUMN version TEXT;
ALTER TABLE nodes ADD COLUMN reaped_why TEXT;

CREATE INDEX deliveries_of_notice ON deliveries (notice) WHERE notice IS NOT NULL;
