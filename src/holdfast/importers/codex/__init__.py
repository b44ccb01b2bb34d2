"""Transcripts of Codex: `~/.codex/sessions/YYYY/MM/DD/rollout-TIME-THREAD.jsonl`."""
