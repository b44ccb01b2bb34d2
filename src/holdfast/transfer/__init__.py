"""Conversations in and out of a store: export, import, migration to PostgreSQL."""
