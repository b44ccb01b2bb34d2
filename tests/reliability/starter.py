"""A program that starts background processes through holdfast, prints their ids, and waits to be killed.

starter.py DATABASE NUMBER
"""

from __future__ import annotations

import asyncio
import sys

import holdfast


async def start(database: str, number: int) -> None:
    async with holdfast.open(f"sqlite:///{database}") as hf:
        session = await hf.session(key="cli:ada", attached=False)
        gate = asyncio.Semaphore(8)

        async def spawn(order: int) -> None:
            # A third ends before the kill, a third while no node is alive, a third runs on; each its own way.
            lasts = ("", "sleep 3; ", "exec sleep 1000; ")[order % 3]
            async with gate:
                process = await session.spawn(f"echo {order}; {lasts}exit {order}")
            print("started", order, process.id, process.pid, flush=True)

        await asyncio.gather(*(spawn(order) for order in range(number)))
        print("all", flush=True)
        await asyncio.sleep(1000)


if __name__ == "__main__":
    asyncio.run(start(sys.argv[1], int(sys.argv[2])))
