"""Transcripts of Claude Code: `~/.claude/projects/*/SESSION.jsonl`, sub-agents in files `agent-*.jsonl`."""
