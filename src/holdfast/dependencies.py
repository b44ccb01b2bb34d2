"""Whether the installed dependencies are those that this holdfast was tested with.

The bounds are those of the installed package's metadata, so `pyproject.toml` alone states them. An installer
keeps to them; `--no-deps`, an override or a distribution's package may not. Nothing is refused: most other
versions work, but holdfast uses parts of a few packages that these do not document, and then the log should
name the cause.
"""

from __future__ import annotations

from collections.abc import Collection

from .domain.version_ranges import is_within, requirement_of


def untested(extras: Collection[str] = (), *, core: bool = True) -> str | None:
    """A sentence about what is installed and outside its bounds: of the core, and of these extras. None:
    nothing is, or holdfast itself is not installed as a package."""
    from importlib import metadata  # 10 ms, and most commands never need it

    try:
        requirements = map(requirement_of, metadata.requires("holdfast") or ())
    except metadata.PackageNotFoundError:  # copied or frozen into another program, which chose the versions
        return None
    found = []
    for each in requirements:
        if core if each.extra is None else each.extra in extras:
            try:
                version = metadata.version(each.name)
            except metadata.PackageNotFoundError:  # whatever imports it says how to install it
                continue
            if not is_within(version, each.bounds):
                found.append(f"{each.name} {version} (tested: {each.bounds})")
    if not found:
        return None
    listed = ", ".join(found)
    return f"not tested with what is installed here: {listed}; if something fails, install a tested version"
