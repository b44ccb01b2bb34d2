"""Runs turns: lease, context, model, tools, checkpoints, commit."""
