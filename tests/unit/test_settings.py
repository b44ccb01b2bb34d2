"""Settings: where they come from, what they may be, and what an error about them says."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import wiring
from holdfast.errors import BadSetting
from holdfast.settings import SECTIONS, Settings, default_of, load

YEAR = timedelta(days=365)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory and a home without a settings file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str = "", environment: Mapping[str, str] | None = None, **given: Any) -> Settings:
    """The settings of this file, in this environment."""
    path = Path("holdfast.toml")
    path.write_text(text)
    return load(path, {"HOLDFAST_HOME": "/nowhere", **(environment or {})}, given)


def fault(text: str = "", environment: Mapping[str, str] | None = None) -> str:
    with pytest.raises(BadSetting) as caught:
        read(text, environment)
    return str(caught.value)


def test_a_connector_can_be_set_by_the_environment_alone() -> None:
    given = {
        "HOLDFAST_CONNECTORS__PHONE__ALLOW": "42,43",
        "HOLDFAST_CONNECTORS__PHONE__KIND": "telegram",
        "HOLDFAST_CONNECTORS__PHONE__GATHER_SECONDS": "1.5",
    }
    phone = load(environment={"HOLDFAST_HOME": "/nonexistent", **given}).connectors["phone"]
    assert (phone.kind, phone.allow, phone.gather_seconds) == ("telegram", ("42", "43"), 1.5)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            {"phone": {"kind": "telegraph"}},
            r"connectors.phone.kind must be one of matrix, slack, telegram, webhook",
        ),
        ({"phone": {"allow": []}}, r"connectors.phone.kind must be one of"),
        (
            {"phone": {"kind": "telegram", "tokn_env": "X"}},
            r"connectors.phone.tokn_env.*connectors.phone.token_env",
        ),
        (
            {"phone": {"kind": "webhook", "poll_seconds": 1}},
            r"there is no setting connectors.phone.poll_seconds",
        ),
        ({"phone": {"kind": "telegram", "when_busy": "panic"}}, r"connectors.phone.when_busy must be one of"),
        ({"phone": {"kind": "telegram", "token_env": "12:ab"}}, r"connectors.phone.token_env must look like"),
        ({"Phone/x": {"kind": "telegram"}}, r"a connector's name"),
        ({"phone": "telegram"}, r"connectors must be a table for each connector"),
    ],
)
def test_a_wrong_connector_is_an_error_that_names_it(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadSetting, match=complaint):
        load(environment={"HOLDFAST_HOME": "/nonexistent"}, given={"connectors": given})


def test_a_server_that_nobody_configured_is_the_one_of_the_contract() -> None:
    server, model = read().server, read().model
    assert (server.host, server.port) == ("127.0.0.1", 8377)
    assert (server.max_body_mb, server.max_requests) == (20, 1000)
    assert (server.checkpoint_seconds, server.busy_wait_seconds, server.drain_seconds) == (0.5, 60, 5)
    assert (server.on_disconnect, server.cors_origins, server.allowed_hosts) == ("finish", (), ())
    assert (model.context_window, model.windows) == (0, {})


def test_a_file_says_texts_numbers_lists_and_tables() -> None:
    settings = read(
        """
        [server]
        host = "::1"
        port = 0
        max_body_mb = 0.5
        cors_origins = ["https://a.example.com", "http://localhost:3000"]
        allowed_hosts = ["agent.example.com", "10.0.0.1", "[::1]"]
        on_disconnect = "interrupt"
        [model]
        context_window = 4096
        [model.windows]
        "qwen3:8b" = 32768
        """
    )
    assert (settings.server.host, settings.server.port) == ("::1", 0)
    assert settings.server.max_body_mb == 0.5
    assert settings.server.cors_origins == ("https://a.example.com", "http://localhost:3000")
    assert settings.server.allowed_hosts == ("agent.example.com", "10.0.0.1", "[::1]")
    assert settings.server.on_disconnect == "interrupt"
    assert settings.model.context_window == 4096
    assert settings.model.windows == {"qwen3:8b": 32768}
    assert settings.origins["server.port"] == settings.origins["model.windows"] == "holdfast.toml"


def test_the_environment_says_the_same_in_text() -> None:
    environment = {
        "HOLDFAST_SERVER__PORT": "9000",
        "HOLDFAST_SERVER__DRAIN_SECONDS": "2.5",
        "HOLDFAST_SERVER__CORS_ORIGINS": "https://a, https://b ,",
        "HOLDFAST_MODEL__WINDOWS": "qwen3:8b=32768, org/a=b = 512",
        "HOLDFAST_API_KEY": "secret",
    }
    settings = read("[server]\nport = 1\n[model.windows]\nold = 512\n", environment)
    assert (settings.server.port, settings.server.drain_seconds) == (9000, 2.5)
    assert settings.server.cors_origins == ("https://a", "https://b")
    assert settings.model.windows == {"qwen3:8b": 32768, "org/a=b": 512}
    assert settings.origins["server.port"] == "HOLDFAST_SERVER__PORT"
    assert "secret" not in repr(settings)


def test_a_list_may_be_written_in_the_environment_as_in_the_file() -> None:
    settings = read("", {"HOLDFAST_AGENT__TOOLS": '["terminal", "search"]'})
    assert settings.agent.tools == ("terminal", "search")


@pytest.mark.parametrize(("said", "meant"), [("0", False), ("off", False), ("No", False), ("1", True)])
def test_yes_and_no_in_the_environment_are_any_of_the_usual_words(said: str, meant: bool) -> None:
    assert read("", {"HOLDFAST_MEMORY__FLUSH": said}).memory.flush is meant


def test_what_differs_for_a_source_has_an_origin_as_a_whole_too() -> None:
    settings = read("[reset.sources.telegram]\nmode = 'idle'\n")
    assert settings.origins["reset.sources"] == "holdfast.toml"
    environment = {"HOLDFAST_RESET__SOURCES__TELEGRAM__IDLE_MINUTES": "5"}
    assert read("", environment).origins["reset.sources"] == next(iter(environment))


def test_an_empty_text_empties_a_list_and_a_table() -> None:
    environment = {"HOLDFAST_SERVER__CORS_ORIGINS": "", "HOLDFAST_MODEL__WINDOWS": ""}
    settings = read('[server]\ncors_origins = ["https://a"]\n[model.windows]\nold = 512\n', environment)
    assert (settings.server.cors_origins, settings.model.windows) == ((), {})


def test_what_a_program_gives_goes_before_all_else() -> None:
    settings = read("[server]\nport = 1\n", {"HOLDFAST_SERVER__PORT": "2"}, server={"port": 3})
    assert settings.server.port == 3
    assert settings.origins["server.port"] == "settings="


def test_a_table_that_was_given_is_not_shared_with_its_giver() -> None:
    windows = {"a": 512}
    settings = read(model={"windows": windows})
    windows["a"] = 1
    assert settings.model.windows == {"a": 512}
    assert read().model.windows == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[store]\nurl = 'mysql://db'",
            "store.url: there is no store engine for 'mysql'; use sqlite:///path",
        ),
        ("[store]\nurl = 'sqlite:///~nobody0/a.db'", "begins in the home of a user that is not known here"),
        ("[store]\nurl = 'agent.db'", "store.url: a store URL looks like sqlite:///path/to/file.db or"),
        ("[server]\nport = 65536", "server.port must be at least 0 and at most 65535, not 65536"),
        ("[server]\nport = -1", "server.port must be at least 0 and at most 65535, not -1"),
        ("[server]\nport = 80.5", "server.port must be a whole number, not 80.5"),
        ("[server]\nport = true", "server.port must be a whole number, not True"),
        ('[server]\nport = "http"', "server.port must be a whole number, not 'http'"),
        ("[server]\nport = [80]", "server.port must be a whole number, not [80]"),
        ("[server]\nmax_requests = 0", "server.max_requests must be at least 1, not 0"),
        ("[server]\nmax_body_mb = 0", "server.max_body_mb must be above 0, not 0"),
        ("[server]\nmax_body_mb = nan", "server.max_body_mb must be above 0, not nan"),
        (
            "[server]\nmax_body_mb = inf",
            "server.max_body_mb must be above 0 and at most 1099511627776, not inf",
        ),
        ("[server]\nmax_body_mb = false", "server.max_body_mb must be a number, not False"),
        ("[server]\ncheckpoint_seconds = 0", "server.checkpoint_seconds must be above 0, not 0"),
        ("[server]\nhost = ''", "server.host must not be empty"),
        ("[server]\nhost = 1", "server.host must be text, not 1"),
        ("[server]\non_disconnect = 'stop'", "must be one of finish, interrupt, not 'stop'"),
        ("[server]\ncors_origins = [1]", "server.cors_origins must be a list of texts, not [1]"),
        ("[server]\ncors_origins = 1", "server.cors_origins must be a list of texts, not 1"),
        ("[server]\ncors_origins = ['a.com']", "'a.com'; each must look like https://chat.example.com"),
        ("[server]\ncors_origins = ['https://a/b']", "each must look like https://chat.example.com"),
        ("[server]\nallowed_hosts = ['http://a']", "each must look like agent.example.com"),
        ("[server]\nallowed_hosts = ['a:80']", "each must look like agent.example.com"),
        ("[server]\nallowed_host = ['a']", "there is no setting server.allowed_host; did you mean "),
        ("[model]\ncontext_window = 255", "must be 0 or at least 256, not 255"),
        ("[model]\nwindows = 1", "model.windows must be a table of numbers by name, not 1"),
        ("[model.windows]\na = 255", "model.windows.a must be at least 256, not 255"),
        ("[model.windows]\na = 'x'", "model.windows.a must be a whole number, not 'x'"),
        ("[model.window]\na = 512", "there is no setting model.window; did you mean model.windows?"),
        ("[sever]\nport = 1", "there is no section [sever]; did you mean server?"),
        ("[conectors.x]\nkind = 'matrix'", "there is no section [conectors]; did you mean connectors?"),
        ("server = 1", "[server] must be a table of settings, not 1"),
        ("[agent]\ntools = ['shell']", "agent.tools has 'shell'; each must look like terminal or process"),
        ("[processes]\non_reset = 'kill'", "processes.on_reset must be one of stop, keep, not 'kill'"),
        ("[processes]\nmax_block_minutes = -1", "processes.max_block_minutes must be at least 0, not -1"),
    ],
)
def test_an_impossible_setting_is_named_with_its_file_and_what_it_should_be(text: str, said: str) -> None:
    message = fault(text)
    assert message.startswith("holdfast.toml: ")
    assert said in message


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("HOLDFAST_SERVER__PORT", "eighty", "server.port must be a whole number, not 'eighty'"),
        ("HOLDFAST_SERVER__PORTS", "80", "there is no setting server.ports; did you mean server.port?"),
        ("HOLDFAST_AGENT__TOOLS", '["terminal', "agent.tools must be a list of texts, not '[\"terminal'"),
        ("HOLDFAST_MEMORY__FLUSH", "2", "memory.flush must be true or false, not '2'"),
        ("HOLDFAST_MODEL__WINDOWS", "32768", "must be a table of numbers by name, not '32768'"),
        ("HOLDFAST_MODEL__WINDOWS", "a=b", "model.windows.a must be a whole number, not 'b'"),
    ],
)
def test_an_impossible_variable_is_named(variable: str, text: str, said: str) -> None:
    message = fault("", {variable: text})
    assert message.startswith(f"{variable}: ")
    assert said in message


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("HOLDFAST_PORT", "HOLDFAST_SERVER__PORT"),
        ("HOLDFAST_SERVER_PORT", "HOLDFAST_SERVER__PORT"),
        ("HOLDFAST_MODEL_BASE_URL", "HOLDFAST_MODEL__BASE_URL"),
    ],
)
def test_a_variable_with_one_underscore_is_not_ignored(tmp_path: Path, variable: str, meant: str) -> None:
    environment = {"HOLDFAST_HOME": str(tmp_path)}
    with pytest.raises(BadSetting, match=f"{variable} is not a setting; did you mean {meant}"):
        load(environment={**environment, variable: "http://x" if "URL" in variable else "9"})
    of_kubernetes = {
        "HOLDFAST_PORT": "tcp://10.0.0.1:8377",
        "HOLDFAST_SERVER_PORT": "tcp://10.0.0.1:8377",
        "HOLDFAST_SERVICE_HOST": "10.0.0.1",
        "HOLDFAST_PORT_8377_TCP_PORT": "8377",
    }
    assert load(environment={**environment, **of_kubernetes}).server.port == 8377


def test_a_working_directory_that_may_not_be_searched_has_no_settings_file(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `sudo -u holdfast` in the home of root."""

    open_file = os.open

    def denied(path: str | Path, *how: int) -> int:
        if not Path(path).is_absolute():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, *how)

    monkeypatch.setattr(os, "open", denied)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert load(environment={"HOLDFAST_HOME": "/nowhere"}).ignored is None
    with pytest.raises(BadSetting, match=r"other\.toml cannot be read: Permission denied"):
        load(Path("other.toml"), environment={"HOLDFAST_HOME": "/nowhere"})


def test_a_local_settings_file_that_cannot_be_read_is_ignored(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("holdfast.toml").write_text("[server]\nport = 1")
    open_file = os.open

    def denied(path: str | Path, *how: int) -> int:
        if Path(path).name == "holdfast.toml":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, *how)

    monkeypatch.setattr(os, "open", denied)
    settings = load(environment={"HOLDFAST_HOME": "/nowhere"})
    assert (settings.ignored, settings.server.port) == (Path("holdfast.toml"), 8377)


def test_a_local_link_to_what_cannot_be_reached_is_ignored(elsewhere: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "holdfast.toml").write_text("[server]\nport = 9001")
    Path("holdfast.toml").symlink_to("x" * 300)
    settings = load(environment={"HOLDFAST_HOME": str(home)})
    assert (settings.ignored, settings.server.port) == (Path("holdfast.toml"), 9001)


NUMBERS = [
    (section, setting.name)
    for section, kind in SECTIONS.items()
    for setting in fields(kind)
    if isinstance(default_of(setting), int | float) and not isinstance(default_of(setting), bool)
]


@pytest.mark.parametrize("value", [10**300, 10**18, 10**9, 10**6], ids=["1e300", "1e18", "1e9", "1e6"])
@pytest.mark.parametrize(("section", "name"), NUMBERS)
def test_a_number_is_refused_or_can_be_used(section: str, name: str, value: int) -> None:
    given = {section: {name: value}}
    if name == "heartbeat_seconds":
        given[section]["stale_seconds"] = 2 * value
    try:
        settings = load(environment={"HOLDFAST_HOME": "/nowhere"}, given=given)
    except BadSetting as refused:
        assert f"{section}." in str(refused)
        return
    now, kept = datetime(2026, 11, 1, tzinfo=UTC), wiring.retention_of(settings)
    assert now - kept.events < now and now - kept.requests < now and now - (kept.conversations or YEAR) < now
    assert now + wiring.process_limits_of(settings).grace >= now
    assert now + wiring.pace_of(settings).retry > now
    assert now - wiring.recovery_rules_of(settings).recover_for < now
    assert now + wiring.policies_of(settings).default.idle > now
    assert wiring.quotas_of(settings).conversation_bytes < 2**63
    assert settings.memory.min_messages < 2**63 and settings.lease.stale_seconds * 1e6 < 2**63
    assert settings.server.max_body_mb * 2**20 < 2**63
