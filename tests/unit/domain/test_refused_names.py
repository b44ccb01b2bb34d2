"""When nothing is kept of a request whose model's name was refused."""

from __future__ import annotations

import pytest

from holdfast.domain.recovery import Origin, refuses_name


@pytest.mark.parametrize(
    ("status", "named", "spoke", "origin", "refused"),
    [
        (404, True, False, Origin.FOREGROUND, True),
        (404, False, False, Origin.FOREGROUND, False),  # the default model: no fault of the client
        (404, True, True, Origin.FOREGROUND, False),  # a later call of the turn
        (400, True, False, Origin.FOREGROUND, False),
        (None, True, False, Origin.FOREGROUND, False),  # not reached
        *((404, True, False, each, False) for each in Origin if each is not Origin.FOREGROUND),
        (404, True, False, None, False),
    ],
)
def test_only_a_name_that_a_waiting_client_gave(
    status: int | None, named: bool, spoke: bool, origin: Origin | None, refused: bool
) -> None:
    assert refuses_name(status, named=named, spoke=spoke, origin=origin) is refused
