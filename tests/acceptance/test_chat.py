"""`holdfast chat` at a real terminal: typed, interrupted, killed, stopped; and in a pipe."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from holdfast.domain.conversations import Address
from holdfast.domain.ids import DEFAULT_OWNER
from holdfast.domain.sessions import Session
from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store

from .command import Home, drafts, installed, until
from .serving import READY, serving
from .shell import free_port
from .talker import Talker
from .terminal import CTRL_C, CTRL_D, CTRL_Z, TAB, UP, Terminal, terminal

KEY = "cli:ada"

T = TypeVar("T")


@contextmanager
def chatting(home: Home, *options: str, key: str = KEY) -> Iterator[Terminal]:
    """A chat at its first prompt."""
    home.environment["HOLDFAST_MEMORY__FLUSH"] = "false"  # the talker's words are for the person
    named = () if "--resume" in options else ("--key", key)
    home.path.mkdir(mode=0o700, exist_ok=True)
    with terminal([*installed(), "chat", *named, *options], home.environment, home.path.parent) as opened:
        opened.expect("> ")
        yield opened


def look(home: Home, read: Callable[[Store, str], Awaitable[T]], key: str = KEY) -> T:
    """Read in the store, from here: a command for each look would cost more than the chat. What reads is
    given the store and the conversation's id."""

    async def opened() -> T:
        store = await open_store(home.store)
        try:
            place = await store.resolve(DEFAULT_OWNER, Address(key=key, create=False))
            return await read(store, place.conversation.id)
        finally:
            await store.close()

    return asyncio.run(opened())


def messages(home: Home) -> list[tuple[str, str]]:
    """What was said in the conversation, and whether it was said to its end."""

    async def read(store: Store, conversation: str) -> list[tuple[str, str]]:
        page = await store.messages(DEFAULT_OWNER, conversation)
        return [(each.content()["content"], each.status.value) for each in page.items]

    return look(home, read)


def context(home: Home, key: str = KEY) -> list[str]:
    """What the model would get."""

    async def read(store: Store, conversation: str) -> list[str]:
        place = await store.resolve(DEFAULT_OWNER, Address(id=conversation))
        found = (await store.context(DEFAULT_OWNER, place.tip.id)).messages()
        return [each["content"] for each in found]

    return look(home, read, key)


def line(home: Home) -> list[Session]:
    """The conversation's sessions, oldest first."""
    return look(home, lambda store, conversation: store.line(DEFAULT_OWNER, conversation))


def turns(home: Home) -> list[str]:
    """How the conversation's turns ended, the newest first."""

    async def read(store: Store, conversation: str) -> list[str]:
        return [turn.status.value for turn in await store.turns(DEFAULT_OWNER, conversation)]

    return look(home, read)


# --- talking ------------------------------------------------------------------------------------------------


def test_replies_stream_lines_are_remembered_and_the_session_lives_as_long_as_the_chat(
    talking: Home, talker: Talker
) -> None:
    with chatting(talking) as screen:
        screen.type("tell me")
        talker.say("The [bold]tide[/bold]", " \x1b[31mrises")
        screen.expect("The [bold]tide[/bold] \\x1b[31mrises")  # shown, not obeyed, while more is to come
        (session,) = line(talking)
        assert (session.running_turn is not None, session.attached, session.source) == (True, True, "cli")
        talker.answer(", and falls.")
        screen.expect(", and falls.\n> ")
        screen.press(UP)
        screen.expect("tell me")
        screen.press(CTRL_C)  # clears the line
        screen.expect("> ")
        screen.press(f"/ti{TAB}Of tides\r")
        screen.expect("Title: 'Of tides'.")
        screen.expect("> ")
        screen.press(CTRL_D)
        screen.expect(f"Continue with: holdfast chat --key {KEY}")
        assert screen.end() == 0
    (session,) = line(talking)
    assert (session.end_reason, session.title) == ("closed", "Of tides")
    kept = talking.path / "chat_history"
    assert kept.read_text() == "tell me\n/title Of tides\n"
    assert kept.stat().st_mode & 0o777 == 0o600


def test_ctrl_c_interrupts_the_reply_and_retry_takes_it_up_as_the_same_turn(
    talking: Home, talker: Talker
) -> None:
    with chatting(talking) as screen:
        screen.type("tell me")
        talker.say("The tide")
        screen.expect("The tide")
        screen.press(CTRL_C)
        screen.expect("Interrupted. Partial reply saved")
        assert messages(talking) == [("tell me", "completed"), ("The tide", "interrupted")]
        screen.expect("> ")
        until(lambda: not talker.answering, "the first request is given up")
        screen.type("/retry")
        talker.answer("The tide rises.")
        screen.expect("The tide rises.\n> ")
        assert talker.heard == [{"role": "user", "content": "tell me"}], "the half reply left the context"
        assert turns(talking) == ["completed"]
        screen.type("/retry")
        talker.answer("It falls.")
        screen.expect("It falls.\n> ")
        assert talker.heard == [{"role": "user", "content": "tell me"}], "answered anew"
        screen.press(CTRL_C)
        screen.expect("Ctrl-C again")
        screen.expect("> ")
        screen.press(CTRL_C)
        assert screen.end() == 0
    assert context(talking) == ["tell me", "It falls."]


def test_after_kill_9_the_next_chat_shows_the_half_reply_marked_and_takes_it_up(
    talking: Home, talker: Talker
) -> None:
    with chatting(talking) as screen:
        screen.type("tell me")
        talker.say("The tide")
        screen.expect("The tide")
        until(lambda: drafts(talking), "the draft is on disk")
        screen.process.send_signal(signal.SIGKILL)
        assert screen.end() == -signal.SIGKILL
    until(lambda: not talker.answering, "the killed chat's request is given up")
    with chatting(talking) as screen:
        shown = screen.screen
        assert "user: tell me" in shown
        assert "assistant: The tide  — interrupted" in shown
        assert "/retry generates it again" in shown
        screen.type("/retry")
        talker.answer("The tide rises.")
        screen.expect("The tide rises.\n> ")
        screen.type("/quit")
        assert screen.end() == 0
    assert turns(talking) == ["completed"]
    assert [(each.edge, each.end_reason) for each in line(talking)] == [
        (None, "reaped"),
        ("resume", "closed"),
    ]


def test_stopped_with_ctrl_z_and_reaped_meanwhile_it_simply_goes_on(talking: Home, talker: Talker) -> None:
    talking.environment |= {"HOLDFAST_LEASE__HEARTBEAT_SECONDS": "0.2", "HOLDFAST_LEASE__STALE_SECONDS": "3"}
    talking.environment["PS1"] = "$ "
    with (
        serving(talking),
        terminal(["bash", "--norc", "--noprofile", "-i"], talking.environment, talking.path.parent) as screen,
    ):
        screen.expect("$ ")
        screen.type(f"{shlex.join(installed())} chat --key {KEY}")
        screen.expect("> ")
        screen.type("my name is Ada")
        talker.answer("Hello Ada.")
        screen.expect("Hello Ada.\n> ")
        screen.press(CTRL_Z)
        screen.expect("Stopped")
        until(lambda: line(talking)[0].end_reason == "reaped", "the server takes it for hung")
        screen.type("fg")
        screen.expect("was not responding and its session was ended")
        screen.expect("> ")
        screen.type("what is my name?")
        talker.answer("Ada.")
        screen.expect("Ada.\n> ")
        assert [each["content"] for each in talker.heard] == [
            "my name is Ada",
            "Hello Ada.",
            "what is my name?",
        ]
        screen.type("/quit")
        screen.expect("$ ")
    assert [(each.edge, each.end_reason) for each in line(talking)] == [
        (None, "reaped"),
        ("resume", "closed"),
    ]


def test_pasted_lines_are_one_message(home: Home) -> None:
    with chatting(home) as chat:
        until(lambda: "\x1b[?2004h" in chat.raw, "the terminal is told to mark what is pasted")
        chat.press("\x1b[200~one\rtwo\rthree\rfour\x1b[201~")
        chat.press("\r")
        chat.expect("You said: one")
        until(lambda: len(messages(home)) == 2, "it was answered")
        chat.type("/quit")
    said = [text for text, _ in messages(home)]
    assert said == ["one\ntwo\nthree\nfour", "You said: one\ntwo\nthree\nfour"]


ALT_ENTER = "\x1b\r"
TABLE = "| tide | height |\n|---|---|\n| high | 3 m |\n\n"


def test_markdown_is_rendered_as_it_streams(talking: Home, talker: Talker) -> None:
    with chatting(talking) as screen:
        screen.type("tell me")
        talker.say("# Tides\n\nThey *rise*", " and `fall`.\n\n", TABLE[:20], TABLE[20:], "```python\nx = 1\n")
        screen.expect("high")
        talker.answer("```\n\n- one\n- [two](http://example.test)")
        screen.expect("two (http://example.test)\n> ")
        shown = screen.displayed
    assert "They rise and fall." in shown, "emphasis and code are styled, not shown as characters"
    assert "tide" in shown and "|" not in shown and "```" not in shown
    assert [line.strip() for line in shown.splitlines() if "x = 1" in line] == ["x = 1"], "drawn once"
    assert "• one" in shown


def test_a_reply_longer_than_the_screen_is_there_whole(talking: Home, talker: Talker) -> None:
    numbers = [f"- number {each}" for each in range(100)]
    with chatting(talking) as screen:
        screen.type("count")
        for line in numbers:
            talker.say(line + "\n")
        talker.answer("\nDone.")
        screen.expect("Done.\n> ")
        shown = [line.strip() for line in screen.displayed.splitlines()]
    counted = [line.removeprefix("• ") for line in shown if line.startswith("• number")]
    assert counted == [f"number {each}" for each in range(100)]


def test_a_message_of_several_lines_is_typed_and_edited_in_any_script(home: Home) -> None:
    with chatting(home) as chat:
        chat.press(f"Grüße, мир 海{ALT_ENTER}two\\\rthree")
        chat.resize(60)
        chat.press("!\r")
        chat.expect("You said:")
        until(lambda: len(messages(home)) == 2, "it was answered")
        chat.type("/quit")
        chat.end()
    assert messages(home)[0] == ("Grüße, мир 海\ntwo\nthree!", "completed")
    assert (home.path / "chat_history").read_text("utf-8").splitlines()[0] == "Grüße, мир 海\\ntwo\\nthree!"


def test_the_menu_says_what_each_command_does(home: Home) -> None:
    with chatting(home) as chat:
        chat.press("/re")
        chat.expect("generate the last reply again")
        assert "/resume" in chat.displayed
        chat.press(CTRL_C)


def test_resume_lists_conversations_and_takes_a_number(home: Home) -> None:
    home.ok("chat", "--key", "cli:other", said="about the moon\n")
    with chatting(home) as chat:
        chat.type("/resume")
        chat.expect("about the moon")
        chat.expect("> ")
        chat.type("/resume 1")
        chat.expect("(cli:other)")
        chat.type("/quit")
        chat.end()


def test_what_is_to_be_remembered_is_kept_and_listed(home: Home) -> None:
    done = home.run("chat", "--key", KEY, said="/remember\nhello\n/remember Likes kelp.\n/remember\n")
    assert done.returncode == 0, done.stderr
    assert "Nothing is remembered" in done.stderr and "Remembered as mem_" in done.stderr
    assert "Likes kelp." in done.stdout
    assert [each["text"] for each in home.json("memories")["data"]] == ["Likes kelp."]


def test_model_system_save_and_cost(talking: Home, talker: Talker) -> None:
    file = talking.path.parent / "saved.md"
    talker.usage = {"prompt_tokens": 1200, "completion_tokens": 34, "total_tokens": 1234}
    talker.answer("Hello.")
    said = f"/model tidal\n/system Be brief.\nhi\n/cost\n/save {file}\n/copy\n"
    done = talking.run("chat", "--key", KEY, said=said)
    assert "Answered by tidal." in done.stderr
    assert "1,200 tokens in, 34 out" in done.stderr
    assert talker.heard[0] == {"role": "system", "content": "Be brief."}
    assert file.read_text() == "## user\n\nhi\n\n## assistant\n\nHello.\n"
    assert (done.returncode, "/copy needs a terminal" in done.stderr) == (1, True)
    done = talking.run("chat", "--key", KEY, said=f"/save {file}\n")
    assert (done.returncode, "File exists" in done.stderr) == (1, True)
    assert file.read_text().startswith("## user"), "an existing file is not replaced"


def test_cost_is_money_where_the_model_has_a_price(talking: Home, talker: Talker) -> None:
    talker.usage = {"prompt_tokens": 1200, "completion_tokens": 34, "total_tokens": 1234}
    talker.answer("Hello.")
    talking.path.mkdir(parents=True, exist_ok=True)
    (talking.path / "holdfast.toml").write_text('[model.prices]\n"tidal" = "1000/10000"\n')
    done = talking.run("chat", "--key", KEY, said="/model tidal\nhi\n/cost\n")
    assert "1.54 by [model.prices]; 1,200 tokens in, 34 out" in done.stderr
    assert "cost           1.54 by [model.prices]" in talking.ok("sessions", "show", KEY)


def test_sigterm_ends_it_in_good_order(talking: Home, talker: Talker) -> None:
    with chatting(talking) as screen:
        screen.type("tell me")
        talker.say("The tide")
        screen.expect("The tide")
        screen.process.send_signal(signal.SIGTERM)
        assert screen.end() == 128 + signal.SIGTERM
    assert messages(talking) == [("tell me", "completed"), ("The tide", "interrupted")]
    assert line(talking)[0].end_reason == "closed"


# --- others -------------------------------------------------------------------------------------------------


def test_what_happens_meanwhile_is_shown_at_the_prompt_and_the_line_being_typed_stays(
    talking: Home, talker: Talker
) -> None:
    with chatting(talking) as screen:
        screen.press("half a li")
        screen.expect("half a li")
        talker.answer("Hello, elsewhere.")
        talking.ok("run", "--key", KEY, "hello from elsewhere")
        screen.expect("hello from elsewhere")
        screen.expect("Hello, elsewhere.")
        screen.expect("> half a li")
        screen.press("ne\r")
        talker.answer("Good.")
        screen.expect("Good.\n> ")
        assert talker.heard[-1]["content"] == "half a line"
        talking.ok("sessions", "end", KEY, "--reason", "new")
        screen.expect("This session was ended elsewhere; your next message starts a new one")
        screen.expect("> ")


def test_two_chats_of_one_key_take_turns_and_say_whom_they_wait_for(talking: Home, talker: Talker) -> None:
    with chatting(talking) as first, chatting(talking) as second:
        assert "also open elsewhere" in second.screen
        first.type("one")
        talker.say("slowly")
        first.expect("slowly")
        second.type("two")
        second.expect(f"in cli process {first.process.pid} on ")
        second.press(CTRL_C)
        second.expect("you cancelled the wait")
        second.expect("> two")  # what could not be said is given back
        second.press("\r")
        second.expect("Another turn is running here")
        assert "was cancelled" in talking.ok("sessions", "cancel", KEY)
        first.expect("it was cancelled elsewhere")
        until(lambda: len(talker.requests) == 2, "the second is asked")
        until(lambda: len(talker.answering) == 1, "the first request is given up")
        talker.answer("second")
        second.expect("second\n")
        first.expect("Messages from elsewhere:")
        first.expect("two")
    assert [text for text, _ in messages(talking)] == ["one", "slowly", "two", "second"]


# --- commands, in a pipe ------------------------------------------------------------------------------------


def test_every_command_does_what_it_says(home: Home) -> None:
    home.ok("chat", "--key", KEY, said="my name is Ada\n")
    first = line(home)[0].id
    done = home.run(
        *("chat", "--key", KEY),
        said="\n".join(["/title Of tides", "/title", "/why", "/ps", "/new", "/retry", "afresh", "/help"]),
    )
    assert done.returncode == 0, done.stderr
    assert "is never reset" in done.stdout
    assert "You said: afresh" in done.stdout
    assert "/resume [ID_OR_KEY]" in done.stdout
    assert "Title: 'Of tides'." in done.stderr
    assert "started no process" in done.stderr
    assert "Nothing to retry" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert context(home) == ["afresh", "You said: afresh"]

    done = home.run(
        "chat", "--resume", first, said=f"/fork cli:fork\nin the fork\n/resume {KEY}\nback\n/resume\n"
    )
    assert done.returncode == 0, done.stderr
    named = ["my name is Ada", "You said: my name is Ada"]
    assert context(home) == [*named, "back", "You said: back"], (
        "the very session that was named, though the conversation had begun afresh since"
    )
    assert context(home, "cli:fork") == [*named, "in the fork", "You said: in the fork"]
    assert "cli:fork" in done.stdout, "the list"


def test_compact_goes_on_with_a_summary_and_says_where(talking: Home, talker: Talker) -> None:
    talking.environment |= {"HOLDFAST_COMPACTION__KEEP_FIRST": "0", "HOLDFAST_COMPACTION__KEEP_LAST": "2"}
    talker.usage = {}  # a model that reports so few tokens is taken to have cut the context
    for reply in ("wave " * 200, "tide " * 200, "Yes.", "A summary of waves and tides.", "Of waves."):
        talker.answer(reply)
    done = talking.run("chat", "--key", KEY, said="one\ntwo\nthree\n/compact\nwhat was it about?\n")
    assert done.returncode == 0, done.stderr
    oldest, newest = line(talking)
    assert (newest.edge, oldest.end_reason) == ("compaction", "compaction")
    assert f"Compacted: the conversation continues in {newest.id}; {oldest.id} stays readable" in done.stderr
    heard = [str(each["content"]) for each in talker.heard]
    assert any("A summary of waves and tides." in each for each in heard)
    assert heard[-3:] == ["three", "Yes.", "what was it about?"]
    assert done.stdout.endswith("Of waves.\n")


def test_in_a_pipe_the_first_failure_ends_it(home: Home) -> None:
    home.ok("chat", "--key", "cli:taken", said="hello\n")
    for said, complaint in (
        ("/nw", "did you mean /new?"),
        ("/resume sess_unknown", "no session"),
        ("/fork cli:taken", "cli:taken"),
    ):
        done = home.run("chat", "--key", KEY, said=f"{said}\nnever said\n")
        assert (done.returncode, done.stdout) == (1, "")
        assert complaint in done.stderr
        assert "Traceback" not in done.stderr
    assert messages(home) == []


def test_a_model_that_fails_ends_a_pipe_and_the_message_is_kept(talking: Home, talker: Talker) -> None:
    talker.refuse(400, "no such voice")
    done = talking.run("chat", "--key", KEY, said="tell me\nnever said\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no such voice" in done.stderr
    assert messages(talking) == [("tell me", "completed")]


def test_wrong_usage_is_said_before_anything_is_stored(home: Home) -> None:
    assert home.run("chat", "--key", "k", "--resume", "x").returncode == 2
    assert home.run("chat", "--owner", "*").returncode == 2
    assert home.run("chat", "--resume", "x").returncode == 1
    done = home.run("chat", said=b"\xff\n")
    assert done.returncode == 1
    assert "not UTF-8" in done.stderr
    assert home.run("chat", env={"HOLDFAST_MODEL__KIND": "openai"}).returncode == 2


def test_without_a_key_the_conversation_is_the_users_own(home: Home) -> None:
    assert home.ok("chat", said="hello\n", env={"LOGNAME": "ada", "USER": "ada"}) == "You said: hello\n"
    assert messages(home) == [("hello", "completed"), ("You said: hello", "completed")]


# --- beside a server ----------------------------------------------------------------------------------------


def beside(home: Home) -> None:
    """Settings that name no model: only the server, by its option, has one."""
    home.path.mkdir(mode=0o700, exist_ok=True)
    home.environment = {
        name: value for name, value in home.environment.items() if not name.startswith("HOLDFAST_MODEL__")
    }
    home.environment["HOLDFAST_SERVER__PORT"] = str(free_port())


def test_a_chat_asks_the_running_server_instead_of_loading_a_second_model(home: Home, talker: Talker) -> None:
    beside(home)
    server = home.start("serve", "--model", talker.url)
    try:
        server.wait_for(READY)
        with chatting(home) as screen:
            assert "asked through the server at http://127.0.0.1:" in screen.screen
            talker.say("The tide ", "turns.")
            talker.finish()
            screen.type("hello")
            screen.expect("The tide turns.")
            screen.expect("> ")
            screen.press(CTRL_D)
            assert screen.end() == 0
    finally:
        server.send(signal.SIGKILL)
        server.end()
    assert messages(home) == [("hello", "completed"), ("The tide turns.", "completed")]
    (asked,) = talker.requests
    assert "store" not in asked
    assert home.json("sessions", "stats")["total"] == 1, "the server recorded nothing of its own"


def test_a_server_killed_during_a_chats_reply_is_waited_for_and_the_reply_finishes(
    home: Home, talker: Talker
) -> None:
    beside(home)
    server = home.start("serve", "--model", talker.url)
    try:
        server.wait_for(READY)
        with chatting(home) as screen:
            talker.say("Half a ")
            screen.type("hello")
            screen.expect("Half a")
            until(lambda: drafts(home) > 0, "the half reply is on disk")
            server.send(signal.SIGKILL)
            server.end()
            screen.expect("The server stopped during this reply.")
            screen.expect("waiting up to 60 s for it")
            until(lambda: not talker.answering, "the talker has noticed that the server is gone")
            talker.say("A whole reply.")
            talker.finish()
            server = home.start("serve", "--model", talker.url)
            server.wait_for(READY)
            screen.expect("A whole reply.")
            screen.expect("> ")
            screen.press(CTRL_D)
            assert screen.end() == 0
    finally:
        server.send(signal.SIGKILL)
        server.end()
    assert messages(home) == [
        ("hello", "completed"),
        ("Half a ", "interrupted"),
        ("A whole reply.", "completed"),
    ]
    assert context(home) == ["hello", "A whole reply."]


def test_ctrl_c_stops_waiting_for_a_server_that_stopped(home: Home, talker: Talker) -> None:
    beside(home)
    server = home.start("serve", "--model", talker.url)
    server.wait_for(READY)
    with chatting(home) as screen:
        server.send(signal.SIGKILL)
        server.end()
        screen.type("hello")
        screen.expect("waiting up to 60 s for it")
        screen.press(CTRL_C)
        screen.expect("Interrupted. Your message is saved.")
        screen.expect("> ")
        screen.press(CTRL_D)
        assert screen.end() == 0
    assert messages(home) == [("hello", "completed")]
