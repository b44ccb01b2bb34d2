"""One package for each program whose data holdfast reads.

To add one whose sessions are files of JSON lines: a package with a `reading.py` that makes `Transcript`s
(`transcripts.py`), and a command in `cli/importing.py`. `writing.py` stores them.
"""
