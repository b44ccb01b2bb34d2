"""HTTP to one upstream: one host, one API key, and a clear error for every failure.

The key goes only to the host in `base_url`: redirects are not followed, cookies are not kept, and the
environment is not trusted (no proxy from HTTP_PROXY, no login from ~/.netrc). To use a proxy, name it in
`base_url`. A request is retried, twice at most, only before an answer has begun: when the connection failed,
on 502 and 503, and on a 429 that asks for a short wait. A connect that timed out is not retried: it has used
its time. ModelError carries the upstream's status and its error object's text; a timeout is a 504. It never
contains the key.
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import logging
import math
import os
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import unquote

import msgspec
import yarl

from ..domain.api_keys import holds_token
from ..errors import BadSetting, ModelError
from .base import REQUEST_ID
from .http_client import ConnectTimeout, Disconnected, HttpClient, HttpFailure, UpstreamResponse
from .refusals import UpstreamRefusal, redacted, refusal

log = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.25, 1.0)
SHORT_WAIT_SECONDS = 5.0
QUESTION_SECONDS = 5.0
REFUSAL_BYTES = 64 * 1024
OLLAMA_PORT = 11434
_VERSION = re.compile(r"/v\d\w*(?:/|$)")
_HOST = re.compile(r"\A\s*(?:[\w.-]+(?::\d+)?(?:/[\w./-]*)?\s*\Z|\[[0-9a-fA-F:.]+\])")
"""An address without its scheme."""
_NEAR = re.compile(r"\A\s*(?:localhost|\d+\.\d+\.\d+\.\d+|\[|[\w-]+(?::|/|\s*\Z))")
"""A host of this machine or network: it rarely has TLS."""


class Connection:
    """A connection to the server at `base_url`. It connects at the first request, and belongs to that event
    loop."""

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        timeout_seconds: float = 600,
        connect_timeout: float = 10,
        backoff: Sequence[float] = BACKOFF_SECONDS,
        *,
        key_variable: str = "",
        longest_wait: float = SHORT_WAIT_SECONDS,
        is_own_server: bool = False,
    ) -> None:
        """`key_variable`: the environment variable that the key is from, for messages. `longest_wait`: a
        `Retry-After` of at most this many seconds is waited for. `is_own_server`: it is this user's holdfast
        server, so a key of holdfast's own is sent."""
        given = _checked_url(base_url)
        self._base = given.with_user(None).with_fragment(None)
        self._versioned = _VERSION.search(self._base.path) is not None
        """True: the address is known to be the API's. False: it may lack its /v1."""
        self._key_variable = key_variable
        self._longest_wait = longest_wait
        self._key = api_key.strip() if is_own_server else sendable(api_key.strip(), self.where)
        self._headers = _login(given, self._key)
        self._timeout_seconds = timeout_seconds
        self._connect_timeout = connect_timeout
        self._backoff = tuple(backoff)
        self._client: HttpClient | None = None
        self._common = ""
        """The header lines of every request."""
        self._closed = False

    @property
    def timeout_seconds(self) -> float:
        """How long the model may send no event."""
        return self._timeout_seconds

    @property
    def host(self) -> str:
        """Host and port, for people."""
        return self._base.host_port_subcomponent or ""

    @property
    def where(self) -> str:
        """The address for people, without login and query."""
        return str(self._base.with_query(None))

    @property
    def is_ollama(self) -> bool:
        """True if the port is Ollama's."""
        return self._base.port == OLLAMA_PORT

    def shown(self, text: str) -> str:
        """The upstream's text, made safe to show."""
        return redacted(text, self._key)

    async def open(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        once: bool = False,
    ) -> UpstreamResponse:
        """The upstream's 200 response, body unread. The caller closes it. `once`: no retry here, because the
        caller retries and counts."""
        url = self._url(path)
        for wait in (None,) if once else (*self._backoff, None):
            try:
                response = await self._send(method, url, body, headers or {})
            except (HttpFailure, OSError) as problem:
                if wait is None or not _passing(problem):
                    self.fail(problem)
                await asyncio.sleep(wait)
                continue
            if response.status == 404 and not self._versioned:
                response = await self._below_v1(response, method, path, body, headers or {})
                url = self._url(path)
            if response.status == 200:
                self._versioned = True
                return response
            pause = None if wait is None else _pause(response, wait, self._longest_wait)
            if pause is None:
                await self._refuse(response)
            response.close()
            if pause > SHORT_WAIT_SECONDS:
                log.warning("the model answered %d and asks to wait %g s; waiting", response.status, pause)
            await asyncio.sleep(pause)
        raise AssertionError("the last try either returns or raises")

    async def _below_v1(
        self,
        response: UpstreamResponse,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> UpstreamResponse:
        """The response of `base_url` + /v1, if that is where the API is; from then on it is the base.
        Otherwise the 404 that was given."""
        given = self._base
        self._base = given.with_path(f"{given.path.rstrip('/')}/v1", keep_query=True)
        try:
            second = await self._send(method, self._url(path), body, headers)
        except (HttpFailure, OSError):
            second = None
        if second is not None and second.status not in (404, 405):
            response.close()
            self._versioned = True
            log.info("the model's API is at %s; [model] base_url lacks its /v1", self.where)
            return second
        if second is not None:
            second.close()
        self._base = given
        return response

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON at this path of the server's root; None if there is none. Optional: a failure is not an
        error."""
        root = self._base.path.rstrip("/").removesuffix("/v1")
        url = self._base.with_path(f"{root}/{path}", keep_query=True)
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(min(QUESTION_SECONDS, self._timeout_seconds)):
                response = await self._send("GET" if body is None else "POST", url, data, {})
                try:
                    return msgspec.json.decode(await response.read()) if response.status == 200 else None
                finally:
                    response.close()
        except (HttpFailure, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def send_key_as(self, header: str) -> None:
        """Send the key in this header instead of `Authorization`. Call it before the first request."""
        if self._key:
            self._headers = {**self._headers, header: self._key}
            del self._headers["Authorization"]

    async def close(self) -> None:
        self._closed = True
        if self._client is not None:
            self._client.close()

    def error(self, message: str, status: int | None = None, *, public: str | None = None) -> ModelError:
        """A ModelError whose public text does not contain this upstream's address."""
        return ModelError(message, status, public=public or message.replace(f" at {self.where}", ""))

    def fail(self, problem: Exception, begun: bool = False) -> NoReturn:
        """Raise the ModelError for this exception, worded for the operator. `begun`: the answer had begun."""
        if isinstance(problem, ConnectTimeout):
            why = f"no connection within {self._connect_timeout:g} s"
            raise self.error(
                f"cannot connect to the model at {self.where}: {why}; {self._check()}", 504
            ) from None
        if isinstance(problem, TimeoutError):
            raise self.error(
                f"the model at {self.where} sent nothing for {self._timeout_seconds:g} s; "
                "is it overloaded? The limit is [model] timeout_seconds",
                504,
            ) from None
        if isinstance(problem, ssl.SSLError):
            why = self.shown(str(problem))
            raise self.error(
                f"no trusted TLS connection to the model at {self.where}: {why}",
                public="no trusted TLS connection to the model; see the server's log",
            ) from None
        if begun:
            raise ModelError("the model's stream ended early: connection lost") from problem
        if isinstance(problem, Disconnected | ConnectionResetError):
            raise self.error(
                f"the model at {self.where} closed the connection without an answer; check its log"
            ) from None
        if isinstance(problem, OSError):
            number = problem.errno or 0  # asyncio's message hides the plain one
            why = os.strerror(number) if number > 0 else self.shown(problem.strerror or str(problem))
            raise self.error(
                f"cannot connect to the model at {self.where}: {why}; {self._check()}",
                public=f"cannot connect to the model; {self._check()}",
            ) from None
        raise self.error(
            f"the model at {self.where} does not answer in HTTP as expected ({type(problem).__name__}); "
            "check [model] base_url"
        ) from None

    def fail_silent(self) -> NoReturn:
        """Raise for an open connection on which no part of the answer arrives."""
        raise self.error(
            f"the model at {self.where} sent only keepalives for {self._timeout_seconds:g} s, no part of an "
            "answer; is it overloaded? The limit is [model] timeout_seconds",
            504,
        ) from None

    async def _send(
        self, method: str, url: yarl.URL, body: bytes | None, headers: Mapping[str, str]
    ) -> UpstreamResponse:
        """Send one request. `headers` are added to those of every request, and must not repeat one."""
        if self._closed:
            raise ModelError("this model was closed")
        if self._client is None:
            assert url.raw_host is not None
            assert url.port is not None
            self._client = HttpClient(
                url.raw_host,
                url.port,
                tls=url.scheme == "https",
                connect_seconds=self._connect_timeout,
            )
            self._common = _header_lines({"Host": url.host_port_subcomponent or "", **self._headers})
        if request_id := REQUEST_ID.get():
            headers = {"X-Request-Id": request_id, **headers}
        length = f"Content-Length: {len(body)}\r\n" if body is not None else ""
        lines = f"{method} {url.raw_path_qs} HTTP/1.1\r\n{self._common}{_header_lines(headers)}{length}\r\n"
        return await self._client.request(lines.encode(), body or b"", self._timeout_seconds)

    async def _refuse(self, response: UpstreamResponse) -> NoReturn:
        status = response.status
        try:
            if 300 <= status < 400:
                self._refuse_redirect(response)
            refused = await self._read_refusal(response)
        finally:
            response.close()
        message = f"the model answered {status}" + (f": {refused.said}" if refused.said else "")
        if status in (401, 403):
            message += f" ({self._about_key()})"
        elif status == 404 and refused.said is None:
            message += " (does [model] base_url end in /v1?)"
        wait = _retry_after(response)
        if status == 429 and wait:
            message += f" (it asks to wait {math.ceil(wait)} s)"
        raise refused.error(message, status, wait)

    def _about_key(self) -> str:
        name = self._key_variable
        if not name:
            return "check the key in the variable that [model] api_key_env names"
        if not self._key:
            return f"no key was sent: set {name}, which [model] api_key_env names, to the upstream's key"
        return f"check the key in {name}, which [model] api_key_env names"

    def _refuse_redirect(self, response: UpstreamResponse) -> NoReturn:
        try:
            target = self._base.join(yarl.URL(response.headers.get("location", "")))
            there = self.shown(str(target.with_user(None).with_query(None).with_fragment(None)))
        except ValueError:
            there = "an invalid address"
        advice = (
            "redirects are not followed, so that the key goes to no other host: set [model] base_url to the "
            "final address"
        )
        raise self.error(
            f"the model answered {response.status}, a redirect from {self.where} to {there}; {advice}",
            response.status,
            public=f"the model answered {response.status}, a redirect; {advice}",
        )

    async def _read_refusal(self, response: UpstreamResponse) -> UpstreamRefusal:
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                body = b""
                while len(body) < REFUSAL_BYTES and (more := await response.readany()):
                    body += more
        except (HttpFailure, OSError):
            return UpstreamRefusal()
        return refusal(body[:REFUSAL_BYTES], self.shown)

    def _url(self, path: str) -> yarl.URL:
        return _url_at(self._base, path)

    def _check(self) -> str:
        if self.is_ollama:
            return "is Ollama running (`ollama serve`)?"
        return "is the server running, and is [model] base_url right?"


def _header_lines(headers: Mapping[str, str]) -> str:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
        raise ValueError("a header's value has a line break")
    return lines


@lru_cache(maxsize=64)  # the same few for every request
def _url_at(base: yarl.URL, path: str) -> yarl.URL:
    return base.with_path(f"{base.path.rstrip('/')}/{path}", keep_query=True)


def sendable(key: str, where: str) -> str:
    """The key, if it may be sent to the upstream `where`; else an empty text, and the log says what to do.

    Keys of holdfast's own form, and the value of HOLDFAST_API_KEY, are valid for this user's server. Every
    key for an upstream passes here, so none of these is ever sent to another server, whatever the environment
    says: after `eval "$(holdfast env)"` OPENAI_API_KEY holds one. The server of the user's own home
    (`is_own_server`) is not an upstream.
    """
    if not key or not (holds_token(key) or key == os.environ.get("HOLDFAST_API_KEY", "").strip()):
        return key
    log.error(
        "the key for the model at %s is a key of holdfast's own (from `holdfast env`?), so it is not sent; "
        "unset that variable, or let [model] api_key_env name the variable that holds the upstream's key",
        where,
    )
    return ""


def _checked_url(base_url: str) -> yarl.URL:
    try:
        url = yarl.URL(base_url.strip())
    except ValueError:
        url = yarl.URL()
    if url.scheme not in ("http", "https") or not url.host:
        hint = "http://127.0.0.1:11434/v1"
        if _HOST.match(base_url) and not holds_token(unquote(base_url)):
            scheme = "http" if _NEAR.match(base_url) else "https"
            hint = f"{scheme}://{base_url.strip()}"
        raise BadSetting(f"[model] base_url must be an http or https address, such as {hint}")
    if holds_token(unquote(base_url)):
        raise BadSetting(
            "[model] base_url holds a key of holdfast's own, which is never sent to another server; take it "
            "out, and let [model] api_key_env name the variable that holds the upstream's key"
        )
    return url


def _login(url: yarl.URL, key: str) -> dict[str, str]:
    """The headers of every request. A key takes precedence over a login in the address."""
    headers = {
        "User-Agent": "holdfast",
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",  # a compressed stream tends to be buffered
        "Content-Type": "application/json",
    }
    if not (key.isascii() and key.isprintable()):
        raise BadSetting("the model's API key has a character that cannot be sent; was it pasted whole?")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    elif url.user:
        login = base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
        headers["Authorization"] = f"Basic {login}"
    return headers


def _passing(problem: Exception) -> bool:
    """True if a retry of the same request could succeed a moment later."""
    if isinstance(problem, TimeoutError | ssl.SSLError):
        return False
    return isinstance(problem, Disconnected | OSError)


def _pause(response: UpstreamResponse, backoff: float, longest: float) -> float | None:
    """How long to wait before a retry; None: do not retry. Never less than the upstream asks for."""
    asked = _retry_after(response)
    if asked is None and "retry-after" not in response.headers:
        return backoff if response.status in (502, 503) else None
    if asked is None or ":" in response.headers.get("retry-after", ""):
        return None  # a date: clocks differ, so a short wait cannot be distinguished from none
    return asked if response.status in (429, 502, 503) and asked <= longest else None


def _retry_after(response: UpstreamResponse) -> float | None:
    """The seconds the upstream asks to wait, in whichever header; None if it does not."""
    asked = response.headers.get("retry-after-ms"), response.headers.get("retry-after")
    for text, unit in zip(asked, (0.001, 1.0), strict=True):
        if text is None:
            continue
        try:
            seconds = float(text) * unit
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
            except ValueError:
                continue
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    return None
