"""Background processes of sessions: launch, supervise, probe."""
