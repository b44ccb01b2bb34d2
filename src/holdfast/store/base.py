"""The store's interface: the table of methods and the values that they take and return."""

from __future__ import annotations

from .store import Store
from .values import (
    Claimed,
    Figures,
    Finding,
    FlushFigures,
    Found,
    Held,
    Orphans,
    OwnerUsage,
    Page,
    Pruned,
    Pulse,
    Resolved,
    Retention,
    SessionFilter,
    Statistics,
    StorePolicy,
)

__all__ = [
    "Claimed",
    "Figures",
    "Finding",
    "FlushFigures",
    "Found",
    "Held",
    "Orphans",
    "OwnerUsage",
    "Page",
    "Pruned",
    "Pulse",
    "Resolved",
    "Retention",
    "SessionFilter",
    "Statistics",
    "Store",
    "StorePolicy",
]
