"""Settings: `holdfast.toml`, then the environment, then the program's arguments or flags; the later wins.

`sections.py` is the table of all settings, `sources.py` reads them, `convert.py` checks them. An unknown or
invalid setting is an error that names its origin, the key and the nearest valid name; nothing is guessed.
"""

from ..os_support import holdfast_home as home
from .convert import default_of
from .sections import (
    ENVIRONMENT_PREFIX,
    SECTIONS,
    AgentSettings,
    ConnectorSettings,
    LimitSettings,
    LogSettings,
    MatrixSettings,
    ModelSettings,
    ServerSettings,
    Settings,
    SlackSettings,
    TelegramSettings,
    WebhookSettings,
    check_notifies,
    database_path,
    is_postgres,
    is_variable,
    store_location,
    without_password,
)
from .sources import LOCAL_FILE, load, trust_file

__all__ = [
    "ENVIRONMENT_PREFIX",
    "LOCAL_FILE",
    "SECTIONS",
    "AgentSettings",
    "ConnectorSettings",
    "LimitSettings",
    "LogSettings",
    "MatrixSettings",
    "ModelSettings",
    "ServerSettings",
    "Settings",
    "SlackSettings",
    "TelegramSettings",
    "WebhookSettings",
    "check_notifies",
    "database_path",
    "default_of",
    "home",
    "is_postgres",
    "is_variable",
    "load",
    "store_location",
    "trust_file",
    "without_password",
]
