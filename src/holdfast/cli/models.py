"""`holdfast models`: the models that can be asked for, by the names that are accepted."""

from __future__ import annotations

from typing import Annotated

import typer

from .context import AsJson, CommandContext, command
from .groups import app
from .run import model_setting, model_usage


@command(app, "models")
async def models(
    invocation: CommandContext,
    model: Annotated[
        str | None,
        typer.Option(metavar="auto|local|scripted|URL|NAME", help="The model, instead of the settings'."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models that answer here, and the aliases for them.

    The list is the upstream's ([model] base_url, else Ollama, else the small local model), with the names of
    [model.aliases]. `GET /v1/models` of the server gives the same.

    \b
    Examples:
      holdfast models
      holdfast models --model http://localhost:11434/v1 --json
    """
    from ..models.choose import choose_from
    from ..models.effective_window import WindowOrigin, window_of
    from ..server import objects
    from .format import Column, print_json, say, table

    with model_usage(invocation):
        if model is not None:
            invocation.overrides = {"model": model_setting(model)}
        settings = invocation.settings.model
        invocation.start_logging()
        answers = await choose_from(settings)
    try:
        found = await answers.models()
        if as_json:
            print_json(objects.listed(found))
            return
        default = settings.name or (str(found[0]["id"]) if found else "")
        rows = []
        for entry in found:
            window = await window_of(answers, settings, str(entry["id"]))
            tokens = "?" if window.origin is WindowOrigin.ASSUMED else f"{window.tokens:,}"
            target = entry.get("alias_of")
            note = f"alias of {target}" if target else "default" if entry["id"] == default else ""
            rows.append((str(entry["id"]), tokens, note))
        at = answers.description.partition("the first model at ")[2]
        say(f"Models at {at}:" if at else f"{answers.description}:")
        table((Column("model"), Column("context", right=True), Column("")), rows)
        if other := settings.aliases.get("*"):
            say(f"Every other name is answered by {other}.")
    finally:
        await answers.close()
