"""The servers of the API table: how each is started before the mock model, probed until ready, and stopped.

Each is a separate process on a loopback port, with one worker, its files in a scratch directory and none of
the caller's settings. A server that does not start reports why in one line. Afterwards its claims are
verified: what it acknowledged must be on its disk.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import apsw
import psutil
from api_mock import MISREPORTS, MODELS
from environments import CannotInstall, Package, interpreter
from runner import HERE, Unmeasured

KEY = "sk-bench-8d1f6a0c5b7e42939f2ad3c46e10b85d"  # long, because LiteLLM refuses a weak one
PATIENCE_SECONDS = 90
STOP_SECONDS = 15
LITELLM = Package("litellm[proxy]", "1.106.2")


@dataclass(frozen=True)
class Kind:
    """A kind of server: the path that is 200 once it is ready, and the query that counts what it has kept."""

    name: str
    ready: str
    kept: str | None = None
    package: Package | None = None
    recover: str | None = None
    """`[turns] recover` of a holdfast server; None: the default."""


MOCK = Kind("mock", "/v1/models")
MISREPORTING = Kind("misreporting mock", "/v1/models")
JOURNALLED = Kind("journalled", "/readyz", "SELECT count(*) FROM journal")
PROXY = Kind("litellm", "/health/readiness", package=LITELLM)
HOLDFAST = Kind("holdfast", "/readyz", "SELECT count(*) FROM turns WHERE status = 'completed'")
WORKERS = Kind("workers", HOLDFAST.ready, HOLDFAST.kept)
RECOVERING = replace(HOLDFAST, name="recovering", recover="all")
NOT_RECOVERING = replace(HOLDFAST, name="not recovering", recover="never")
OURS = (HOLDFAST, WORKERS, RECOVERING, NOT_RECOVERING)


@dataclass(frozen=True)
class Server:
    """A server that runs: where, as which process, and how long it took to be ready."""

    port: int
    pid: int
    ready_seconds: float

    def memory_mb(self) -> float:
        """Resident, with its children."""
        parent = psutil.Process(self.pid)
        return sum(p.memory_info().rss for p in [parent, *parent.children(recursive=True)]) / 1e6

    def cpu_seconds(self) -> float:
        """Processor time so far of a process with one thread, such as the mock."""
        try:  # in nanoseconds; the usual figure counts ticks of 10 ms
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9
        except FileNotFoundError:  # not Linux
            times = psutil.Process(self.pid).cpu_times()
            return times.user + times.system


def install(kind: Kind) -> Path:
    """The Python this kind of server runs on, made if need be. Raises Unmeasured."""
    if kind.package is None:
        return Path(sys.executable)
    try:
        return interpreter(kind.package)
    except CannotInstall as error:
        raise Unmeasured(f"not installed: {error}") from error


def command(kind: Kind, python: Path, port: int, model_port: int, directory: Path) -> list[str]:
    """What is run, in `directory`."""
    model_url = f"http://127.0.0.1:{model_port}/v1"
    if kind in (MOCK, MISREPORTING):
        manner = [MISREPORTS] if kind is MISREPORTING else []
        return [str(python), str(HERE / "api_mock.py"), str(port), *manner]
    if kind is JOURNALLED:
        return [str(python), str(HERE / "api_passthrough.py"), str(port), model_url, "bench.db", KEY]
    if kind is PROXY:
        config = directory / "config.yaml"
        config.write_text(litellm_config(model_url))
        where = ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
        return [str(python.parent / "litellm"), "--config", str(config), *where]
    where = ["--port", str(port), "--model", model_url, "--store", "sqlite:///bench.db"]
    workers = ["--workers", "2"] if kind is WORKERS else []
    return [str(python.parent / "holdfast"), "serve", *where, *workers]


def litellm_config(model_url: str) -> str:
    """Each model by its name, one key, no database, no logging: the least LiteLLM can be asked to do.

    JSON is YAML, so nothing is needed to write it.
    """
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_base": model_url, "api_key": "none"},
        }
        for name in MODELS
    ]
    return json.dumps(
        {
            "model_list": models,
            "litellm_settings": {"callbacks": [], "num_retries": 0},
            "general_settings": {"master_key": KEY},
        }
    )


def environment(kind: Kind, directory: Path) -> dict[str, str]:
    """The caller's, without what would configure a server, and with homes in the scratch directory.

    pip compiles what it installs, but not the tree that holdfast is run from: its bytecode is kept beside the
    directory, so that only its first start is slower than that of an installed holdfast.
    """
    settings = ("HOLDFAST_", "LITELLM_", "OPENAI_", "UVICORN_", "WEB_CONCURRENCY", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    bytecode = {"PYTHONPYCACHEPREFIX": str(directory.parent / "bytecode")}
    return {
        **kept,
        **(bytecode if kind in OURS else {"PYTHONDONTWRITEBYTECODE": "1"}),
        **({"HOLDFAST_TURNS__RECOVER": kind.recover} if kind.recover else {}),
        "HOME": str(directory),
        "PYTHONPATH": str(HERE),
        "HOLDFAST_HOME": str(directory / "home"),
        "HOLDFAST_API_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
    }


@contextmanager
def started(kind: Kind, python: Path, model_port: int, directory: Path) -> Iterator[Server]:
    """A running server, stopped at the end. Raises Unmeasured if it does not come up."""
    port = free_port()
    log = directory / f"{kind.name}.log"
    began = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(kind, python, port, model_port, directory),
            cwd=directory,
            env=environment(kind, directory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not is_ready(port, kind.ready):
            if process.poll() is not None:
                raise Unmeasured(f"exited with {process.returncode}: {last_line(log)}")
            if time.perf_counter() - began > PATIENCE_SECONDS:
                raise Unmeasured(f"not ready within {PATIENCE_SECONDS} s: {last_line(log)}")
            time.sleep(0.005)
        yield Server(port, process.pid, time.perf_counter() - began)
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to stop, then make it and whatever it left behind."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)  # its own group: started in a session of its own
    except ProcessLookupError:
        return


def kept(kind: Kind, directory: Path) -> int | None:
    """How many requests are on the stopped server's disk; None for a server that keeps none."""
    if kind.kept is None:
        return None
    connection = apsw.Connection(str(directory / "bench.db"))
    try:
        return int(connection.execute(kind.kept).get)
    finally:
        connection.close()


def is_ready(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_line(log: Path) -> str:
    lines = [line.strip(" │╭╰─╮╯") for line in log.read_text(errors="replace").splitlines()]
    return ([line for line in lines if line] or ["no message"])[-1][:200]
