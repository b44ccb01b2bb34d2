"""holdfast: durable sessions for LLM agents.

    import holdfast

    async with holdfast.open("sqlite:///agent.db") as hf:
        session = await hf.session(key="cli:ada")
        async with session.turn("my name is Ada") as turn:
            await turn.append({"role": "assistant", "content": "Hello Ada"})

Names are imported when they are first used, so that `import holdfast` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import Holdfast as Holdfast
    from .app import open as open
    from .errors import BadInput as BadInput
    from .errors import BadKey as BadKey
    from .errors import BadMessage as BadMessage
    from .errors import BadSetting as BadSetting
    from .errors import Conflict as Conflict
    from .errors import ContextTooLarge as ContextTooLarge
    from .errors import ConversationBusy as ConversationBusy
    from .errors import HoldfastError as HoldfastError
    from .errors import IllegalTransition as IllegalTransition
    from .errors import LeaseLost as LeaseLost
    from .errors import ModelError as ModelError
    from .errors import NestedTurn as NestedTurn
    from .errors import NodeReaped as NodeReaped
    from .errors import NotAllowed as NotAllowed
    from .errors import NotCompacted as NotCompacted
    from .errors import NotFound as NotFound
    from .errors import QuotaExceeded as QuotaExceeded
    from .errors import RequestMismatch as RequestMismatch
    from .errors import SearchFailed as SearchFailed
    from .errors import SearchTimeout as SearchTimeout
    from .errors import StatementFailed as StatementFailed
    from .errors import StoreBusy as StoreBusy
    from .errors import StoreClosed as StoreClosed
    from .errors import StoreError as StoreError
    from .errors import StoreFailed as StoreFailed
    from .errors import StoreFull as StoreFull
    from .errors import StoreUncertain as StoreUncertain
    from .errors import StoreUnreachable as StoreUnreachable
    from .errors import StoreUnusable as StoreUnusable
    from .errors import StoreUpgraded as StoreUpgraded
    from .errors import TooLarge as TooLarge
    from .errors import TurnSuperseded as TurnSuperseded
    from .session import LiveSession as LiveSession
    from .session import LiveTurn as LiveTurn
    from .sync import BlockingHoldfast as BlockingHoldfast
    from .sync import open_sync as open_sync

__version__ = "0.1.0"

_HOMES = {
    "Holdfast": "app",
    "open": "app",
    "BlockingHoldfast": "sync",
    "open_sync": "sync",
    "LiveSession": "session",
    "LiveTurn": "session",
}

__all__ = [
    "BadInput",
    "BadKey",
    "BadMessage",
    "BadSetting",
    "BlockingHoldfast",
    "Conflict",
    "ContextTooLarge",
    "ConversationBusy",
    "Holdfast",
    "HoldfastError",
    "IllegalTransition",
    "LeaseLost",
    "LiveSession",
    "LiveTurn",
    "ModelError",
    "NestedTurn",
    "NodeReaped",
    "NotAllowed",
    "NotCompacted",
    "NotFound",
    "QuotaExceeded",
    "RequestMismatch",
    "SearchFailed",
    "SearchTimeout",
    "StatementFailed",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreUncertain",
    "StoreUnreachable",
    "StoreUnusable",
    "StoreUpgraded",
    "TooLarge",
    "TurnSuperseded",
    "__version__",
    "open",
    "open_sync",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name, "errors")
    if not name.startswith("_"):
        module = import_module(f".{home}", __name__)
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
