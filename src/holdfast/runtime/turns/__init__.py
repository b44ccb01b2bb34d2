"""Runs turns: lease, context, model, tools, drafts, commit."""
