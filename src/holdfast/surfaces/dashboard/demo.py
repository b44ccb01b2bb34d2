"""The page with the red button: a reply streams, the server is killed, and the reply is still there.

It exists only in a server that was started with HOLDFAST_DEMO=1 and listens on loopback; anywhere else its
paths are 404. What `holdfast demo` does for it:

- makes a home of its own, sets HOLDFAST_HOME to it and HOLDFAST_DEMO to 1, and runs `holdfast serve` as a
  child on a fixed port; whenever the child was ended by SIGKILL, it starts another on the same port at once;
- lets a model answer that takes its time (some twenty seconds), so that there is something to cut;
- shows the person `logins.login_link(url, home, "/demo")`, once the first child has answered. The login is a
  file in the home: it survives the kills.

GET /demo            the page. Opening it asks the first question, if nobody has.
POST /demo/kill      notes in `<home>/demo.kills`, one line of JSON for each kill and synced, what had been
                     acknowledged until then, and then sends SIGKILL to its own process.

The page goes grey, asks again until a server answers, and shows the half reply with "Go on". Its counter says
how often the server was killed and how much of what had been acknowledged before is missing now; it is
reckoned from `demo.kills` and the store each time, so it is true.
"""

from __future__ import annotations

from .ends import Page

PAGES: tuple[Page, ...] = ()
