"""`holdfast env`: prints what an OpenAI client needs to use the local server, as shell exports."""

from __future__ import annotations

import asyncio
import shlex

from ..errors import BadSetting
from ..local_server import is_listening, is_of_another_user, local_address
from ..settings import Settings, home, is_variable
from .context import AsJson, CommandContext, command, program
from .format import on_terminal, print_json, remark, write
from .groups import app

LOOK_SECONDS = 2.0
EVERY_ADDRESS = {"0.0.0.0", "::", "[::]", "*"}


@command(app, "env")
async def env(invocation: CommandContext, as_json: AsJson = False) -> None:
    """Print the local server's address and key, for a shell.

    After these exports any OpenAI client or script talks to the local server, as owner 'default'. The key is
    this user's own (api.key in $HOLDFAST_HOME); it is created if there is none. A key of the model in
    OPENAI_API_KEY is kept as HOLDFAST_UPSTREAM_API_KEY, where `holdfast run`, `chat` and `serve` find it.

    If no server listens there, stderr says so; the exports are printed all the same, and the exit code is 0:
    they are right as soon as one is started.

    \b
    Examples:
      eval "$(holdfast env)"
      holdfast env --json
    """
    from ..models.choose import REPLACED_KEY

    base_url = address(invocation.settings)
    if is_of_another_user(base_url):
        raise BadSetting(
            f"a process of another user listens at {base_url} and would get this user's key; start your "
            f"server on another port: `{program()} serve --port P`"
        )
    async with invocation.making(quiet=True) as opened:
        token = await opened.hf.ensure_local_key()
    variables = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": token}
    if not is_listening(base_url):
        remark(f"No server listens at {base_url} yet. Start it: `{program()} serve`")
    elif await _is_anothers(base_url, token):
        remark(
            f"The server at {base_url} does not accept this key: it belongs to another home or store, not to "
            f"{home()}. Stop it, or start yours on another port: `{program()} serve --port P`"
        )
    if as_json:
        print_json(variables)
        return
    if _holds_upstreams_key(invocation.settings):
        write(f'export {REPLACED_KEY}="$OPENAI_API_KEY"\n')
    for name, value in variables.items():
        write(f"export {name}={shlex.quote(value)}\n")
    if on_terminal():
        remark(f'To set them in this shell: eval "$({program()} env)"')


async def _is_anothers(base_url: str, token: str) -> bool:
    """True if the server that listens there was not started for this home, and refuses the key."""
    if local_address(home()) is not None:
        return False
    from ..errors import ModelError
    from ..models.upstream import Upstream

    server = Upstream(base_url, token, "", LOOK_SECONDS, backoff=(), longest_wait=0, is_own_server=True)
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await server.models()
    except ModelError as error:
        return error.status == 401
    except TimeoutError:
        return False
    finally:
        await server.close()
    return False


def _holds_upstreams_key(settings: Settings) -> bool:
    """True if OPENAI_API_KEY holds the model's key: holdfast itself still needs it in this shell."""
    import os

    from ..domain.api_keys import holds_token

    key = os.environ.get("OPENAI_API_KEY", "")
    own = os.environ.get("HOLDFAST_API_KEY", "")
    return (
        settings.model.api_key_env == "OPENAI_API_KEY" and bool(key) and key != own and not holds_token(key)
    )


def address(settings: Settings) -> str:
    """The server's URL for clients on this machine.

    A running server's actual port wins over the settings, since an option may have set it. An address from
    the environment wins over both.
    """

    host, port = settings.server.host, settings.server.port
    named = any(is_variable(settings.origins.get(name, "")) for name in ("server.host", "server.port"))
    if not (named and port) and (running := local_address(home())) is not None:
        return f"{running}/v1"
    if not port:
        raise BadSetting(
            "server.port is 0, so the server takes any free port, and none is running; start it first: "
            "`holdfast serve`"
        )
    if host in EVERY_ADDRESS:
        host = "127.0.0.1"
    elif ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"http://{host}:{port}/v1"
