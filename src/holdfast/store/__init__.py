"""All durable state, and the only SQL. One protocol (`base.Store`), one engine per database."""
