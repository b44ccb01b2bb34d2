"""[reset] and [notify]: by source, only what differs, each value with its origin; mistakes are named."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.resets import ResetMode
from holdfast.errors import BadSetting
from holdfast.settings import Settings, load
from holdfast.wiring import policies_of

FILE = """
[reset]
mode = "both"
idle_minutes = 120
at_hour = 6
timezone = "Europe/Berlin"
[reset.sources.telegram]
mode = "idle"
[reset.sources.cron]
mode = "none"
[reset.sources."my app"]
at_hour = 0
quiet_minutes = 0.5
timezone = "Asia/Tokyo"
"""


def read(tmp_path: Path, text: str, given: dict[str, Any] | None = None, **variables: str) -> Settings:
    path = tmp_path / "holdfast.toml"
    path.write_text(text)
    return load(path, {"HOLDFAST_HOME": str(tmp_path), **variables}, given=given)


def test_a_source_states_only_what_differs(tmp_path: Path) -> None:
    policies = policies_of(read(tmp_path, FILE))
    telegram, cron, app, other = (policies.of(name) for name in ("telegram", "cron", "my app", "api"))
    assert (telegram.mode, telegram.idle, telegram.at_hour) == (ResetMode.IDLE, timedelta(hours=2), 6)
    assert cron.never
    assert (app.mode, app.at_hour, app.quiet) == (ResetMode.BOTH, 0, timedelta(seconds=30))
    assert (app.timezone, other.timezone, other.mode) == ("Asia/Tokyo", "Europe/Berlin", ResetMode.BOTH)


def test_each_value_has_its_origin(tmp_path: Path) -> None:
    file = str(tmp_path / "holdfast.toml")
    settings = read(
        tmp_path,
        FILE,
        {"reset": {"quiet_minutes": 1}},
        HOLDFAST_RESET__SOURCES__TELEGRAM__IDLE_MINUTES="5",
        HOLDFAST_RESET__AT_HOUR="3",
    )
    policy = policies_of(settings).of("telegram")
    assert policy.origins == {
        "mode": f"[reset.sources.telegram] in {file}",
        "idle_minutes": "HOLDFAST_RESET__SOURCES__TELEGRAM__IDLE_MINUTES",
        "at_hour": "HOLDFAST_RESET__AT_HOUR",
        "quiet_minutes": "[reset] in settings=",
        "timezone": f"[reset] in {file}",
    }
    assert (policy.idle, policy.at_hour, policy.quiet) == (timedelta(minutes=5), 3, timedelta(minutes=1))
    assert set(policies_of(read(tmp_path, "")).default.origins.values()) == {"the default"}


def test_without_settings_nothing_is_ever_reset(tmp_path: Path) -> None:
    assert policies_of(read(tmp_path, "")).never
    assert not policies_of(read(tmp_path, "[reset.sources.telegram]\nmode = 'idle'")).never


def test_other_policies_have_another_stamp_and_the_same_the_same(tmp_path: Path) -> None:
    same = [policies_of(read(tmp_path, FILE)).stamp for _ in range(2)]
    assert same[0] == same[1]
    changes = ("at_hour = 7", "idle_minutes = 121", "quiet_minutes = 1", "timezone = 'UTC'", "mode = 'daily'")
    others = {policies_of(read(tmp_path, f"{FILE}\n[reset.sources.x]\n{change}")).stamp for change in changes}
    assert len(others) == len(changes) and same[0] not in others


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[reset]\nat_hour = 25", "reset.at_hour must be at least 0 and below 24, not 25"),
        ("[reset]\nat_hour = -1", "reset.at_hour must be at least 0 and below 24, not -1"),
        ("[reset]\nat_hour = 'four'", "reset.at_hour must be a number, not 'four'"),
        ("[reset]\nidle_minutes = -5", "reset.idle_minutes must be above 0, not -5"),
        ("[reset]\nidle_minutes = 0", "reset.idle_minutes must be above 0, not 0"),
        ("[reset]\nidle_minutes = nan", "reset.idle_minutes must be above 0, not nan"),
        (
            "[reset]\nidle_minutes = 1e300",
            "reset.idle_minutes must be above 0 and at most 52560000, not 1e+300",
        ),
        ("[reset]\nquiet_minutes = -1", "reset.quiet_minutes must be at least 0, not -1"),
        (
            "[reset]\ntimezone = 'Europe/Berln'",
            "reset.timezone must be an IANA time zone, not 'Europe/Berln'; did you mean Europe/Berlin?",
        ),
        ("[reset]\ntimezone = 'Europe'", "reset.timezone must be an IANA time zone, not 'Europe'"),
        ("[reset]\ntimezone = '../../etc/passwd'", "reset.timezone must be an IANA time zone"),
        ("[reset]\ntimezone = 2", "reset.timezone must be text, not 2"),
        ("[reset]\nmode = 'hourly'", "reset.mode must be one of none, idle, daily, both, not 'hourly'"),
        (
            "[reset]\nidle_minute = 5",
            "there is no setting reset.idle_minute; did you mean reset.idle_minutes?",
        ),
        (
            "[reset.sources.telegram]\nat_hour = 24",
            "reset.sources.telegram.at_hour must be at least 0 and below 24, not 24",
        ),
        (
            "[reset.sources.telegram]\nat_hours = 4",
            "there is no setting reset.sources.telegram.at_hours; "
            "did you mean reset.sources.telegram.at_hour?",
        ),
        (
            "[reset.sources.telegram.sources.x]\nat_hour = 4",
            "there is no setting reset.sources.telegram.sources",
        ),
        ("[reset.sources]\ntelegram = 'idle'", "reset.sources must be a table for each source"),
        (
            "[reset.source.telegram]\nmode = 'idle'",
            "there is no setting reset.source; did you mean reset.sources?",
        ),
        ("[notify]\nwebhook = 'example.com'", "notify.webhook must look like https://example.com/hook"),
        ("[notify]\nwebhook = 'ftp://example.com'", "notify.webhook must look like https://example.com/hook"),
        ("[notify]\nwebhok = ''", "there is no setting notify.webhok; did you mean notify.webhook?"),
    ],
)
def test_a_mistake_is_named_with_its_file_its_key_and_what_is_right(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(BadSetting) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'holdfast.toml'}: ")
    assert said in str(caught.value)


def test_a_mistake_in_the_environment_is_named_by_its_variable(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"HOLDFAST_RESET__TIMEZONE: reset\.timezone must be an IANA"):
        read(tmp_path, "", HOLDFAST_RESET__TIMEZONE="Mars/Olympus")
