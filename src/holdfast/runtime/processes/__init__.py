"""Background processes of sessions: launch, supervise, probe.

`launcher.py` starts a command under `shim.py`, which outlives this program and records how the command ends
in the files of `files.py`. `probe.py` reads these and the kernel's lists; `supervisor.py` acts on them.
"""
