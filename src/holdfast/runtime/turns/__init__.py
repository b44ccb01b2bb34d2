"""Runs turns: match, lease, model, tools, drafts, commit.

Starts at `runner.py`; one turn is `agent_loop.py`.
"""
