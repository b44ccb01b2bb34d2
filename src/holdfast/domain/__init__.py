"""Values and decisions. No I/O, no asyncio, no clock: the caller brings the time.

One file per noun, of the same name as in `store`, `server/admin` and `cli`. A rule belongs here as a pure
function; what it needs from the database is read by `store/<noun>.py` and passed in.
"""
