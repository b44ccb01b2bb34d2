"""Which Host a server answers to."""

from __future__ import annotations

import pytest

from holdfast.errors import BadSetting
from holdfast.server.gate import Gate, Headers
from holdfast.server.http_errors import HttpError
from holdfast.settings import ServerSettings, load


def lets_in(settings: ServerSettings, host: str) -> bool:
    try:
        Gate(settings).check(Headers([(b"host", host.encode())]))
    except HttpError as error:
        assert error.failure.status == 421
        return False
    return True


@pytest.mark.parametrize(
    ("bound", "allowed", "host", "answered"),
    [
        ("127.0.0.1", (), "127.0.0.1:8377", True),
        ("127.0.0.1", (), "localhost", True),
        ("127.0.0.1", (), "192.0.2.2:8377", False),
        ("127.0.0.1", (), "evil.example", False),
        ("127.0.0.1", ("*",), "evil.example", True),
        ("0.0.0.0", (), "192.0.2.2:8377", True),
        ("0.0.0.0", (), "gpu-box", True),
        ("0.0.0.0", ("agent.example.com",), "agent.example.com", True),
        ("0.0.0.0", ("agent.example.com",), "10.1.2.3:8377", True),
        ("0.0.0.0", ("agent.example.com",), "[fd00::7]:8377", True),
        ("0.0.0.0", ("agent.example.com",), "evil.example", False),
        ("0.0.0.0", ("agent.example.com",), "10.1.2.3.evil.example", False),
        ("::", ("agent.example.com", "*"), "evil.example", True),
    ],
)
def test_the_host_is_one_of_ours(bound: str, allowed: tuple[str, ...], host: str, answered: bool) -> None:
    assert lets_in(ServerSettings(host=bound, allowed_hosts=allowed), host) is answered


def test_the_wildcard_is_a_setting_and_half_of_one_is_not() -> None:
    environment = {"HOLDFAST_HOME": "/nonexistent", "HOLDFAST_SERVER__ALLOWED_HOSTS": "*"}
    assert load(environment=environment).server.allowed_hosts == ("*",)
    with pytest.raises(BadSetting, match="must look like"):
        load(environment={**environment, "HOLDFAST_SERVER__ALLOWED_HOSTS": "*.example.com"})
