"""When nothing is kept of a request whose model's name was refused."""

from __future__ import annotations

import pytest

from holdfast.domain.recovery import Origin, refuses_name


@pytest.mark.parametrize(
    ("status", "name", "spoke", "origin", "refused"),
    [
        (404, "gpt-x", False, Origin.FOREGROUND, True),
        (404, None, False, Origin.FOREGROUND, False),  # the default model: no fault of the client
        (404, "", False, Origin.FOREGROUND, False),
        (404, "gpt-x", True, Origin.FOREGROUND, False),  # a later call of the turn
        (400, "gpt-x", False, Origin.FOREGROUND, False),
        (None, "gpt-x", False, Origin.FOREGROUND, False),  # not reached
        *((404, "gpt-x", False, each, False) for each in Origin if each is not Origin.FOREGROUND),
        (404, "gpt-x", False, None, False),
    ],
)
def test_only_a_name_that_a_waiting_client_gave(
    status: int | None, name: str | None, spoke: bool, origin: Origin | None, refused: bool
) -> None:
    said = "The model `gpt-x` does not exist."
    assert refuses_name(status, name=name, said=said, code=None, spoke=spoke, origin=origin) is refused


@pytest.mark.parametrize(
    ("said", "code", "refused"),
    [
        ('model "gpt-x" not found, try pulling it first', None, True),
        ("model: gpt-x", None, True),
        ("no such thing", "model_not_found", True),
        ("404 page not found", None, False),  # a wrong address
        ("", None, False),
    ],
)
def test_only_if_the_refusal_speaks_of_the_name(said: str, code: str | None, refused: bool) -> None:
    origin = Origin.FOREGROUND
    assert refuses_name(404, name="gpt-x", said=said, code=code, spoke=False, origin=origin) is refused
