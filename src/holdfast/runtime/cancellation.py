"""Work that a cancellation must not tear apart: it is done to its end, whatever comes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def through(work: Coroutine[Any, Any, T]) -> T:
    """Do this to its end; a cancellation that comes meanwhile has come too late."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    return task.result()


async def finished(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Do this to its end, even if the task is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error from None
        raise
