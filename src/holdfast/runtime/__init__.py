"""Agents and the turn runner. Each agent does one pass in a public method; a loop calls it."""
