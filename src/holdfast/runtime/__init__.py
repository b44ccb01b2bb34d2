"""Things that act. Each does one thing once; a loop calls it."""
