"""The settings: every section and value with its default, its meaning and its limits.

`_setting` describes one; `sources.py` reads them, `convert.py` checks them against these limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from ..domain.api_keys import TOOLS
from ..errors import BadInput, BadSetting
from ..os_support import expanded
from ..os_support import holdfast_home as home

ENVIRONMENT_PREFIX = "HOLDFAST_"
FAR = 100_000
MOST_MINUTES = 52_560_000  # a hundred years; longer would exceed the calendar
MOST_SECONDS, MOST_DAYS = 60 * MOST_MINUTES, 36_500
MOST_MB = 2**40  # an exbibyte; more could not be counted
SMALLEST_WINDOW = 256  # tokens; a smaller window cannot hold a question and its answer
_ORIGIN = re.compile(r"\*|https?://[^/?#@\s*]+")
_PRICE = re.compile(r"\d{1,9}(\.\d{1,9})?/\d{1,9}(\.\d{1,9})?")
_WEBHOOK = re.compile(r"https?://[^/\s]+(/\S*)?")
_HEADER = re.compile(r"[A-Za-z0-9_-]+")
_PASSWORD = re.compile(r"(?<=^)(\w+://[^:/?#@]*):[^@]*@|(?<=[?&])(password)=[^&#]*")
_HOST = re.compile(r"\*|[^/?#@\s:*]+|\[[0-9a-fA-F:.]+\]")


def _setting(default: Any, meaning: str, **limits: Any) -> Any:
    """A setting of its default's type: string, float, integer, boolean, list of strings, table of numbers
    (with `texts`: of strings).

    Limits: `at_least`, `at_most`, `above`, `below`, `or_zero` for numbers, also a table's; `choices`,
    `not_empty` for strings; `shape`, `such_as` for strings and for each string of a list; `zone` for the name
    of a time zone; `store` for a store's address; `outgoing` for an address that requests are sent to.
    """
    metadata = {"meaning": meaning, **limits}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    url: str = _setting(
        "",
        "empty: holdfast.db in the home; sqlite:///path (relative to the working directory); "
        "or postgresql://user@host/database",
        store=True,
    )


@dataclass(frozen=True, slots=True)
class ServerSettings:
    host: str = _setting("127.0.0.1", "the address to listen on", not_empty=True)
    port: int = _setting(8377, "the port to listen on; 0: any free one", at_least=0, at_most=65535)
    workers: int = _setting(1, "how many processes serve the port, each a node", at_least=1, at_most=64)
    max_body_mb: float = _setting(20.0, "how large a request may be, in MiB", above=0, at_most=MOST_MB)
    max_requests: int = _setting(1000, "how many requests may be in progress at once", at_least=1)
    checkpoint_seconds: float = _setting(0.5, "a streaming reply is saved at least this often", above=0)
    busy_wait_seconds: float = _setting(
        60.0, "how long a second request to a busy conversation waits", at_least=0
    )
    on_disconnect: str = _setting(
        "finish", "what happens to a turn whose client has disconnected", choices=("finish", "interrupt")
    )
    drain_seconds: float = _setting(
        5.0, "how long a clean shutdown may take; a sweep then cleans up the rest", at_least=0
    )
    cors_origins: tuple[str, ...] = _setting(
        (),
        "web pages of these origins may call the server; *: of any; empty: none",
        shape=_ORIGIN,
        such_as="https://chat.example.com",
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (),
        "host names that requests may use, `*` for any; empty: this machine's loopback, and `host`",
        shape=_HOST,
        such_as="agent.example.com",
    )


@dataclass(frozen=True, slots=True)
class ModelSettings:
    kind: str = _setting("auto", "its kind", choices=("auto", "openai", "anthropic", "local", "scripted"))
    base_url: str = _setting("", "the address of the model's server, ending in /v1", outgoing=True)
    name: str = _setting("", "the model to ask for; empty: the upstream's first")
    api_key_env: str = _setting("OPENAI_API_KEY", "the environment variable that holds the upstream's key")
    context_window: int = _setting(
        0,
        "tokens the model can take at once; 0: ask the model",
        at_least=SMALLEST_WINDOW,
        or_zero=True,
    )
    timeout_seconds: float = _setting(600.0, "how long the model may be silent", above=0)
    fallbacks: tuple[str, ...] = _setting(
        (), "models to try in order when `name` cannot answer; the reply's `model` is the one that did"
    )
    aliases: Mapping[str, str] = _setting(
        {},
        "a client's name for a model, and the model's own; `*` for every name it does not list",
        texts=True,
    )
    windows: Mapping[str, int] = _setting(
        {}, "the context window of a model, by its name", at_least=SMALLEST_WINDOW
    )
    prices: Mapping[str, str] = _setting(
        {},
        "what a million tokens of a model cost, input/output, by its name; only for figures",
        texts=True,
        shape=_PRICE,
        such_as="2.5/10",
    )

    @property
    def price_table(self) -> dict[str, tuple[float, float]]:
        """`prices` as numbers."""
        pairs = {name: price.partition("/") for name, price in self.prices.items()}
        return {name: (float(given), float(said)) for name, (given, _, said) in pairs.items()}


@dataclass(frozen=True, slots=True)
class AgentSettings:
    system_prompt: str = _setting("", "instructions for every turn")
    tools: tuple[str, ...] = _setting(
        (),
        "server-side tools, for keys that allow them; empty: none",
        shape=re.compile("|".join(TOOLS)),
        such_as=" or ".join(TOOLS),
    )
    max_steps: int = _setting(50, "most model calls in one turn", at_least=1)
    search: str = _setting(
        "key",
        "what the search tool sees: this conversation, or all of its owner's",
        choices=("key", "owner"),
    )
    reconcile: str = _setting(
        "",
        "this address is asked for the outcome of tool calls that a crash left open; empty: none is",
        shape=_WEBHOOK,
        such_as="https://example.com/hook",
        outgoing=True,
    )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Quotas. Checked when a turn begins or an item is added; 0: unlimited."""

    messages_per_request: int = _setting(
        10_000, "messages and items in one request; 0: unlimited", at_least=0
    )
    conversation_mb: float = _setting(
        256.0, "bytes of messages in one conversation, in MiB; 0: unlimited", at_least=0, at_most=MOST_MB
    )
    owner_mb: float = _setting(
        0.0, "bytes of messages of one owner, in MiB; 0: unlimited", at_least=0, at_most=MOST_MB
    )
    owner_conversations: int = _setting(0, "conversations of one owner; 0: unlimited", at_least=0)
    streams_per_key: int = _setting(
        200, "streams that one API key may have open at once; 0: unlimited", at_least=0
    )
    turns_per_key: int = _setting(
        100, "turns that one API key may have running at once; 0: unlimited", at_least=0
    )


@dataclass(frozen=True, slots=True)
class TurnSettings:
    recover: str = _setting(
        "background",
        "which turns a server retries when their own server died or was stopped",
        choices=("background", "all", "never"),
    )
    max_attempts: int = _setting(
        5, "a turn is given up after this many crashes since its last stored step", at_least=1
    )
    max_deaths: int = _setting(20, "a turn is given up after this many crashes in all", at_least=1)
    recover_hours: float = _setting(
        24.0, "a turn older than this is given up, not retried", above=0, at_most=FAR
    )
    retry_model: bool = _setting(
        True, "whether a turn without a waiting client waits for a model that is unavailable"
    )
    retry_hours: float = _setting(6.0, "how long it waits for the model at most", above=0, at_most=FAR)
    when_busy: str = _setting(
        "wait",
        "what a request does when its conversation is busy, if it does not choose",
        choices=("wait", "queue", "steer", "interrupt", "reject"),
    )
    queue: int = _setting(16, "turns that may be queued in one conversation", at_least=0, at_most=1000)
    collect: bool = _setting(False, "whether messages queued during one turn become one turn")


@dataclass(frozen=True, slots=True)
class ResetSettings:
    mode: str = _setting("none", "when a session is reset", choices=("none", "idle", "daily", "both"))
    idle_minutes: float = _setting(
        1440.0, "idle: this long after the last message", above=0, at_most=MOST_MINUTES
    )
    at_hour: float = _setting(4.0, "daily: at this hour; 4.5 is half past four", at_least=0, below=24)
    quiet_minutes: float = _setting(
        15.0,
        "a due daily reset waits until there was no message for this long",
        at_least=0,
        at_most=MOST_MINUTES,
    )
    timezone: str = _setting("", "an IANA name such as Europe/Berlin; empty: this machine's", zone=True)
    sources: Mapping[str, Mapping[str, Any]] = _setting(
        {}, "any of the above for one source, as [reset.sources.telegram]; only what differs", by_source=True
    )


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    max_block_minutes: float = _setting(
        120.0, "how long an active process may defer a reset", at_least=0, at_most=MOST_MINUTES
    )
    active_window_seconds: float = _setting(
        60.0, "a process that showed activity within this time is active", above=0, at_most=86_400
    )
    on_reset: str = _setting("stop", "what a reset does with a session's processes", choices=("stop", "keep"))
    grace_seconds: float = _setting(
        10.0, "time between SIGTERM and SIGKILL", at_least=0, at_most=MOST_SECONDS
    )


@dataclass(frozen=True, slots=True)
class MemorySettings:
    flush: bool = _setting(True, "keep a memory of each ended session; off by default with the local model")
    min_messages: int = _setting(
        4, "a session with fewer messages is too short to be flushed", at_least=1, at_most=2**31
    )
    concurrency: int = _setting(4, "how many flushes run at once, over all nodes", at_least=1)
    per_minute: int = _setting(30, "how many flushes are attempted in a minute, over all nodes", at_least=1)
    max_attempts: int = _setting(5, "a flush that failed this often becomes a dead letter", at_least=1)
    retry_seconds: float = _setting(
        5.0, "delay before a failed flush is retried, doubled at each attempt", above=0, at_most=3600
    )
    model: str = _setting("", "the model used; empty: [model] name")
    prompt: str = _setting("", "the instructions; empty: the built-in ones")
    webhook: str = _setting(
        "",
        "sessions are flushed to this address instead of the model; empty: to the model",
        shape=_WEBHOOK,
        such_as="https://example.com/hook",
        outgoing=True,
    )
    recall: str = _setting(
        "key",
        "which memories a session is given: those of its conversation, or all of its owner's, or none",
        choices=("key", "owner", "none"),
    )
    recall_chars: int = _setting(4000, "how many characters of memories it is given at most", at_least=200)


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    threshold: float = _setting(
        0.75, "a context that takes more of the window than this is compacted", above=0, at_most=1
    )
    keep_first: int = _setting(2, "how many messages at the beginning of a context are kept", at_least=0)
    keep_last: int = _setting(12, "how many messages at its end are kept", at_least=1)
    summary_timeout_seconds: float = _setting(120.0, "how long a summary may take", above=0, at_most=3600)
    model: str = _setting("", "the model that summarises; empty: [model] name, else the model that answers")
    prompt: str = _setting("", "the instructions; empty: the built-in ones")


@dataclass(frozen=True, slots=True)
class TitleSettings:
    generate: bool = _setting(
        True, "the model names conversations without a title; off by default with the local model"
    )
    min_messages: int = _setting(4, "a conversation with fewer messages is not named", at_least=1)
    per_minute: int = _setting(10, "how many a server names in a minute at most", at_least=1, at_most=1000)
    model: str = _setting("", "the model used; empty: [model] name")


@dataclass(frozen=True, slots=True)
class NotifySettings:
    webhook: str = _setting(
        "",
        "every notice is sent here, at least once, its id as Idempotency-Key; empty: nowhere",
        shape=_WEBHOOK,
        such_as="https://example.com/hook",
        outgoing=True,
    )
    home: str = _setting(
        "",
        "the session key of the chat that gets notices of conversations without one, such as telegram:dm:42",
    )


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    heartbeat_seconds: float = _setting(15.0, "interval of a node's heartbeat", above=0)
    stale_seconds: float = _setting(
        90.0, "a node without a heartbeat for this long counts as hung", above=0, at_most=MOST_SECONDS
    )
    sweep_seconds: float = _setting(5.0, "interval of the sweep", above=0)


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    events_days: float = _setting(30.0, "how long events are kept", above=0, at_most=MOST_DAYS)
    requests_days: float = _setting(
        30.0,
        "how long a retried request is recognised, and side requests are kept",
        above=0,
        at_most=MOST_DAYS,
    )
    conversations_days: float = _setting(
        0.0,
        "how long a conversation is kept after its last message; 0: forever",
        at_least=0,
        at_most=MOST_DAYS,
    )


@dataclass(frozen=True, slots=True)
class ClientSettings:
    names: tuple[str, ...] = _setting(
        (
            "thread-id",
            "x-claude-code-session-id",
            "x-session-id",
            "x-session-affinity",
            "session_id",
            "session-id",
        ),
        "headers by which programs name their sessions; the first that is present counts. prompt_cache_key "
        "means the body's field",
        shape=_HEADER,
        such_as="x-session-id",
    )
    store_false: str = _setting(
        "keep",
        "what happens to a named request with store: false",
        choices=("keep", "drop"),
    )
    hosted_tools: str = _setting(
        "ignore",
        "what happens to tools that only OpenAI can run, such as web_search",
        choices=("ignore", "refuse"),
    )


_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ConnectorSettings:
    """What every `[connectors.<name>]` has. Each kind adds its own; see CONNECTOR_KINDS."""

    kind: str = _setting("", "the messaging platform", not_empty=True)
    token_env: str = _setting(
        "",
        "the environment variable that holds the platform's token or the signing secret",
        shape=_VARIABLE_NAME,
        such_as="TELEGRAM_TOKEN",
    )
    allow: tuple[str, ...] = _setting(
        (),
        "people and rooms that may write, by their id on the platform; `*`: everyone; empty: paired people",
    )
    tools: tuple[str, ...] = _setting(
        (),
        "server-side tools for its conversations, of those that [agent] tools names; empty: none",
        shape=re.compile("|".join(TOOLS)),
        such_as=" or ".join(TOOLS),
    )
    when_busy: str = _setting(
        "queue",
        "what happens to a message that arrives while a reply is being written",
        choices=("wait", "queue", "steer", "interrupt", "reject"),
    )
    gather_seconds: float = _setting(
        0.0,
        "messages that arrive within this time of each other are one turn; 0: each is its own",
        at_least=0,
        at_most=60,
    )
    attachment_mb: float = _setting(
        20.0,
        "files that come with messages are stored up to this size, larger ones only named; 0: none is stored",
        at_least=0,
        at_most=100,
    )
    images: bool = _setting(
        False, "whether images are sent to the model, which must be able to see; else only their names"
    )


@dataclass(frozen=True, slots=True)
class TelegramSettings(ConnectorSettings):
    mode: str = _setting(
        "polling",
        "how updates arrive; `webhook`: Telegram posts them to this server",
        choices=("polling", "webhook"),
    )
    secret_env: str = _setting(
        "",
        "mode webhook: the environment variable that holds the secret given to setWebhook",
        shape=_VARIABLE_NAME,
        such_as="TELEGRAM_SECRET",
    )
    api_url: str = _setting(
        "https://api.telegram.org",
        "the Bot API's address, for a Bot API server of your own",
        shape=_WEBHOOK,
        such_as="https://api.telegram.org",
        outgoing=True,
    )
    poll_seconds: float = _setting(30.0, "how long one poll waits for updates", at_least=0, at_most=50)


@dataclass(frozen=True, slots=True)
class WebhookSettings(ConnectorSettings):
    url: str = _setting(
        "",
        "replies and notices are sent here, signed; empty: nowhere, they stay pending",
        shape=_WEBHOOK,
        such_as="https://example.com/hook",
        outgoing=True,
    )


@dataclass(frozen=True, slots=True)
class MatrixSettings(ConnectorSettings):
    homeserver: str = _setting(
        "",
        "the homeserver's address",
        shape=_WEBHOOK,
        such_as="https://matrix.org",
        outgoing=True,
    )
    poll_seconds: float = _setting(30.0, "how long one sync waits for events", at_least=1, at_most=50)


@dataclass(frozen=True, slots=True)
class SlackSettings(ConnectorSettings):
    app_token_env: str = _setting(
        "",
        "the environment variable that holds the app-level token, for socket mode",
        shape=_VARIABLE_NAME,
        such_as="SLACK_APP_TOKEN",
    )
    api_url: str = _setting(
        "https://slack.com/api",
        "the Web API's address",
        shape=_WEBHOOK,
        such_as="https://slack.com/api",
        outgoing=True,
    )
    files_url: str = _setting(
        "https://files.slack.com",
        "where files are fetched from, with the bot token; files at another address are only named",
        shape=_WEBHOOK,
        such_as="https://files.slack.com",
        outgoing=True,
    )


def check_notifies(connectors: Mapping[str, ConnectorSettings], name: str) -> None:
    """Raises BadInput unless events can be sent to this connector: it is a webhook with a url."""
    found = connectors.get(name)
    if not isinstance(found, WebhookSettings) or not found.url:
        raise BadInput(
            f"{name!r:.80} is not a connector that can be notified; it needs [connectors.{name:.80}] with "
            'kind = "webhook", url and token_env'
        )


CONNECTOR_KINDS: Mapping[str, type[ConnectorSettings]] = {
    "matrix": MatrixSettings,
    "slack": SlackSettings,
    "telegram": TelegramSettings,
    "webhook": WebhookSettings,
}
"""The settings of each kind of connector."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: str = _setting(
        "info", "the least severe level logged", choices=("debug", "info", "warning", "error")
    )
    format: str = _setting("text", "the format of log lines", choices=("text", "json"))
    access: bool = _setting(True, "whether the server logs a line for each request, without its content")


@dataclass(frozen=True, slots=True)
class OtelSettings:
    endpoint: str = _setting(
        "",
        "traces and metrics are sent to this OTLP receiver over HTTP; empty: none are made",
        shape=_WEBHOOK,
        such_as="http://127.0.0.1:4318",
        outgoing=True,
    )
    service_name: str = _setting("holdfast", "the name of this service in them")


@dataclass(frozen=True, slots=True)
class Settings:
    store: StoreSettings = field(default_factory=StoreSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    turns: TurnSettings = field(default_factory=TurnSettings)
    reset: ResetSettings = field(default_factory=ResetSettings)
    processes: ProcessSettings = field(default_factory=ProcessSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    titles: TitleSettings = field(default_factory=TitleSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    clients: ClientSettings = field(default_factory=ClientSettings)
    otel: OtelSettings = field(default_factory=OtelSettings)
    log: LogSettings = field(default_factory=LogSettings)
    connectors: Mapping[str, ConnectorSettings] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    """The origin of each value that is not a default, by `section.name`."""
    ignored: Path | None = None
    """A settings file that was not used: in the working directory, because it is not trusted; in the home,
    because others can change it or it cannot be read."""
    ignored_for: tuple[str, ...] = ()
    """Why, and what to do about it: a sentence for each file that was ignored."""


SECTIONS: Mapping[str, type[Any]] = {
    name: kind
    for name, kind in get_type_hints(Settings).items()
    if name not in ("connectors", "origins", "ignored", "ignored_for")
}


def is_variable(origin: str) -> bool:
    """True if the value came from the environment."""
    return origin.startswith(ENVIRONMENT_PREFIX)


def is_postgres(url: str) -> bool:
    """True if a store URL means a PostgreSQL database; otherwise it means a SQLite file."""
    return url.startswith(("postgresql://", "postgres://"))


def without_password(url: str) -> str:
    """A store URL without its password."""
    return _PASSWORD.sub(lambda found: f"{found[1]}@" if found[1] else f"{found[2]}=***", url)


def store_location(url: str) -> str:
    """A store's location, for people."""
    if not is_postgres(url):
        return str(database_path(url).absolute())
    return re.sub(r"(?<=[?&])sslpassword=[^&#]*", "sslpassword=***", without_password(url))


def database_path(url: str) -> Path:
    """The SQLite file of a store URL; empty: the home's."""
    if not url:
        return home() / "holdfast.db"
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise BadSetting(
            "a store URL looks like sqlite:///path/to/file.db or postgresql://user@host/database, "
            f"not {url!r}"
        )
    if scheme != "sqlite":
        raise BadSetting(
            f"there is no store engine for {scheme!r}; use sqlite:///path/to/file.db or "
            "postgresql://user@host/database"
        )
    path = rest.removeprefix("/") if rest.startswith("/") else ""
    if not path or path == ":memory:":
        raise BadSetting(f"{url!r} names no file; use sqlite:///relative.db or sqlite:////absolute.db")
    try:
        return expanded(Path(path))
    except BadInput:
        raise BadSetting(f"{url!r} begins in the home of a user that is not known here") from None
