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
from .serving import serving
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
        screen.expect("is called 'Of tides' now")
        screen.expect("> ")
        screen.press(CTRL_D)
        screen.expect(f"Go on with: holdfast chat --key {KEY}")
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
        screen.expect("interrupted. What it had said is kept")
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
        assert "/retry takes it up" in shown
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
        screen.expect("taken for dead meanwhile")
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
        screen.expect("Somebody else has ended this session; the next message begins afresh")
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
        second.expect("you did not want to wait")
        second.expect("> two")  # what could not be said is given back
        second.press("\r")
        second.expect("Another turn is running here")
        assert "was cancelled" in talking.ok("sessions", "cancel", KEY)
        first.expect("somebody else cancelled it")
        until(lambda: len(talker.requests) == 2, "the second is asked")
        until(lambda: len(talker.answering) == 1, "the first request is given up")
        talker.answer("second")
        second.expect("second\n")
        first.expect("Said elsewhere, meanwhile:")
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
    assert "is called 'Of tides'" in done.stderr
    assert "started no process" in done.stderr
    assert "nothing to take up" in done.stderr
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
    assert f"Compacted: goes on in {newest.id}; {oldest.id} leads there" in done.stderr
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
