"""What is alive on several gateways, as one list: `/api/activity` of each, merged.

    export HOLDFAST_KEY_NORTH=hf_… HOLDFAST_KEY_SOUTH=hf_…
    python examples/merge_activity.py north=http://10.0.0.1:8377 south=http://10.0.0.2:8377
    python examples/merge_activity.py --once north=… south=… | jq .

Each gateway is asked once a second with the ETag of its last answer; while nothing has changed there, it says
304 and sends no body. A gateway that does not answer keeps its last known sessions, marked as stale: a
monitor that shows nothing looks like a gateway where nothing happens. The key of a gateway is in
HOLDFAST_KEY_<NAME>, else in OPENAI_API_KEY; an admin's key with OWNER='*' shows all owners.
"""

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import aiohttp

SECONDS = float(os.environ.get("ACTIVITY_SECONDS", "1"))
OWNER = os.environ.get("OWNER")


@dataclass
class Gateway:
    name: str
    url: str
    etag: str = ""
    known: dict[str, Any] = field(default_factory=dict)
    trouble: str | None = "not asked yet"

    async def look(self, client: aiohttp.ClientSession) -> bool:
        """Ask once. True: something is different from before."""
        before = self.trouble
        key = os.environ.get(f"HOLDFAST_KEY_{self.name.upper()}") or os.environ.get("OPENAI_API_KEY", "")
        headers = {"Authorization": f"Bearer {key}", "If-None-Match": self.etag}
        params = {"owner": OWNER} if OWNER else {}
        try:
            async with client.get(f"{self.url}/api/activity", headers=headers, params=params) as answer:
                if answer.status == 304:
                    self.trouble = None
                    return before is not None
                answer.raise_for_status()
                self.known, self.etag, self.trouble = await answer.json(), answer.headers["ETag"], None
                return True
        except (aiohttp.ClientError, TimeoutError) as error:
            self.trouble = str(error) or type(error).__name__
            return before != self.trouble


def merged(gateways: list[Gateway]) -> dict[str, Any]:
    """One document of all: sessions with the name of their gateway, the most recently active first."""
    rows = [
        {"gateway": each.name, "stale": each.trouble is not None, **session}
        for each in gateways
        for session in each.known.get("data", [])
    ]
    rows.sort(key=lambda row: str(row["last_activity_at"]), reverse=True)
    return {
        "gateways": [
            {
                "name": each.name,
                "host": each.known.get("host"),
                "as_of": each.known.get("as_of"),
                "running_turns": each.known.get("running_turns", 0),
                "trouble": each.trouble,
            }
            for each in gateways
        ],
        "running_turns": sum(each.known.get("running_turns", 0) for each in gateways if not each.trouble),
        "data": rows,
    }


def show(whole: dict[str, Any]) -> None:
    print(f"\033[2J\033[H{whole['running_turns']} turns running", end="")
    for each in whole["gateways"]:
        print(f"  |  {each['name']}: {each['trouble'] or each['running_turns']}", end="")
    print("\n")
    for row in whole["data"][:40]:
        name, doing = row["title"] or row["key"] or row["session_id"], row["doing"] or row["state"]
        print(f"{'?' if row['stale'] else ' '} {row['gateway']:10} {name[:40]:40} {doing:20} {row['since']}")


async def main(arguments: list[str]) -> None:
    once = "--once" in arguments
    pairs = [each.partition("=") for each in arguments if each != "--once"]
    if not pairs or not all(url for _, _, url in pairs):
        sys.exit("usage: merge_activity.py [--once] NAME=URL [NAME=URL …]")
    gateways = [Gateway(name, url.rstrip("/")) for name, _, url in pairs]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
        while True:
            changed = await asyncio.gather(*(gateway.look(client) for gateway in gateways))
            if once:
                print(json.dumps(merged(gateways), indent=2))
                return
            if any(changed):
                show(merged(gateways))
            await asyncio.sleep(SECONDS)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1:]))
