-- Whether requests with this API key may be stored: 0 means that nothing of them is kept (`keys create --store never`).
ALTER TABLE api_keys ADD COLUMN keeps BIGINT NOT NULL DEFAULT 1;
