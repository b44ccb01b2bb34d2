"""A response that had to be answered more than once shows its last attempt, not an earlier one's words."""

from __future__ import annotations

from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import until
from tests.integration.api.conftest import StartServer
from tests.integration.api.responding import PATH, finished, respond, resumed, spoken

KEY = {"Idempotency-Key": "m-1"}
ATTEMPT = "x-holdfast-turn-attempt"


async def test_an_attempt_that_said_nothing_is_not_shown_with_the_words_of_the_one_before(
    start_server: StartServer,
) -> None:
    cut, silent = ("one two", ModelError("it broke off")), ModelError("it is down")
    server = await start_server(ScriptedModel([cut, silent, "three"]), turns={"retry_model": False})

    first = await respond(server, background=True, headers=KEY)
    assert spoken(await finished(server, first["id"], "failed")) == "one two"

    again = await respond(server, background=True, headers=KEY)
    assert again["id"] == first["id"]
    await until(lambda: server.model.calls == 2, "the model is asked again")
    failed = await finished(server, first["id"], "failed")
    assert spoken(failed) == ""
    *_, last = await resumed(server, first["id"])
    assert (last["type"], spoken(last["response"])) == ("response.failed", "")

    await respond(server, background=True, headers=KEY)
    assert spoken(await finished(server, first["id"])) == "three"


async def test_a_response_that_was_retried_names_its_attempt_to_every_reader(
    start_server: StartServer,
) -> None:
    server = await start_server(
        ScriptedModel([ModelError("it is down"), "one"]), turns={"retry_model": False}
    )
    first = await respond(server, background=True, headers=KEY)
    await finished(server, first["id"], "failed")
    assert ATTEMPT not in (await server.client.get(f"{PATH}/{first['id']}")).headers
    await respond(server, background=True, headers=KEY)
    await finished(server, first["id"])
    for query in ({}, {"stream": "true"}, {"stream": "true", "starting_after": "1"}):
        answer = await server.client.get(f"{PATH}/{first['id']}", params=query)
        assert answer.headers[ATTEMPT] == "2"
    cancelled = await server.client.post(f"{PATH}/{first['id']}/cancel")
    assert (cancelled.json()["status"], cancelled.headers[ATTEMPT]) == ("completed", "2")
