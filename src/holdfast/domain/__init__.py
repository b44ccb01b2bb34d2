"""Values and decisions. No I/O, no asyncio, no clock: the caller brings the time."""
