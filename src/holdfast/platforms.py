"""What differs between operating systems, in one place: boot id, process identity, filesystem type.

Linux is what we run and test on. The macOS branches follow its documentation and could not be run
on a Mac here; `docs/guarantees.md` says so. Windows: by WSL, which is Linux.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path

from .domain.nodes import Identity

IS_MACOS = sys.platform == "darwin"


def _macos(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()


@cache
def boot_id() -> str:
    """Changes with every start of the machine."""
    if IS_MACOS:
        return _macos("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """Pids may only be compared within one namespace (a container has its own)."""
    return "macos" if IS_MACOS else os.readlink("/proc/self/ns/pid")


def start_of(pid: int) -> str | None:
    """When the process with this pid began, in the kernel's own count; None if there is none.

    A zombie has ended: it counts as none.
    """
    if IS_MACOS:
        return _macos("/bin/ps", "-o", "lstart=", "-p", str(pid)) or None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else fields[19]


def identity() -> Identity:
    """Who this process is."""
    pid = os.getpid()
    return Identity(
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid_ns=pid_namespace(),
        pid=pid,
        pid_start=start_of(pid) or "",
    )


def filesystem_of(path: Path) -> str:
    """The type of the filesystem that holds `path`, such as `ext4` or `nfs4`; empty if unknown."""
    path = path.resolve()
    if IS_MACOS:
        return filesystem_in(_macos_mounts(_macos("/sbin/mount")), path)
    return filesystem_in(linux_mounts(Path("/proc/self/mountinfo").read_text()), path)


def linux_mounts(mountinfo: str) -> list[tuple[str, str]]:
    """Mount points and their types, from the text of /proc/self/mountinfo."""
    mounts = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if right:
            point = (
                left.split()[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")
            )
            mounts.append((point, right.split()[0]))
    return mounts


def _macos_mounts(listing: str) -> list[tuple[str, str]]:
    """The same from the lines of macOS's mount: `/dev/disk3s5 on /System/Volumes/Data (apfs, local, …)`."""
    mounts = []
    for line in listing.splitlines():
        _, _, rest = line.partition(" on ")
        point, _, options = rest.rpartition(" (")
        if point:
            mounts.append((point, options.split(",")[0].rstrip(")")))
    return mounts


def filesystem_in(mounts: list[tuple[str, str]], path: Path) -> str:
    """The type of the innermost mount that holds `path`; of two on one point, the later."""
    best, kind = "", ""
    for point, filesystem in mounts:
        if (path == Path(point) or Path(point) in path.parents) and len(point) >= len(best):
            best, kind = point, filesystem
    return kind
