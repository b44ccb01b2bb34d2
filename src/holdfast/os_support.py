"""Everything that differs between operating systems or depends on their limits: boot id, processes, threads,
filesystem type.

Developed and tested on Linux. The macOS branches follow its documentation and could not be run on a Mac here;
`docs/guarantees.md` says so. Windows: by WSL, which is Linux.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from .domain.installation import Installation, Installer
from .domain.nodes import Identity
from .errors import BadInput, BadSetting

log = logging.getLogger(__name__)

IS_MACOS = sys.platform == "darwin"


def _macos(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()


@cache
def boot_id() -> str:
    """An id that changes with every boot of the machine."""
    if IS_MACOS:
        return _macos("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def timezone() -> str:
    """The IANA name of this machine's time zone; UTC if it is unknown."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if not named:
        target = os.path.realpath("/etc/localtime")
        named = target.partition("/zoneinfo/")[2]
    try:
        ZoneInfo(named)
    except (ValueError, OSError, LookupError):
        return "UTC"
    return named


def log_time(at: float) -> str:
    """A Unix time as lines of a text log begin: this machine's time, with its offset from UTC."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")


def pid_namespace() -> str:
    """This process's pid namespace. Pids are comparable only within one (a container has its own)."""
    return "macos" if IS_MACOS else os.readlink("/proc/self/ns/pid")


PROC = Path("/proc")
HIDDEN = "hidden"
"""The start of a process that exists but is hidden from this user (`/proc` mounted with `hidepid`)."""


def start_of(pid: int) -> str | None:
    """The kernel's start time of the process with this pid; None if there is none. HIDDEN: it exists, and no
    more is known of it.

    A zombie has ended: it counts as none.
    """
    if IS_MACOS:
        return _macos("/bin/ps", "-o", "lstart=", "-p", str(pid)) or None
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return HIDDEN if _exists(pid) else None
    fields = stat.rpartition(")")[2].split()  # the name before it may contain anything
    return None if fields[0] in "ZX" else fields[19]


@cache
def machine_id(home: Path | None = None) -> str:
    """This machine's id: stable over restarts, different on every other machine; "" if there is none. Never
    the hostname, which clones and containers share.

    systemd's id, hashed as machine-id(5) requires. A container has its image's or none, so there it is a
    random one, kept in the home, readable by its owner only. Clones that also share this (a disk image whose
    /etc/machine-id was not emptied) are distinguished by their boot ids and by when their nodes were seen.
    """
    if IS_MACOS:
        return _hashed(_macos("/usr/sbin/sysctl", "-n", "kern.uuid"))
    known = "" if pid_namespace() != _FIRST_PID_NAMESPACE else _read_machine_id(Path("/etc/machine-id"))
    if known:
        return _hashed(known)
    try:
        return _hashed(_kept_machine_id(home or holdfast_home()))
    except (OSError, BadSetting) as error:
        log.warning(
            "this machine has no id, and none can be kept in %s (%s): background processes of an earlier "
            "boot will not be recognised. Make the directory writable, or set HOLDFAST_HOME",
            home or "the home",
            error,
        )
        return ""


def holdfast_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of holdfast.db and all other files of this user."""
    named = environment.get("HOLDFAST_HOME")
    return Path(named) if named else user_directory() / ".holdfast"


def user_directory() -> Path:
    """The directory of this user: HOME, else what the system says. Raises BadSetting if neither is known."""
    if named := os.environ.get("HOME"):
        return Path(named)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise BadSetting(
            f"HOME is not set, and the system knows no user with the number {os.getuid()}; set HOLDFAST_HOME "
            "to a directory of your own"
        ) from None


def expanded(path: Path) -> Path:
    """The path with `~` replaced. Raises BadInput if that is the home of an unknown user."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise BadInput(f"{path} begins in the home of a user that is not known here") from None


_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's fixed number of the initial namespace, which no container has."""
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
MACHINE_FILE = "machine.id"


def _hashed(known: str) -> str:
    return blake2b(known.encode(), digest_size=16, person=b"holdfast").hexdigest() if known else ""


def _read_machine_id(path: Path) -> str:
    """The id in this file; "" if there is none, as in an image before its first boot."""
    try:
        text = path.read_text("ascii", "replace").strip()
    except OSError:
        return ""
    return text if _MACHINE_ID.fullmatch(text) and text.strip("0") else ""


def _kept_machine_id(home: Path) -> str:
    """The random id in the home, created at first use; concurrent callers get the same one."""
    path = home / MACHINE_FILE
    if known := _read_machine_id(path):
        return known
    private_directory(home)
    draft = home / f"{MACHINE_FILE}.{os.getpid()}.{secrets.token_hex(4)}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "w") as file:
            file.write(f"{secrets.token_hex(16)}\n")
            file.flush()
            os.fsync(file.fileno())
        if exists(path) and not _read_machine_id(path):
            os.replace(draft, path)  # it contained no id
        else:
            with suppress(FileExistsError):  # another process was faster
                os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return _read_machine_id(path)


def installation() -> Installation:
    """The environment that this program runs in."""
    prefix = Path(sys.prefix)
    installer = Installer.NONE
    if exists(prefix / "pipx_metadata.json"):
        installer = Installer.PIPX
    elif exists(prefix / "uv-receipt.toml"):
        installer = Installer.UV_TOOL
    fetched = sorted(prefix.parent.glob("build/uv/*/bin/uv"))  # by a clone's `make`
    uv = "uv" if shutil.which("uv") else str(fetched[-1]) if fetched else ""
    return Installation(sys.executable, str(prefix), installer, find_spec("pip") is not None, uv)


def _exists(pid: int) -> bool:
    """True if the kernel knows this pid, also for processes that `/proc` does not show."""
    if not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_umask_lock = threading.Lock()
_umask_outside = [0o077]
"""The umask that `private_umask` restores, while it is in use."""


@contextmanager
def private_umask() -> Iterator[None]:
    """Files created meanwhile are accessible to their owner only. The umask belongs to the whole process, so
    this is held only while a file is being created; commands are started with `own_umask`."""
    with _umask_lock:
        _umask_outside[0] = before = os.umask(0o077)
        try:
            yield
        finally:
            os.umask(before)


def private_directory(path: Path) -> None:
    """Create this directory, and those above it that are missing, for their owner only, whatever the umask.
    One that exists stays as it is."""
    if not is_directory(path):
        with private_umask():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)


def open_private(path: str | Path, flags: int) -> int:
    """Open a file for writing; one that does not exist is created for its owner only, whatever the umask. Its
    form is that of an `opener` of `open`."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _mode(path: Path) -> int | None:
    """The mode of what is there; None: nothing is. Raises OSError if that cannot be seen: since Python 3.14
    `Path.exists` and the like say no to that, and what may not be read would be reported as missing."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP):
            return None
        raise
    except ValueError:  # a NUL byte, which no path has
        return None


def exists(path: Path) -> bool:
    """Raises OSError if that cannot be seen; so do the two below."""
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    return stat.S_ISREG(_mode(path) or 0)


def is_directory(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path) or 0)


def write_private(path: Path, text: str) -> None:
    """Write this text to a file; one that does not exist is created for its owner only."""
    with open(path, "w", encoding="utf-8", opener=open_private) as file:
        file.write(text)


def own_umask() -> int:
    """The umask of this process, without the effect of a current `private_umask`."""
    if not _umask_lock.acquire(blocking=False):
        return _umask_outside[0]
    try:
        before = os.umask(0o077)
        os.umask(before)
        return before
    finally:
        _umask_lock.release()


def identity() -> Identity:
    """This process's identity."""
    pid = os.getpid()
    return Identity(
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid_ns=pid_namespace(),
        pid=pid,
        pid_start=start_of(pid) or "",
        machine=machine_id(),
    )


def is_locked(path: Path, offset: int) -> bool:
    """True if another process holds a POSIX lock on this byte of a file. The file is not changed."""
    layout = struct.Struct("qqihh") if IS_MACOS else struct.Struct("hhqqi0q")
    whole, kind = (offset, 1, 0), (fcntl.F_WRLCK, os.SEEK_SET)
    asked = (*whole, *kind) if IS_MACOS else (*kind, *whole)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        answer = layout.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, layout.pack(*asked)))
    finally:
        os.close(handle)
    return bool(answer[3 if IS_MACOS else 0] != fcntl.F_UNLCK)


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
    """The type of the innermost mount that holds `path`; of two at one mount point, the later."""
    best, kind = "", ""
    for point, filesystem in mounts:
        if (path == Path(point) or Path(point) in path.parents) and len(point) >= len(best):
            best, kind = point, filesystem
    return kind


# --- processes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """A process as the kernel lists it. A zombie has ended, but its resource use still counts."""

    pid: int
    parent: int
    group: int
    session: int
    start: str
    cpu_seconds: float
    zombie: bool = False


def running_processes() -> dict[int, Running]:
    """Every visible process, by pid."""
    if IS_MACOS:
        return _macos_processes(_macos("/bin/ps", "-axo", "pid=,ppid=,pgid=,stat=,time=,lstart="))
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (one := _linux_process(int(name))) is not None:
            found[one.pid] = one
    return found


def _linux_process(pid: int) -> Running | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if not fields:
        return None  # it ended after the file was opened
    ticks = sum(map(int, fields[11:15]))  # its own, and those of children it has reaped
    return Running(
        pid,
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        fields[19].decode(),
        ticks / os.sysconf("SC_CLK_TCK"),
        fields[0] in b"ZX",
    )


def _macos_processes(listing: str) -> dict[int, Running]:
    found = {}
    for line in listing.splitlines():
        pid, parent, group, state, used, *start = line.split()
        minutes, _, seconds = used.rpartition(":")
        cpu = float(seconds.replace(",", ".")) + 60 * float(minutes.rpartition(":")[2] or 0)
        found[int(pid)] = Running(
            int(pid), int(parent), int(group), 0, " ".join(start), cpu, state.startswith("Z")
        )
    return found


def resources_of(pids: Collection[int]) -> dict[int, tuple[float, int]]:
    """CPU seconds and resident bytes of each of these processes with its descendants; those that do not run
    are left out. Memory is 0 where it is unknown."""
    running = running_processes()
    children: dict[int, list[int]] = {}
    for each in running.values():
        children.setdefault(each.parent, []).append(each.pid)
    found = {}
    for pid in pids:
        if pid not in running:
            continue
        family, at = [pid], 0
        while at < len(family):
            family += children.get(family[at], ())
            at += 1
        found[pid] = (
            sum(running[each].cpu_seconds for each in family),
            sum(_resident_bytes(each) for each in family),
        )
    return found


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def bytes_moved_by(pid: int) -> int:
    """Bytes a process has read and written so far, anywhere; 0 where this is unknown."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith((b"rchar", b"wchar")))
    except OSError:
        return 0


def environment_of(pid: int) -> bytes:
    """A process's initial environment, as `name=value` separated by NULs; empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


PR_SET_DUMPABLE, PR_GET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 3, 36


@cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> int:
    result: int = _libc().prctl(option, value, 0, 0, 0)
    return result


def hide_from_own_user() -> bool:
    """Prevent other processes of this user from reading this one's environment and memory (/proc/PID/environ,
    ptrace). What it executes later is not hidden. False where the system cannot do it. Root sees everything.

    /proc/PID/stat, which identifies processes, stays readable.
    """
    return not IS_MACOS and _prctl(PR_SET_DUMPABLE, 0) == 0


def is_hidden() -> bool:
    return not IS_MACOS and _prctl(PR_GET_DUMPABLE, 0) == 0


M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES = -3, 1024 * 1024


def return_freed_buffers() -> bool:
    """Have the C library give buffers of more than a mebibyte back to the system when they are freed. By
    default glibc keeps those that requests of many MiB have used, for the life of the process. False where
    the library cannot do it (musl, macOS)."""
    try:
        return bool(_libc().mallopt(M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES))
    except AttributeError:
        return False


def before_exec() -> Callable[[], None]:
    """What a command's process does between fork and exec: it takes this process's own umask and, on Linux,
    becomes the subreaper of its descendants, so that orphans stay in its tree. Exec keeps both. A function,
    because uvloop refuses the `umask` argument of subprocesses."""
    libc, umask = None if IS_MACOS else _libc(), own_umask()  # nothing may be imported after the fork

    def prepare() -> None:
        os.umask(umask)
        if libc is not None:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    return prepare


def owner_of(pid: int) -> int | None:
    """The user id a process runs as; None if there is no such process."""
    if IS_MACOS:
        uid = _macos("/bin/ps", "-o", "uid=", "-p", str(pid))
        return int(uid) if uid else None
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


def described(pid: int) -> tuple[str, str]:
    """A process's command line and working directory, as far as they can be read."""
    if IS_MACOS:
        return _macos("/bin/ps", "-o", "command=", "-p", str(pid)), ""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        command = shlex.join(os.fsdecode(word) for word in words) if words else name
    except (OSError, ValueError):
        command = ""
    try:
        return command, os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return command, ""


def connections_to(pids: Collection[int]) -> tuple[bool, int]:
    """Whether one of these processes listens for TCP connections, and how many connections others have made
    to them."""
    if IS_MACOS:
        return _macos_connections(pids)
    sockets, spaces = _linux_sockets(pids)
    if not sockets:
        return False, 0
    rows = [row for pid in spaces.values() for row in _linux_tcp(pid)]
    ports = {row.local for row in rows if row.state == "0A" and row.inode in sockets}
    theirs = {(row.local, row.remote) for row in rows if row.state == "01" and row.inode in sockets}
    outside = [
        row
        for row in rows
        if row.state == "01"
        and row.local in ports
        and (row.inode == "0" or row.inode in sockets)
        and (row.remote, row.local) not in theirs  # connections between themselves do not count
    ]
    return bool(ports), len(outside)


@dataclass(frozen=True, slots=True)
class _TcpConnection:
    local: str
    remote: str
    state: str
    inode: str


def _linux_sockets(pids: Collection[int]) -> tuple[set[str], dict[str, int]]:
    """The inodes of their sockets, and one process in each of their network namespaces."""
    sockets: set[str] = set()
    spaces: dict[str, int] = {}
    for pid in pids:
        try:
            handles = [os.readlink(each.path) for each in os.scandir(f"/proc/{pid}/fd")]
            mine = {name[8:-1] for name in handles if name.startswith("socket:[")}
            if mine:
                spaces.setdefault(os.readlink(f"/proc/{pid}/ns/net"), pid)
                sockets |= mine
        except OSError:
            continue  # it has ended meanwhile, or belongs to another user
    return sockets, spaces


def _linux_tcp(pid: int) -> list[_TcpConnection]:
    rows = []
    for table in ("tcp", "tcp6"):
        try:
            text = Path(f"/proc/{pid}/net/{table}").read_text()
        except OSError:
            continue
        for line in text.splitlines()[1:]:
            words = line.split()
            ports = (words[1].rpartition(":")[2], words[2].rpartition(":")[2])
            rows.append(_TcpConnection(*ports, words[3], words[9]))
    return rows


def listening_users(address: str, port: int) -> set[int]:
    """The ids of the users whose processes get connections to this address of this machine and this TCP port;
    empty: none does, or the system does not say (macOS)."""
    rows: list[tuple[str, int]] = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            rows += _listening_in(Path(f"/proc/net/{name}").read_text(), port)
    exact = {user for local, user in rows if local == address}
    every = ("0.0.0.0", "::") if "." in address else ("::",)
    return exact or {user for local, user in rows if local in every}


def _listening_in(table: str, port: int) -> list[tuple[str, int]]:
    """The addresses that are listened at, and their users, of /proc/net/tcp:
    `sl local_address rem_address st tx:rx tr:when retrnsmt uid …`."""
    rows = (line.split() for line in table.splitlines()[1:])
    found = [(*row[1].split(":"), row[7]) for row in rows if len(row) > 7 and row[3] == "0A"]
    return [(_address(address), int(user)) for address, at, user in found if int(at, 16) == port]


def _address(digits: str) -> str:
    """The address of a row, of which each four bytes are a number of this machine."""
    words = (int(digits[at : at + 8], 16) for at in range(0, len(digits), 8))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed).removeprefix(
        "::ffff:"
    )


def _macos_connections(pids: Collection[int]) -> tuple[bool, int]:
    import psutil

    found = []
    for pid in pids:
        try:
            found += psutil.Process(pid).net_connections("tcp")
        except psutil.Error:
            continue
    ports = {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}
    open_ones = [each for each in found if each.status == psutil.CONN_ESTABLISHED]
    theirs = {(each.laddr.port, each.raddr.port) for each in open_ones}
    outside = [
        each
        for each in open_ones
        if each.laddr.port in ports and (each.raddr.port, each.laddr.port) not in theirs
    ]
    return bool(ports), len(outside)


def send_signal(pid: int, start: str, number: int) -> bool:
    """Signal the process with this pid if its start time is still `start`. False if it is not."""
    if not hasattr(os, "pidfd_open"):
        if start_of(pid) != start:
            return False
        os.kill(pid, number)
        return True
    try:
        handle = os.pidfd_open(pid)  # from here on a reused pid is another process
    except ProcessLookupError:
        return False
    try:
        if start_of(pid) != start:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


class LazyThread:
    """A daemon thread that is started at first use. If the system has no thread to give (a limit of
    processes, a fork bomb in the same container), the next use tries again."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._guard = threading.Lock()
        self._started = False
        self._logged = False

    def start(self) -> bool:
        """Idempotent. False, and logged once: it cannot be started now."""
        return self._started or self._start()

    def _start(self) -> bool:
        with self._guard:
            if self._started:
                return True
            try:
                self._thread.start()
            except RuntimeError as error:
                if not self._logged:
                    log.warning("the thread %s cannot be started now: %s", self._thread.name, error)
                self._logged = True
                return False
            self._started = True
            return True

    def join(self) -> None:
        """Wait for its end, if it was started."""
        if self._started:
            self._thread.join()
