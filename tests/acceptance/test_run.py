"""`holdfast run`: one turn, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from .command import Home, installed, until, write_lock_held
from .serving import READY
from .shell import free_port
from .talker import Talker


def reply_of(home: Home, key: str) -> dict[str, object]:
    last: dict[str, object] = home.json("sessions", "messages", key, "--scope", "conversation")["data"][-1]
    return last


def test_a_run_prints_the_answer_and_its_session_ends_completed(home: Home) -> None:
    assert home.ok("run", "--key", "cli:ada", "my name is Ada") == "You said: my name is Ada\n"
    (session,) = home.sessions()
    assert session["end_reason"] == "completed"
    assert session["source"] == "cli"
    assert session["message_count"] == 2
    assert session["usage"]["output_tokens"] > 0
    assert home.json("nodes")["data"] == []


def test_a_second_run_of_the_key_goes_on_where_the_first_ended(talking: Home, talker: Talker) -> None:
    talker.answer("Hello", " Ada")
    talking.ok("run", "--key", "cli:ada", "my name is Ada")
    talker.answer("Ada")
    assert talking.ok("run", "--key", "cli:ada", "what is my name?") == "Ada\n"
    assert [message["content"] for message in talker.heard] == [
        "my name is Ada",
        "Hello Ada",
        "what is my name?",
    ]
    first, second = sorted(talking.sessions(), key=lambda session: session["opened_at"])
    assert (second["edge"], second["parent_id"]) == ("resume", first["id"])


def test_without_a_key_every_run_is_a_conversation_of_its_own(home: Home) -> None:
    home.ok("run", "one")
    home.ok("run", "two")
    assert len({session["conversation_id"] for session in home.sessions()}) == 2


def test_any_id_of_a_conversation_continues_it(talking: Home, talker: Talker) -> None:
    talker.answer("one")
    talking.ok("run", "first")
    (session,) = talking.sessions()
    for number, name in enumerate((session["id"], session["conversation_id"], session["id"]), 2):
        talker.answer("more")
        talking.ok("run", "--resume", name, "go on")
        assert len(talker.heard) == 2 * number - 1


def test_resuming_what_is_not_there_begins_nothing(home: Home) -> None:
    assert home.run("run", "--resume", "sess_0", "go on").returncode == 1
    assert not home.path.exists()
    home.ok("run", "--key", "k", "hello")
    for name in ("sess_0", "a typo"):
        done = home.run("run", "--resume", name, "go on")
        assert (done.returncode, done.stdout) == (1, "")
        assert repr(name) in done.stderr
    assert len(home.sessions()) == 1


def test_the_prompt_may_come_from_a_pipe(home: Home) -> None:
    assert home.ok("run", "-", said="héllo\n") == "You said: héllo\n"
    assert home.ok("run", said="piped") == "You said: piped\n"


def test_the_system_prompt_goes_first_and_is_not_stored(talking: Home, talker: Talker) -> None:
    talker.answer("aye")
    talking.ok("run", "--key", "k", "hello", env={"HOLDFAST_AGENT__SYSTEM_PROMPT": "Speak as a sailor."})
    assert talker.heard[0] == {"role": "system", "content": "Speak as a sailor."}
    messages = talking.json("sessions", "messages", "k")["data"]
    assert [message["role"] for message in messages] == ["user", "assistant"]


def test_no_tool_is_offered(talking: Home, talker: Talker) -> None:
    talker.answer("aye")
    talking.ok("run", "hello")
    assert "tools" not in talker.requests[0]


def test_the_model_option_takes_a_kind_an_address_or_a_name(talking: Home, talker: Talker) -> None:
    assert talking.ok("run", "--model", "scripted", "hello") == "You said: hello\n"
    talker.answer("aye")
    assert talking.ok("run", "--model", "some-name", "hello") == "aye\n"
    assert talker.requests[-1]["model"] == "some-name"
    talker.answer("aye aye")
    env = {"HOLDFAST_MODEL__KIND": "scripted", "HOLDFAST_MODEL__BASE_URL": ""}
    assert talking.run("run", "--model", talker.url, "hello", env=env).stdout == "aye aye\n"


def test_the_answer_comes_as_it_is_said(talking: Home, talker: Talker) -> None:
    run = talking.start("run", "tell me")
    talker.say("The tide")
    run.wait_for("The tide")
    talker.answer(" turns.")
    assert run.end() == (0, "The tide turns.\n", "")


# --- stopped ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_polite_signal_keeps_what_was_said_and_says_how_to_go_on(
    talking: Home, talker: Talker, number: signal.Signals
) -> None:
    run = talking.start("run", "--key", "cli:ada", "tell me")
    talker.say("The tide", " is")
    run.wait_for("The tide is")
    run.send(number)
    code, out, err = run.end()
    assert (code, out) == (128 + number, "The tide is\n")
    assert "holdfast run --key cli:ada" in err
    (session,) = talking.sessions()
    assert (session["state"], session["end_reason"]) == ("ended", "closed")
    (turn,) = talking.json("sessions", "turns", "cli:ada")["data"]
    assert turn["status"] == "interrupted"
    reply = reply_of(talking, "cli:ada")
    assert (reply["content"], reply["status"]) == ("The tide is", "interrupted")
    assert talking.json("nodes")["data"] == []


def test_a_signal_before_the_first_word_is_just_as_orderly(talking: Home, talker: Talker) -> None:
    run = talking.start("run", "--key", "k", "tell me")
    assert talker.asked.wait(30)
    run.send(signal.SIGTERM)
    code, out, err = run.end()
    assert (code, out) == (143, "")
    assert "--key k" in err
    messages = talking.json("sessions", "messages", "k")["data"]
    assert [message["content"] for message in messages] == ["tell me"]


def test_the_second_signal_is_immediate(talking: Home, talker: Talker) -> None:
    # Another process holds the database's write lock, so that leaving in good order has to wait for it.
    run = talking.start("run", "--key", "k", "tell me")
    talker.say("The tide")
    run.wait_for("The tide")
    until(lambda: _drafted(talking), "the draft is on disk")
    with write_lock_held(talking.store):
        run.send(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            run.process.wait(0.5)
        run.send(signal.SIGTERM)
        assert run.process.wait(60) == -signal.SIGTERM
    assert reply_of(talking, "k")["content"] == "The tide"
    assert talking.sessions()[0]["end_reason"] == "reaped"


def _drafted(home: Home) -> bool:
    """Is there a draft? Asked of SQLite itself, since the command would sweep."""
    import apsw

    connection = apsw.Connection(str(home.store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return bool(connection.execute("SELECT count(*) FROM drafts").get)
    finally:
        connection.close()


def test_after_kill_9_the_next_command_shows_the_interrupted_reply(talking: Home, talker: Talker) -> None:
    run = talking.start("run", "--key", "cli:ada", "tell me")
    talker.say("The tide")
    run.wait_for("The tide")
    until(lambda: _drafted(talking), "the draft is on disk")
    run.send(signal.SIGKILL)
    run.end()
    done = talking.run("sessions", "messages", "cli:ada")
    assert "cleaned up after 1 crashed process: 1 reply marked interrupted, 1 session ended" in done.stderr
    assert "The tide" in done.stdout
    assert "interrupted" in done.stdout
    (session,) = talking.sessions()
    assert (session["state"], session["end_reason"]) == ("ended", "reaped")
    assert reply_of(talking, "cli:ada")["status"] == "interrupted"
    assert talking.run("doctor").returncode == 0

    talker.answer(" turns.")
    talking.ok("run", "--key", "cli:ada", "go on")
    assert [message["role"] for message in talker.heard] == ["user", "assistant", "user"]
    assert "interrupted" in str(talker.heard[1]["content"])


def test_killed_before_it_said_anything_the_message_stays(talking: Home, talker: Talker) -> None:
    run = talking.start("run", "--key", "k", "tell me")
    assert talker.asked.wait(30)
    run.send(signal.SIGKILL)
    run.end()
    messages = talking.json("sessions", "messages", "k")["data"]
    assert [message["content"] for message in messages] == ["tell me"]


def test_nohup_is_honoured(talking: Home, talker: Talker) -> None:
    run = subprocess.Popen(
        ["nohup", *installed(), "run", "--key", "k", "tell me"],
        env=talking.environment,
        cwd=talking.path.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert talker.asked.wait(30)
    run.send_signal(signal.SIGHUP)
    talker.answer("still here")
    out, _ = run.communicate(timeout=60)
    assert (run.returncode, out) == (0, b"still here\n")


def test_a_reader_that_leaves_interrupts_the_turn_without_a_word(talking: Home, talker: Talker) -> None:
    read, write = os.pipe()
    run = subprocess.Popen(
        [*installed(), "run", "--key", "k", "tell me"],
        env=talking.environment,
        cwd=talking.path.parent,
        stdin=subprocess.DEVNULL,
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    talker.say("one")
    assert os.read(read, 100) == b"one"
    os.close(read)
    talker.say(" two", " three")
    _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (141, b"")
    (turn,) = talking.json("sessions", "turns", "k")["data"]
    assert turn["status"] == "interrupted"


# --- the model fails ----------------------------------------------------------------------------------------


def test_a_refusing_model_fails_the_turn_and_keeps_the_message(talking: Home, talker: Talker) -> None:
    talker.refuse(400, "no such voice")
    done = talking.run("run", "--key", "k", "tell me")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "no such voice" in done.stderr
    assert "Your message is kept" in done.stderr
    assert "Traceback" not in done.stderr
    (turn,) = talking.json("sessions", "turns", "k")["data"]
    assert turn["status"] == "failed"
    assert "no such voice" in turn["error"]
    assert reply_of(talking, "k")["content"] == "tell me"
    assert talking.sessions()[0]["end_reason"] == "closed"


def test_an_answer_that_breaks_off_is_kept_as_interrupted(talking: Home, talker: Talker) -> None:
    talker.say("The tide")
    talker.break_off()
    done = talking.run("run", "--key", "k", "tell me")
    assert (done.returncode, done.stdout) == (1, "The tide\n")
    reply = reply_of(talking, "k")
    assert (reply["content"], reply["status"]) == ("The tide", "interrupted")


def test_nobody_to_answer_is_said_before_anything_is_stored(home: Home) -> None:
    done = home.run("run", "hello", env={"HOLDFAST_MODEL__KIND": "openai"})
    assert done.returncode == 2
    assert "base_url" in done.stderr
    assert not home.store.exists()


# --- two at once --------------------------------------------------------------------------------------------


def test_two_runs_of_one_key_take_turns(talking: Home, talker: Talker) -> None:
    first = talking.start("run", "--key", "k", "one")
    talker.say("first")
    first.wait_for("first")
    second = talking.start("run", "--key", "k", "two")
    until(lambda: len(talking.json("nodes")["data"]) == 2, "the second run has joined")
    talker.finish()
    talker.answer("second")
    assert first.end()[:2] == (0, "first\n")
    assert second.end()[:2] == (0, "second\n")
    assert [message["content"] for message in talker.heard] == ["one", "first", "two"]


def test_waiting_for_a_busy_conversation_is_said_and_is_bounded(talking: Home, talker: Talker) -> None:
    first = talking.start("run", "--key", "k", "one")
    talker.say("first")
    first.wait_for("first")
    done = talking.run("run", "--key", "k", "two", env={"HOLDFAST_SERVER__BUSY_WAIT_SECONDS": "1.5"})
    assert done.returncode == 1
    assert "waiting up to 1.5 s" in done.stderr
    assert "holdfast sessions cancel conv_" in done.stderr
    talker.finish()
    assert first.end()[0] == 0


def test_cancel_stops_a_run_even_while_its_model_is_silent(talking: Home, talker: Talker) -> None:
    run = talking.start("run", "--key", "k", "tell me")
    talker.say("The tide")
    run.wait_for("The tide")
    until(lambda: _drafted(talking), "the draft is on disk")
    assert talking.sessions()[0]["state"] == "active"
    assert "cancelled" in talking.ok("sessions", "cancel", "k")
    code, out, err = run.end()
    assert (code, out) == (1, "The tide\n")
    assert "ended elsewhere" in err
    (turn,) = talking.json("sessions", "turns", "k")["data"]
    assert turn["status"] == "cancelled"
    assert reply_of(talking, "k")["content"] == "The tide"


def test_a_detached_session_outlives_the_run_that_spoke_in_it(home: Home) -> None:
    home.ok("run", "--key", "k", "one")
    home.ok("sessions", "resume", "k")
    home.ok("run", "--key", "k", "two")
    assert home.json("sessions", "show", "k")["state"] == "idle"
    assert len(home.sessions()) == 2


# --- tools ---------------------------------------------------------------------------------------------


def test_whoever_runs_it_may_use_the_tools_that_the_settings_name(talking: Home, talker: Talker) -> None:
    talker.say("Let me look.")
    talker.call("terminal", command="echo kelp; echo $OPENAI_API_KEY")
    talker.finish()
    talker.answer("It says kelp.")
    named = {"HOLDFAST_AGENT__TOOLS": "terminal,search", "OPENAI_API_KEY": "a secret"}
    assert talking.ok("run", "--key", "cli:ada", "go", env=named) == "Let me look.\n\nIt says kelp.\n"
    assert [tool["function"]["name"] for tool in talker.requests[0]["tools"]] == ["terminal", "search"]
    assert talker.heard[-1]["content"] == "kelp\n[exit code 0]"


def test_a_background_process_outlives_the_run_and_the_next_can_look_at_it(
    talking: Home, talker: Talker
) -> None:
    talker.call("terminal", command="sleep 1; echo built", background=True)
    talker.finish()
    talker.answer("Started.")
    named = {"HOLDFAST_AGENT__TOOLS": "terminal,process"}
    talking.ok("run", "--key", "cli:ada", "build it", env=named)
    (process,) = talking.json("ps")["data"]
    talker.call("process", action="wait", id=process["id"])
    talker.finish()
    talker.answer("It is built.")
    assert talking.ok("run", "--key", "cli:ada", "and?", env=named) == "It is built.\n"
    assert talker.heard[-1]["content"] == f"{process['id']} (exit code 0): sleep 1; echo built\nbuilt"


def test_a_run_asks_the_running_server_for_what_it_offers_and_for_nothing_else(
    home: Home, talker: Talker
) -> None:
    home.environment.pop("HOLDFAST_MODEL__KIND")  # settings that name no model: only the server has one
    home.environment["HOLDFAST_MEMORY__FLUSH"] = "false"
    home.environment["HOLDFAST_SERVER__PORT"] = str(free_port())
    server = home.start("serve", "--model", talker.url)
    try:
        server.wait_for(READY)
        talker.answer("From the ", "server.")
        assert home.ok("run", "--key", "cli:ada", "hello") == "From the server.\n"
        talker.answer("By name.")
        assert home.ok("run", "--key", "cli:ada", "--model", "talker", "again") == "By name.\n"
        refused = home.run("run", "--model", "gpt-4o", "hello")
        assert refused.returncode == 2
        assert "nothing here serves the model 'gpt-4o'" in refused.stderr
        assert len(talker.requests) == 2
        talker.say("Half a ")
        running = home.start("run", "--key", "cli:ada", "once more")
        running.wait_for("Half a ")
    finally:
        server.send(signal.SIGKILL)
        server.end()
    code, _, err = running.end()
    assert code == 1
    assert "Continue with: holdfast run --key cli:ada" in err
    assert reply_of(home, "cli:ada") | {"content": "Half a ", "status": "interrupted"} == reply_of(
        home, "cli:ada"
    )
