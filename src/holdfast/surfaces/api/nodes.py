"""`GET /api/nodes`: who is alive; for admins."""

from __future__ import annotations

from ...domain.keys import check_admin
from .. import objects
from ..openai.parameters import BadParameter
from ..readings import judged_nodes
from .call import Call, Reply
from .routes import Parameter, Route
from .schemas import list_of, one_of


async def nodes(call: Call) -> Reply:
    check_admin(call.caller, "/api/nodes")
    gone = flag(call, "gone")
    return Reply(objects.listed([objects.node(*each) for each in await judged_nodes(call.store, gone=gone)]))


def flag(call: Call, name: str) -> bool:
    """A query parameter that says yes or no."""
    value = (call.query(name) or "0").lower()
    if value not in ("0", "1", "true", "false"):
        raise BadParameter(name, f"must be 1 or 0, not {value!r:.40}")
    return value in ("1", "true")


FLAG = one_of("0", "1", "true", "false")

ROUTES = (
    Route(
        "GET",
        "/api/nodes",
        nodes,
        "The holdfast processes of this store, with whether each lives and how that is known; admin keys.",
        parameters=(Parameter("gone", "Also those that have left or were reaped.", FLAG),),
        answer=list_of("Node"),
    ),
)
