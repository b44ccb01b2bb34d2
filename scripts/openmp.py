"""GNU's OpenMP library for the engine of the small model: openmp.py found | take DIRECTORY

found: exit code 0 if this environment's Python finds it. take: copy it out of the packages in DIRECTORY into
the environment, where the engine's module looks for it.

Packages that carry the library have renamed it (libgomp-1a2b3c4d.so.1.0.0), in its file name and inside. The
dynamic linker goes by the name inside, so the copy is given the usual one again: it is shorter, so it is
written over the other, with nothing moved.
"""

import re
import sys
from pathlib import Path

from holdfast.models.local import OPENMP, OPENMP_COPY, openmp_loads

RENAMED = re.compile(rb"(?<=\0)libgomp-[0-9a-f]{4,40}\.so\.1\.0\.0(?=\0)")


def take(directory: Path) -> None:
    renamed = next(directory.glob("**/libgomp-*.so.1.0.0"), None)
    if renamed is None:
        sys.exit(f"{directory} holds no libgomp")
    content, changed = RENAMED.subn(
        lambda old: OPENMP.encode().ljust(len(old[0]), b"\0"), renamed.read_bytes()
    )
    if changed != 1:
        sys.exit(f"{renamed} names itself {changed} times, not once")
    OPENMP_COPY.write_bytes(content)
    if not openmp_loads():
        OPENMP_COPY.unlink()
        sys.exit(f"{renamed} cannot be loaded")


if sys.argv[1] == "found":
    sys.exit(not openmp_loads())
take(Path(sys.argv[2]))
