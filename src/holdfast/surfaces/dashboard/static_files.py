"""The style sheet, the script and the picture: files of ours, named by what is in them."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

from ..api.call import Answer, Reply
from ..api.failures import Refusal
from .policy import HEADERS
from .visits import Visit

KINDS = {
    "holdfast.css": "text/css; charset=utf-8",
    "holdfast.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@cache
def content(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()


@cache
def address(name: str) -> str:
    """Another for another content, so that browsers may keep what they have."""
    return f"/static/{name}?v={sha256(content(name)).hexdigest()[:12]}"


async def static_file(visit: Visit) -> Answer:
    name = visit.path("name")
    if name not in KINDS:
        raise Refusal(404, f"there is no file {name!r:.60}", "not_found")
    kept = "public, max-age=31536000, immutable" if visit.query("v") else "no-cache"
    return Reply(content(name), headers={**HEADERS, "cache-control": kept}, media_type=KINDS[name])
