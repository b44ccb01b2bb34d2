"""The demo's last step: the page with the red button stays open, and a server that is killed comes back."""

from __future__ import annotations

import os
import signal
import sys

from ...dashboard.logins import login_link
from ..output import Styled, say
from ..words import count
from .stage import Stage, WentWrong

PATH = "/demo"


async def keep_page(stage: Stage) -> None:
    """Until Ctrl-C. A server that was killed is started again at once; one that ended otherwise is told."""
    link = login_link(stage.url, stage.home, PATH)
    if link is None:
        raise WentWrong("the server has made no local key")
    say()
    say(Styled("Now you: ", "bold"), "a reply is streaming, and there is a red button that kills the server.")
    say("  ", Styled(link, "bold underline"))
    say(Styled("  Ctrl-C here ends the demo and removes everything it made.", "dim"))
    if on_desktop():
        import webbrowser

        webbrowser.open(link)
    killed = 0
    while True:
        assert stage.server is not None
        code = await stage.server.wait()
        if code != -signal.SIGKILL:
            raise WentWrong(f"the server ended by itself, with exit code {code}")
        pid, killed = await stage.serve(), killed + 1
        say(Styled(f"  killed {count(killed, 'time')}; the server is process {pid} now", "dim"))


def on_desktop() -> bool:
    """Is there a browser that opens a window, rather than one that takes this terminal?"""
    if os.environ.get("SSH_CONNECTION"):
        return False
    windows = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in windows)
