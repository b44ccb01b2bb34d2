"""The Slack connector against a stand-in that follows the documented Web API and socket mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from holdfast.app import Holdfast, answer_with
from holdfast.connectors.base import SendFailed, SendRefused, WrongSignature
from holdfast.connectors.slack import SlackConnector, mrkdwn, plain_text, without_mention
from holdfast.connectors.worker import Connectors, ConnectorWorker
from holdfast.domain.connectors import ConnectorClaim, ConnectorHealth, Incoming
from holdfast.domain.nodes import NodeKind
from holdfast.errors import BadSetting, StoreError
from holdfast.models.base import Model
from holdfast.models.scripted import ScriptedModel, echo
from holdfast.settings import SlackSettings, load
from tests.integration.connectors.platform import until
from tests.integration.connectors.slack_api import (
    APP_TOKEN,
    BOT,
    TOKEN,
    SlackStandIn,
    error,
    slack_stand_in,
    too_many,
)

CHANNEL = "C7"


@pytest.fixture
async def slack() -> AsyncIterator[SlackStandIn]:
    async with slack_stand_in() as stand_in:
        yield stand_in


@asynccontextmanager
async def serving(
    directory: Path,
    slack: SlackStandIn,
    model: Model | None = None,
    allow: tuple[str, ...] = ("U42", CHANNEL),
    **given: Any,
) -> AsyncIterator[ConnectorWorker]:
    loaded = load(
        environment={"HOLDFAST_HOME": str(directory)},
        given={"store": {"url": f"sqlite:///{directory / 'store.db'}"}, "server": {"drain_seconds": 0}},
    )
    urls = {"api_url": f"{slack.url}/api", "files_url": slack.url}
    settings = SlackSettings(kind="slack", allow=allow, **{**urls, **given})
    node = Holdfast(replace(loaded, connectors={}), kind=NodeKind.SERVER, catch_signals=False)
    await node.start()
    try:
        answer_with(node, model or ScriptedModel())
        connector = SlackConnector("work", settings, TOKEN, APP_TOKEN)
        worker = ConnectorWorker("work", settings, connector, node)
        node.connectors = Connectors({"work": worker})
        worker.start()
        yield worker
    finally:
        await node.stop()


async def settled(worker: ConnectorWorker) -> bool:
    store = worker._hf.store
    pending = (await store.deliveries(None, state="pending")).items
    return not pending and not await store.waiting_places("work")


async def health(worker: ConnectorWorker) -> ConnectorHealth | None:
    return next((each.health for each in await worker._hf.store.connector_states()), None)


async def test_a_direct_message_is_answered_and_acknowledged(tmp_path: Path, slack: SlackStandIn) -> None:
    async with serving(tmp_path, slack) as worker:
        await slack.write("hello &amp; <https://tides.example|tides>")
        await until(slack.said)
        assert slack.said() == ["You said: hello &amp; tides (https://tides.example)"]
        await until(lambda: not slack.unacknowledged)
        found = await worker._hf.resolve_name("work/U42", "slack:D42")
        assert found.tip.source == "slack"


async def test_what_could_not_be_stored_is_not_acknowledged_and_comes_again(
    tmp_path: Path, slack: SlackStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, slack) as worker:
        receive, failed = worker.receive, asyncio.Event()

        async def fails_once(
            events: Sequence[Incoming], cursor: str | None = None, claim: ConnectorClaim | None = None
        ) -> int:
            if not failed.is_set():
                failed.set()
                raise StoreError("the disk is full")
            return await receive(events, cursor, claim)

        monkeypatch.setattr(worker, "receive", fails_once)
        await slack.write("hello")
        await until(slack.said)
        await until(lambda: slack.acknowledged)
        assert (slack.connections, len(slack.acknowledged)) == (2, 1)
    assert slack.said() == ["You said: hello"]


async def test_a_repeated_event_after_a_restart_is_answered_once(tmp_path: Path, slack: SlackStandIn) -> None:
    event = {"type": "message", "user": "U42", "text": "hello", "ts": "1700000000.5", "channel": "D42"}
    for _ in range(2):
        async with serving(tmp_path, slack) as worker:
            for _ in range(2):
                await slack.push(event)
            await until(lambda: not slack.unacknowledged)
            await until(slack.said)
            await until(lambda worker=worker: settled(worker))  # type: ignore[misc]
    assert slack.said() == ["You said: hello"]


async def test_in_a_channel_the_app_answers_only_if_it_is_mentioned_and_in_its_thread(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    async with serving(tmp_path, slack) as worker:
        await slack.write("not for you", channel=CHANNEL)
        await slack.write(f"<@{BOT}2> nor this", channel=CHANNEL)
        root = await slack.write(f"<@{BOT}> high tide?", channel=CHANNEL)
        await until(lambda: slack.said(CHANNEL))
        await slack.write(f"and here, <@{BOT}>", channel=CHANNEL, thread_ts=root)
        await until(lambda: slack.said(CHANNEL, root))
        await until(lambda: settled(worker))
        keys = {place.key for place in await worker._hf.places_of(f"work/{CHANNEL}")}
    assert slack.said(CHANNEL) == ["You said: high tide?"]
    assert slack.said(CHANNEL, root) == ["You said: and here,"]
    assert keys == {f"slack:{CHANNEL}", f"slack:{CHANNEL}:thread:{root}"}


async def test_a_mention_that_comes_as_two_events_is_answered_once(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    async with serving(tmp_path, slack) as worker:
        facts = {"user": "U42", "text": f"<@{BOT}> tide?", "ts": "1700000000.7", "channel": CHANNEL}
        for kind in ("app_mention", "message"):
            await slack.push({"type": kind, **facts})
        await until(lambda: not slack.unacknowledged)
        await until(lambda: slack.said(CHANNEL))
        await until(lambda: settled(worker))
    assert slack.said(CHANNEL) == ["You said: tide?"]


async def test_commands_may_begin_with_an_exclamation_mark(tmp_path: Path, slack: SlackStandIn) -> None:
    async with serving(tmp_path, slack):
        await slack.write("!help")
        await until(slack.said)
    assert "/new" in slack.said()[0]


async def test_a_stranger_gets_a_pairing_code(tmp_path: Path, slack: SlackStandIn) -> None:
    async with serving(tmp_path, slack, allow=()) as worker:
        await slack.write("let me in")
        await until(slack.said)
        await until(lambda: not slack.unacknowledged)
        assert not await worker._hf.store.waiting_places("work")
    assert "holdfast pair approve" in slack.said()[0]


async def test_a_reply_grows_by_edits_and_its_first_message_is_completed(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The tide "
        await release.wait()
        yield "is **high**."

    async with serving(tmp_path, slack, ScriptedModel([slowly()])) as worker:
        await slack.write("tide?")
        await until(slack.said)
        assert slack.said()[0].strip() == "The tide"
        release.set()
        await until(lambda: slack.said() == ["The tide is *high*."])
        await until(lambda: settled(worker))
    assert len(slack.sent) == 1 and slack.edits >= 1


async def test_a_message_that_was_deleted_while_it_grew_is_sent_anew(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        yield "The tide "
        await release.wait()
        yield "is high."

    async with serving(tmp_path, slack, ScriptedModel([slowly()])) as worker:
        await slack.write("tide?")
        await until(slack.said)
        slack.sent.clear()
        release.set()
        await until(lambda: slack.said() == ["The tide is high."])
        await until(lambda: settled(worker))


async def test_a_waiting_message_is_answered_as_it_was_edited_and_not_if_it_was_deleted(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    release = asyncio.Event()

    async def slowly() -> AsyncIterator[str]:
        await release.wait()
        yield "first"

    async with serving(tmp_path, slack, ScriptedModel([slowly(), echo])) as worker:
        await slack.write("one")
        await until(lambda: bool(worker._turns))
        second, third = await slack.write("two"), await slack.write("three")
        changed = {"type": "message", "user": "U42", "text": "too", "ts": second}
        await slack.push(
            {
                "type": "message",
                "subtype": "message_changed",
                "channel": "D42",
                "message": changed,
                "previous_message": {**changed, "text": "two"},
            }
        )
        await slack.push(
            {"type": "message", "subtype": "message_deleted", "channel": "D42", "deleted_ts": third}
        )
        await until(lambda: not slack.unacknowledged)
        release.set()
        await until(lambda: len(slack.said()) == 2)
        await until(lambda: settled(worker))
    assert slack.said() == ["first", "You said: too"]


async def test_too_many_requests_are_retried_when_slack_says(tmp_path: Path, slack: SlackStandIn) -> None:
    slack.faults["chat.postMessage"] = [too_many(2), error("internal_error")]
    async with serving(tmp_path, slack) as worker:
        await slack.write("hello")

        async def told() -> bool:
            return any(
                "ratelimited" in (each.error or "") for each in (await worker._hf.deliveries(None)).items
            )

        await until(told)
        (waiting,) = (await worker._hf.deliveries(None)).items
        assert (waiting.due_at - waiting.created_at).total_seconds() >= 2
        await until(slack.said)
        await until(lambda: settled(worker))
    assert slack.said() == ["You said: hello"]


async def test_a_lost_answer_repeats_that_one_message(tmp_path: Path, slack: SlackStandIn) -> None:
    slack.faults["chat.postMessage"] = ["lost"]
    async with serving(tmp_path, slack) as worker:
        await slack.write("hello")
        await until(lambda: len(slack.said()) == 2)
        await until(lambda: settled(worker))
    assert slack.said() == ["You said: hello"] * 2


async def test_an_app_that_was_removed_from_the_channel_is_a_dead_letter(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    slack.faults["chat.postMessage"] = [error("not_in_channel")]
    async with serving(tmp_path, slack) as worker:
        await slack.write(f"<@{BOT}> hello", channel=CHANNEL)

        async def dead() -> bool:
            return bool((await worker._hf.deliveries(None, state="dead")).items)

        await until(dead)
    assert slack.sent == []


async def test_a_reply_of_20_000_characters_is_split_by_slacks_limits(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    code = "```html\n" + "\n".join(f"<p>&{number}</p>" for number in range(200)) + "\n```"
    text = "\n\n".join(["a sentence of the tide. " * 20] * 40 + [code, "&" * 6_000])
    assert len(text) > 20_000
    async with serving(tmp_path, slack, ScriptedModel([text])) as worker:
        await slack.write("everything")
        await until(slack.said)
        await until(lambda: settled(worker))
        assert not (await worker._hf.deliveries(None, state="dead")).items
    assert len(slack.said()) >= 4
    joined = "".join(slack.said())
    assert joined.count("a sentence of the tide.") == 800
    assert joined.count("&lt;p&gt;") == 200 and joined.count("&amp;") == 6_200


async def test_it_connects_again_when_slack_asks_and_when_the_socket_breaks(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    async with serving(tmp_path, slack):
        await until(lambda: slack.sockets)
        await slack.disconnect()
        await until(lambda: slack.connections == 2 and len(slack.sockets) == 1)
        await slack.write("one")
        await until(lambda: len(slack.said()) == 1)
        await slack.sockets[0].close()
        await slack.write("two")
        await until(lambda: len(slack.said()) == 2)
        assert slack.connections == 3
    assert slack.said() == ["You said: one", "You said: two"]


async def test_an_outage_is_noted_and_ends_by_itself(tmp_path: Path, slack: SlackStandIn) -> None:
    slack.faults["auth.test"] = [error("invalid_auth")]
    slack.faults["apps.connections.open"] = [too_many(1)]
    async with serving(tmp_path, slack) as worker:

        async def down() -> bool:
            return await health(worker) is ConnectorHealth.DOWN

        await until(down)
        await slack.write("hello")
        await until(slack.said)
        assert await health(worker) is ConnectorHealth.UP


async def test_files_are_named(tmp_path: Path, slack: SlackStandIn) -> None:
    async with serving(tmp_path, slack):
        files = [{"name": "tide.png", "mimetype": "image/png"}]
        await slack.write("look", subtype="file_share", files=files)
        await until(slack.said)
    assert slack.said() == ["You said: look\n[file, tide.png, image/png]"]


async def test_files_are_stored_once_as_attachments_of_their_message(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    slack.files = {"F1": b"\x89PNG" * 100, "F2": b"%PDF" * 10, "F3": b"x" * 2_000_000}
    slack.faults["download"] = [web.Response(status=502)]
    files = [
        slack.file("F1", "tide.png", "image/png"),
        slack.file("F2", "", "application/pdf", url_private_download=f"{slack.url}/files-pri/F2"),
        slack.file("F3", "large.bin", "application/octet-stream", size=0),
        slack.file("F4", "gone.txt", "text/plain"),
        slack.file("F5", "doc", "", url_private="https://docs.example.com/d/1", mode="external"),
    ]
    event = {"type": "message", "subtype": "file_share", "user": "U42", "ts": "1700000000.9"}
    async with serving(tmp_path, slack, attachment_mb=1) as worker:
        for _ in range(2):
            await slack.push({**event, "channel": "D42", "text": "look", "files": files})
        await until(slack.said, 120)
        await until(lambda: settled(worker))
        hf = worker._hf
        conversation = (await hf.resolve_name("work/U42", "slack:D42")).conversation
        found = (await hf.attachments("work/U42", conversation.id)).items
        kept = [(each.name, each.mime, (await hf.attachment("work/U42", each.id))[1]) for each in found]
        (held,) = {each.bytes for each in await hf.store.usage("work/U42")}
        assert held > 440
    assert kept == [
        ("tide.png", "image/png", slack.files["F1"]),
        ("file", "application/pdf", slack.files["F2"]),
    ]
    (said,) = slack.said()
    assert [line for line in said.splitlines() if "not stored" in line] == [
        "[large.bin is not stored: it is larger than 1 MB]",
        "[gone.txt is not stored: Slack answered 404]",
        "[doc is not stored: it is not stored by Slack]",
    ]


async def test_an_image_is_given_to_a_model_that_sees(tmp_path: Path, slack: SlackStandIn) -> None:
    slack.files = {"F1": b"png"}
    model = ScriptedModel(["a boat"])
    async with serving(tmp_path, slack, model, images=True):
        await slack.write("see", subtype="file_share", files=[slack.file("F1", "boat.png", "image/png")])
        await until(slack.said)
    (message,) = msgspec.json.decode(model.requests[0].messages)
    assert message["content"][1]["image_url"]["url"] == "data:image/png;base64,cG5n"


async def test_as_many_images_are_given_to_the_model_as_fit_into_a_message(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    slack.files = {f"F{number}": bytes(7 * 1024 * 1024) for number in range(5)}
    model = ScriptedModel(["boats"])
    async with serving(tmp_path, slack, model, images=True):
        files = [slack.file(ref, f"{ref}.png", "image/png") for ref in slack.files]
        await slack.write("see", subtype="file_share", files=files)
        await until(slack.said)
    (message,) = msgspec.json.decode(model.requests[0].messages)
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "image_url"]
    assert all(f"[file, {ref}.png, image/png]" in message["content"][0]["text"] for ref in slack.files)


async def test_a_strangers_file_is_not_fetched(tmp_path: Path, slack: SlackStandIn) -> None:
    slack.faults["download"] = [web.Response(status=500)]
    async with serving(tmp_path, slack, allow=()) as worker:
        await slack.write("see", subtype="file_share", files=[slack.file("F1", "boat.png", "image/png")])
        await until(slack.said)
        assert await worker._hf.places_of(None) == []
    assert len(slack.faults["download"]) == 1


async def test_the_token_goes_to_slacks_host_of_files_and_follows_no_redirect(slack: SlackStandIn) -> None:
    slack.files = {"F1": b"png"}
    files_url = f"{slack.url}/files-pri"
    settings = SlackSettings(kind="slack", api_url=f"{slack.url}/api", files_url=files_url)
    connector = SlackConnector("work", settings, TOKEN, APP_TOKEN)
    host = slack.url.removeprefix("http://")
    try:
        assert await connector.fetch(f"{files_url}/F1", 100) == b"png"
        for url in (
            *(f"{slack.url}/elsewhere", f"{files_url}.example.com/F1", f"http://files-pri@{host}/elsewhere"),
            *(f"//{host}/elsewhere", "file:///etc/passwd", ""),
        ):
            with pytest.raises(SendRefused, match="not stored by Slack"):
                await connector.fetch(url, 100)
        slack.faults["download"] = [
            web.Response(status=status, headers={"Location": f"{slack.url}/elsewhere"})
            for status in (301, 302, 307, 308)
        ]
        for _ in range(4):
            with pytest.raises(SendRefused, match="Slack answered 30"):
                await connector.fetch(f"{files_url}/F1", 100)
    finally:
        await connector.close()
    assert slack.tokens_elsewhere == []


async def test_events_that_are_not_for_the_app_or_cannot_be_read_block_nothing(
    tmp_path: Path, slack: SlackStandIn
) -> None:
    async with serving(tmp_path, slack) as worker:
        await slack.push({"type": "message"})
        await slack.push({"type": "message", "channel": "D42", "user": "U42", "text": "x", "ts": "never"})
        await slack.push({"type": "reaction_added"})
        await slack.write("a bot", bot_id="B1")
        await slack.write("my own", person=BOT)
        await slack.write("joined", subtype="channel_join")
        await slack.write("hello")
        await until(slack.said)
        await until(lambda: settled(worker))
        assert not slack.unacknowledged
    assert slack.said() == ["You said: hello"]


async def test_a_reaction_that_is_already_there_is_no_error(slack: SlackStandIn) -> None:
    settings = SlackSettings(kind="slack", api_url=f"{slack.url}/api")
    connector = SlackConnector("work", settings, TOKEN, APP_TOKEN)
    for _ in range(2):
        await connector.react("C7:thread:1700000000.1", "C7:1700000000.2", "eyes")
    await connector.close()
    assert slack.reactions == [("C7", "1700000000.2", "eyes")]


async def test_no_error_names_a_token_and_nothing_is_accepted_by_http() -> None:
    settings = SlackSettings(kind="slack", api_url="http://127.0.0.1:1")
    connector = SlackConnector("work", settings, TOKEN, APP_TOKEN)
    with pytest.raises(SendFailed) as caught:
        await connector.send("D42", "x", key="k")
    assert TOKEN not in str(caught.value)
    with pytest.raises(WrongSignature):
        await connector.accept({}, b"{}")
    await connector.close()


def test_a_missing_or_wrong_token_is_an_error_that_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_BOT", TOKEN)
    monkeypatch.setenv("SLACK_APP", TOKEN)
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    for app_token_env, problem in (
        ("NO_SUCH_TOKEN", r"connectors.work.app_token_env names NO_SUCH_TOKEN"),
        ("", r"connectors.work.app_token_env is empty"),
        ("SLACK_APP", r"connectors.work.app_token_env must name a variable with an app-level token"),
    ):
        settings = SlackSettings(kind="slack", token_env="SLACK_BOT", app_token_env=app_token_env)
        with pytest.raises(BadSetting, match=problem):
            SlackConnector("work", settings)


def test_the_settings_of_the_kind_are_read() -> None:
    given = {"work": {"kind": "slack", "token_env": "SLACK_TOKEN", "app_token_env": "SLACK_APP_TOKEN"}}
    found = load(environment={"HOLDFAST_HOME": "/nonexistent"}, given={"connectors": given}).connectors[
        "work"
    ]
    assert isinstance(found, SlackSettings)
    assert (found.app_token_env, found.api_url) == ("SLACK_APP_TOKEN", "https://slack.com/api")


def test_markdown_becomes_mrkdwn_and_mentions_nobody() -> None:
    text = "# Tides\n**high** ~~low~~ [table](https://tides.example/?a=1&b=2) <!channel> `a<b`\n"
    assert mrkdwn(f"{text}```py\n**x**\n```") == (
        "*Tides*\n*high* ~low~ <https://tides.example/?a=1&amp;b=2|table> &lt;!channel&gt; `a&lt;b`\n"
        "```\n**x**\n```"
    )


def test_what_a_person_wrote_keeps_its_spaces() -> None:
    text = "<@UBOT|bot> see <#C1|tides> and <@U43>:\n  a &lt; b\n    <mailto:ada@example.com|ada@example.com>"
    said = plain_text(without_mention(text, "UBOT"))
    assert said == "see #tides and @U43:\n  a < b\n    ada@example.com (mailto:ada@example.com)"
