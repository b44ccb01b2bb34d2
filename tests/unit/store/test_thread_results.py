"""Results of jobs that threads wait for: woken one after the other, and none depends on the one before."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.errors import StoreBusy
from holdfast.store import writer
from holdfast.store.writer import ThreadResult, WriteJob, answer_threads


def jobs(number: int) -> list[WriteJob[Any]]:
    return [WriteJob(None, None, ThreadResult()) for _ in range(number)]


def waiting(given: list[WriteJob[Any]]) -> tuple[list[threading.Thread], dict[int, object]]:
    """A thread for each of these, and what each gets."""
    got: dict[int, object] = {}

    def wait(place: int, result: ThreadResult[Any]) -> None:
        try:
            got[place] = result.result()
        except StoreBusy as error:
            got[place] = error

    threads = [
        threading.Thread(target=wait, args=(place, job.future), daemon=True)
        for place, job in enumerate(given)
    ]
    for thread in threads:
        thread.start()
    return threads, got


def test_each_thread_gets_the_result_or_the_error_of_its_own_job() -> None:
    given = jobs(9)
    threads, got = waiting(given)
    for place, job in enumerate(given):
        job.result = place
    given[4].error = StoreBusy("locked")
    answer_threads(given)
    for thread in threads:
        thread.join(10)
    assert got == {**{place: place for place in range(9)}, 4: given[4].error}


def test_a_caller_that_left_does_not_keep_the_others_from_their_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "LOOK_AGAIN_SECONDS", 0.01)
    given = jobs(8)
    threads, got = waiting(given[writer.WOKEN_TOGETHER :])  # those that would wake the others do not wait
    answer_threads(given)
    for thread in threads:
        thread.join(10)
    assert len(got) == 8 - writer.WOKEN_TOGETHER


def test_a_job_that_is_answered_again_keeps_its_result() -> None:
    given = jobs(3)
    threads, got = waiting(given)
    for job in given:
        job.result = "stored"
    answer_threads(given)
    for job in given:
        job.result, job.error = None, StoreBusy("the writer has ended")
    answer_threads(given)
    for thread in threads:
        thread.join(10)
    assert [*got.values()] == ["stored"] * 3
