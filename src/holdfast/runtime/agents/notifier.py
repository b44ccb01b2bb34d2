"""Sends every notice to the webhook of the settings, at least once.

A notice is POSTed as its JSON object, with its id as `Idempotency-Key`, so a duplicate can be recognised. It
is claimed first, by a row, so that normally one node sends it; when a node dies with its claim, another takes
over a minute later. What was not accepted (anything but a 2xx, also a redirect) is retried with back-off for
a week; then it is given up, and that is logged. Notices made before the webhook was configured are not sent,
so that it is not flooded.

It runs in the background. A slow, broken or missing endpoint delays only its own notices, and is called less
often while it fails. Sending is not delivering: the program that talks to the person still marks delivery.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import msgspec

from ...domain.notices import Notice
from ...store.store import Store
from .. import periodic
from ..webhook import Webhook

log = logging.getLogger(__name__)

BATCH = 20
TOGETHER = 4
TIMEOUT_SECONDS = 10.0
CLAIMED_FOR = timedelta(seconds=60)
KEPT_FOR = timedelta(days=7)
FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(hours=1)
LONGEST_SILENCE = timedelta(minutes=5)


@dataclass(slots=True)
class Notified:
    """What one pass has done, by notice id."""

    sent: list[str] = field(default_factory=list)
    unsent: dict[str, str] = field(default_factory=dict)
    """Why each was not accepted."""


class Notifier:
    def __init__(
        self,
        store: Store,
        webhook: str,
        pause_seconds: float = 1.0,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        first_pause: timedelta = FIRST_PAUSE,
    ) -> None:
        self._store = store
        self._webhook = Webhook(webhook, timeout_seconds)
        self._where = urlsplit(webhook).hostname or "the webhook"
        """The webhook for the log, without its path and login, which may be secret."""
        self._pause_seconds = pause_seconds
        self._first_pause = first_pause
        self._loop = periodic.every(pause_seconds, self.notify_once, "send notices", pause=self._pause)
        self._refused = 0
        """How many passes in a row the webhook has accepted nothing."""
        self._unwell = ""
        """Why the webhook does not accept notices, if so; logged once, and again when it is over."""

    async def notify_once(self) -> Notified:
        """One bounded pass over the unsent notices, oldest first."""
        done = Notified()
        if not await self._store.notices_to_send():
            return done
        found = await self._store.claim_notices(BATCH, CLAIMED_FOR, KEPT_FOR)
        if found.given_up:
            log.error("%d notices were not accepted for a week and are given up", found.given_up)
        claimed = found.notices
        for start in range(0, len(claimed), TOGETHER):
            together = claimed[start : start + TOGETHER]
            if done.unsent and not done.sent:  # it seems to be down: send no more in this pass
                await self._give_back([notice for notice, _ in claimed[start:]])
                break
            await asyncio.gather(*(self._send(notice, attempt, done) for notice, attempt in together))
        self._tell(done)
        return done

    async def _give_back(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            await self._store.notice_unsent(notice.id, self._first_pause, tried=False)

    async def _send(self, notice: Notice, attempt: int, done: Notified) -> None:
        """Send one notice; its failure does not affect the others."""
        try:
            await self._send_one(notice, attempt, done)
        except periodic.STORE_WIDE:
            raise
        except Exception as error:
            log.exception("notice %s could not be sent; it is sent again when its claim expires", notice.id)
            done.unsent[notice.id] = f"{type(error).__name__}: {error}"

    async def _send_one(self, notice: Notice, attempt: int, done: Notified) -> None:
        problem = await self._webhook.post(notice_body(notice), notice.id)
        if problem is None:
            await self._store.notice_sent(notice.id)
            done.sent.append(notice.id)
        else:
            pause: timedelta = min(self._first_pause * 2 ** min(attempt - 1, 20), LONGEST_PAUSE)
            await self._store.notice_unsent(notice.id, pause)
            done.unsent[notice.id] = f"it {problem}"

    def _tell(self, done: Notified) -> None:
        problem = next(iter(done.unsent.values()), "")
        if problem and not self._unwell:
            log.warning("%s does not accept notices (%s); they will be sent again", self._where, problem)
        elif self._unwell and done.sent and not problem:
            log.info("%s accepts notices again", self._where)
        self._unwell = problem or ("" if done.sent else self._unwell)

    # --- lifecycle ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()
        await self._webhook.close()

    @property
    def running(self) -> bool:
        return self._loop.running

    def _pause(self, done: object) -> float | None:
        """Back-off while the webhook accepts nothing."""
        assert isinstance(done, Notified)
        if done.sent or done.unsent:
            self._refused = 0 if done.sent else self._refused + 1
        if not self._refused:
            return None
        pause = min(self._first_pause * 2 ** min(self._refused - 1, 20), LONGEST_SILENCE)
        seconds: float = max(self._pause_seconds, pause.total_seconds())
        return seconds


def notice_body(notice: Notice) -> bytes:
    """The API's Notice object plus its owner: one webhook gets the notices of all owners."""

    def time(value: datetime | None) -> str | None:
        if value is None:
            return None
        return value.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"

    return msgspec.json.encode(
        {
            "id": notice.id,
            "conversation_id": notice.conversation_id,
            "key": notice.key,
            "kind": notice.kind,
            "text": notice.text,
            "created_at": time(notice.created_at),
            "delivered_at": time(notice.delivered_at),
            "owner": notice.owner,
        }
    )
