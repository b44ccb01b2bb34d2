"""`/api/processes…`: background processes over HTTP, by people, agents and bridges."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.conversations import Address
from holdfast.os_support import described, environment_of, running_processes
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import asked, got, ids, refused

TOOLS = {"agent": {"tools": ["terminal"]}, "processes": {"grace_seconds": 1}}


@pytest.fixture
async def server(start_server: StartServer) -> Running:
    """One whose settings name the tool."""
    return await start_server(**TOOLS)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


async def trusted(server: Running, owner: str = "ada") -> httpx.AsyncClient:
    """A client whose key has the `terminal` right."""
    key, token = new_key(owner, Scope.CHAT, ["terminal"], server.store.now())
    await server.store.add_key(key, token.hash)
    return await server.with_token(str(token))


async def chat(server: Running, owner: str = "ada") -> str:
    """An open session."""
    address = Address(key="telegram:dm:42")
    return (await server.store.open_session(owner, address, server.services.holdfast.node_id)).id


async def started(server: Running, client: httpx.AsyncClient, session: str, **body: Any) -> Any:
    return await asked(server, "POST", f"/api/sessions/{session}/processes", client=client, json=body)


async def process_in(
    server: Running, client: httpx.AsyncClient, process_id: str, state: str
) -> dict[str, Any]:
    """The process, once it is in that state."""
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = await got(server, f"/api/processes/{process_id}", client)
            if found["state"] == state:
                return found
            await asyncio.sleep(0.05)


async def test_a_command_is_started_listed_read_and_over(server: Running, tmp_path: Path) -> None:
    ada = await trusted(server)
    session = await chat(server)
    made = await started(server, ada, session, command="pwd; exit 3", cwd=str(tmp_path))
    assert (made["session_id"], made["command"], made["cwd"]) == (session, "pwd; exit 3", str(tmp_path))
    over = await process_in(server, ada, made["id"], "exited")
    assert (over["exit_code"], over["active"], over["ended_at"] is not None) == (3, False, True)
    log = await got(server, f"/api/processes/{made['id']}/log", ada)
    assert (log["text"], log["dropped"]) == (f"{tmp_path}\n", 0)
    assert (await got(server, f"/api/processes/{made['id']}/log?after={log['next']}", ada))["text"] == ""
    assert ids(await got(server, "/api/processes", ada)) == [made["id"]]
    for name in (session, "telegram:dm:42", made["conversation_id"]):
        assert ids(await got(server, f"/api/processes?session={name}", ada)) == [made["id"]]
    assert ids(await got(server, "/api/processes?running=1", ada)) == []
    await refused(server, "GET", "/api/processes?session=nowhere", 404, "not_found", client=ada)


async def test_a_list_of_words_needs_no_shell(server: Running) -> None:
    ada = await trusted(server)
    made = await started(server, ada, await chat(server), command=["echo", "$HOME; x"])
    await process_in(server, ada, made["id"], "exited")
    assert (await got(server, f"/api/processes/{made['id']}/log", ada))["text"] == "$HOME; x\n"


async def test_lists_come_in_pages(server: Running) -> None:
    ada = await trusted(server)
    session = await chat(server)
    made = [(await started(server, ada, session, command="true"))["id"] for _ in range(3)]
    page = await got(server, "/api/processes?limit=2", ada)
    assert (ids(page), page["has_more"]) == (made[:0:-1], True)
    rest = await got(server, f"/api/processes?after={page['last_id']}", ada)
    assert (ids(rest), rest["has_more"]) == (made[:1], False)
    await refused(server, "GET", "/api/processes?after=proc_no", 404, "not_found", client=ada)


async def test_stopping_answers_when_it_has_ended(server: Running) -> None:
    ada = await trusted(server)
    made = await started(server, ada, await chat(server), command="sleep 1000 & sleep 1000")
    stopped = await asked(server, "POST", f"/api/processes/{made['id']}/stop", client=ada)
    assert (stopped["state"], stopped["stop_reason"]) == ("stopped", "a person stopped it")
    again = await asked(server, "POST", f"/api/processes/{made['id']}/stop", client=ada, json={})
    assert again == stopped


async def test_a_person_pins_for_as_long_as_they_like(server: Running) -> None:
    ada = await trusted(server)
    made = await started(server, ada, await chat(server), command="sleep 1000")
    path = f"/api/processes/{made['id']}/pin"
    assert (await asked(server, "POST", path, client=ada, json={"hours": 100}))["pinned_until"]
    assert (await asked(server, "POST", path, client=ada, json={"hours": 0}))["pinned_until"] is None
    for hours in (-1, "1", None, True, 1e300):
        await refused(server, "POST", path, 400, "invalid_value", client=ada, json={"hours": hours})
    await asked(server, "POST", f"/api/processes/{made['id']}/stop", client=ada)
    await refused(server, "POST", path, 409, "conflict", client=ada, json={"hours": 1})


async def test_starting_needs_the_right_from_the_key_and_from_the_settings(
    server: Running, start_server: StartServer
) -> None:
    without = await server.client_of("ada")
    path = f"/api/sessions/{await chat(server)}/processes"
    body = {"command": "true"}
    error = await refused(server, "POST", path, 403, "insufficient_scope", client=without, json=body)
    assert "keys create --tools terminal" in error["message"]
    careful = await start_server()
    client = await trusted(careful)
    await refused(careful, "POST", path, 403, "insufficient_scope", client=client, json=body)
    assert (await server.store.processes(None)).items == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"command": ""},
        {"command": 1},
        {"command": []},
        {"command": ["a", 1]},
        {"command": "a\0b"},
        {"command": "true", "cwd": 1},
        {"command": "true", "cwd": "/no/such/directory"},
        {"command": "true", "cwd": "a\0b"},
        {"command": "true", "stdin": "yes"},
        {"command": "true", "pid": 1},
        {"command": "true", "shell": True},
        {"pid": "1"},
        {"pid": True},
        {"pid": -1},
        {"pid": 2**70},
    ],
)
async def test_what_cannot_be_started_or_watched_is_refused(server: Running, body: dict[str, Any]) -> None:
    ada = await trusted(server)
    path = f"/api/sessions/{await chat(server)}/processes"
    await refused(server, "POST", path, 400, "invalid_value", client=ada, json=body)
    assert (await server.store.processes(None)).items == []


async def test_an_ended_session_starts_nothing(server: Running) -> None:
    ada = await trusted(server)
    session = await chat(server)
    await asked(server, "POST", f"/api/sessions/{session}/end", client=ada)
    path = f"/api/sessions/{session}/processes"
    await refused(server, "POST", path, 409, "conflict", client=ada, json={"command": "true"})


async def test_a_bridge_has_its_own_process_watched_and_stopped(
    server: Running, bystander: subprocess.Popen[bytes]
) -> None:
    ada = await trusted(server)
    made = await started(server, ada, await chat(server), pid=bystander.pid)
    assert (made["pid"], made["command"], made["state"]) == (bystander.pid, "sleep 1000", "running")
    await refused(server, "GET", f"/api/processes/{made['id']}/log", 409, "conflict", client=ada)
    stopped = asyncio.create_task(asked(server, "POST", f"/api/processes/{made['id']}/stop", client=ada))
    await asyncio.to_thread(bystander.wait)
    assert ((await stopped)["state"], (await stopped)["exit_code"]) == ("stopped", None)


async def test_without_the_right_no_process_is_watched(
    server: Running, bystander: subprocess.Popen[bytes]
) -> None:
    without = await server.client_of("ada")
    path = f"/api/sessions/{await chat(server)}/processes"
    for pid in (bystander.pid, 2**22 + 1):
        response = await without.post(path, json={"pid": pid})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "insufficient_scope")
        assert "sleep" not in response.text, "nothing is said of what runs there"
    assert (await server.store.processes(None)).items == []


async def test_an_admin_without_the_right_may_watch_and_never_signals(
    server: Running, bystander: subprocess.Popen[bytes]
) -> None:
    session = await chat(server, "default")
    made = await started(server, server.client, session, pid=bystander.pid)
    assert (made["command"], made["pid"]) == ("sleep 1000", bystander.pid)
    await refused(server, "POST", f"/api/processes/{made['id']}/stop", 409, "conflict", client=server.client)
    await asked(server, "DELETE", f"/api/sessions/{made['session_id']}", client=server.client)
    await server.services.holdfast.supervisor.supervise_once()
    assert bystander.poll() is None


async def test_without_the_right_nobody_sees_the_command_line_of_a_watched_process_or_stops_it(
    server: Running, bystander: subprocess.Popen[bytes]
) -> None:
    ada, without = await trusted(server), await server.client_of("ada")
    made = await started(server, ada, await chat(server), pid=bystander.pid)
    session, process = made["session_id"], made["id"]
    pages = ["/api/processes", f"/api/processes/{process}", "/api/activity", f"/api/sessions/{session}/why"]
    for page in [*pages, "/processes", f"/processes/{process}", f"/sessions/{session}"]:
        answer = await without.get(page)
        assert answer.status_code == 200, answer.text
        assert "sleep 1000" not in answer.text, page
        assert made["cwd"] not in answer.text, page
    shown = await got(server, f"/api/processes/{process}", without)
    assert (shown["command"], shown["cwd"]) == ("sleep", "")
    await refused(server, "POST", f"/api/processes/{process}/stop", 403, "insufficient_scope", client=without)
    assert bystander.poll() is None
    assert "sleep 1000" in (await ada.get(f"/api/processes/{process}")).text


async def test_what_another_owners_session_started_is_not_watched(server: Running) -> None:
    ada, eve = await trusted(server), await trusted(server, "eve")
    # One child stays, one leaves the command's session, one has also lost its parent.
    script = "sleep 1001 & setsid sleep 1002 & (setsid sleep 1003 &) ; wait"
    made = await started(server, ada, await chat(server), command=script)
    theirs = await chat(server, "eve")
    path = f"/api/sessions/{theirs}/processes"
    row = await server.store.process("ada", made["id"])
    table: dict[int, object] = {}
    async with asyncio.timeout(60):
        while len(table) < 3:
            table = {
                one.pid: one
                for one in running_processes().values()
                if f"HOLDFAST_PROCESS={made['id']}".encode() in environment_of(one.pid).split(b"\0")
                and described(one.pid)[0].startswith("sleep")
            }
            await asyncio.sleep(0.02)
    for pid in (made["pid"], row.shim_pid, *table):
        answer = await eve.post(path, json={"pid": pid})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value"), answer.text
        assert "sleep" not in answer.text
    assert (await server.store.processes("eve")).items == []
    await asked(server, "POST", f"/api/processes/{made['id']}/stop", client=ada)


async def test_a_log_line_never_holds_a_command_line(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    ada = await trusted(server)
    with caplog.at_level("INFO"):
        command = "TOKEN=hunter2 sleep 99999.25 # \x1b[2J"
        made = await started(server, ada, await chat(server), command=command)
        await asked(server, "POST", f"/api/processes/{made['id']}/stop", client=ada)
        await process_in(server, ada, made["id"], "stopped")
    said = [record.getMessage() for record in caplog.records if made["id"] in record.getMessage()]
    assert any(f"process {made['id']} (sleep) started" in line for line in said)
    assert not any(secret in line for line in said for secret in ("hunter2", "99999.25", "\x1b"))


async def test_activity_shows_what_a_conversation_has_running(server: Running) -> None:
    ada = await trusted(server)
    session = await chat(server)
    made = await started(server, ada, session, command="sleep 1000")
    await started(server, ada, session, command="true")
    async with asyncio.timeout(60):
        while len((await got(server, "/api/activity", ada))["data"][0]["processes"]) > 1:
            await server.services.holdfast.supervisor.supervise_once()
    (living,) = (await got(server, "/api/activity", ada))["data"]
    assert living["processes"] == [
        {"id": made["id"], "pid": made["pid"], "command": "sleep 1000", "state": "running", "active": True}
    ]
    await asked(server, "POST", f"/api/processes/{made['id']}/stop", client=ada)
    assert (await got(server, "/api/activity", ada))["data"][0]["processes"] == []


async def test_deleting_a_conversation_stops_what_it_started(server: Running) -> None:
    ada = await trusted(server)
    made = await started(server, ada, await chat(server), command="sleep 1000")
    await asked(server, "DELETE", f"/api/sessions/{made['session_id']}", client=ada)
    async with asyncio.timeout(60):
        while not await server.store.unknown_processes([made["id"]]):
            await server.services.holdfast.supervisor.supervise_once()
    await refused(server, "GET", f"/api/processes/{made['id']}", 404, "not_found", client=ada)


async def test_a_servers_own_keys_are_not_in_a_commands_environment(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOLDFAST_API_KEY", "OPENAI_API_KEY", "SOMETHING_ELSE"):
        monkeypatch.setenv(name, f"canary-{name}")
    server = await start_server(**TOOLS)
    ada = await trusted(server)
    made = await started(server, ada, await chat(server), command="env")
    await process_in(server, ada, made["id"], "exited")
    text = (await got(server, f"/api/processes/{made['id']}/log", ada))["text"]
    assert "canary-SOMETHING_ELSE" in text
    assert "canary-HOLDFAST_API_KEY" not in text
    assert "canary-OPENAI_API_KEY" not in text


async def test_an_admin_who_reads_anothers_log_leaves_an_event(server: Running) -> None:
    ada = await trusted(server)
    made = await started(server, ada, await chat(server), command="echo secret")
    await process_in(server, ada, made["id"], "exited")
    assert [each["owner"] for each in (await got(server, "/api/processes?owner=*"))["data"]] == ["ada"]
    assert (await got(server, f"/api/processes/{made['id']}/log?owner=ada"))["text"] == "secret\n"
    told = [each.type for each in await server.store.events(owner="ada")]
    assert told.count("messages.read_by_admin") == 1


async def test_another_server_on_the_store_takes_over_when_the_first_is_gone(
    start_server: StartServer,
) -> None:
    first, second = await start_server(**TOOLS), await start_server(**TOOLS)
    ada = await trusted(first)
    made = await started(first, ada, await chat(first), command="sleep 1000")
    await first.services.holdfast.stop()
    other = await second.with_token(ada.headers["authorization"].removeprefix("Bearer "))
    stopped = await asked(second, "POST", f"/api/processes/{made['id']}/stop", client=other)
    assert stopped["state"] == "stopped"
