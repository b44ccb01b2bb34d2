"""Print, for a shell to eval, how pip is set to reach its indexes, and that all else it is set to is off.

pip reads its settings from files and from PIP_*. Indexes, proxy and certificates hold for this set-up too,
and are said to uv, which reads none of them. `user`, `target`, `require-virtualenv`, `no-binary` and the like
are meant for the user's own installations: a set-up with complete locks into an environment of its own would
only fail for them. Limits: uv is told of indexes over HTTP only; pip alone knows one in a directory.
"""

import configparser
import os
import shlex
import sys
from pathlib import Path

REACH = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "cert",
    "client-cert",
    "proxy",
)
KEPT = (*REACH, "timeout", "default-timeout", "retries")


def files() -> list[Path]:
    """Those that pip reads, the later ones above the earlier."""
    home, own = Path.home(), os.environ.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return []
    shared = os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    found = [Path(each, "pip/pip.conf") for each in shared if each] + [Path("/etc/pip.conf")]
    if sys.platform == "darwin":
        found.append(Path("/Library/Application Support/pip/pip.conf"))
        config = home / "Library/Application Support"
    return [*found, home / ".pip/pip.conf", config / "pip/pip.conf", *([Path(own)] if own else [])]


def settings() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError) as error:
            print(f"holdfast: {file} is ignored: {error}".splitlines()[0], file=sys.stderr)
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {
                    key.replace("_", "-"): " ".join(value.split()) for key, value in parser.items(section)
                }
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            found[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return {key: value for key, value in found.items() if key in KEPT and value}


def for_uv(of_pip: dict[str, str]) -> dict[str, str]:
    """The same in uv's variables, unless the user has set those."""
    web = {
        key: " ".join(each for each in value.split() if each.startswith("http"))
        for key, value in of_pip.items()
    }
    said = {
        "UV_DEFAULT_INDEX": "" if os.environ.get("UV_INDEX_URL") else web.get("index-url", ""),
        "UV_INDEX": web.get("extra-index-url", ""),
        "UV_INDEX_STRATEGY": "unsafe-best-match"
        if web.get("extra-index-url")
        else "",  # pip's way; hashes are locked
        "UV_INSECURE_HOST": of_pip.get("trusted-host", ""),
        "SSL_CERT_FILE": of_pip.get("cert", ""),
        "HTTPS_PROXY": of_pip.get("proxy", ""),
    }
    return {name: value for name, value in said.items() if value and not os.environ.get(name)}


def main() -> None:
    of_pip = settings()
    off = [name for name in os.environ if name.startswith("PIP_") and name != "PIP_CONFIG_FILE"]
    for name in sorted(off):
        print(f"unset {name}")
    pip = {f"PIP_{key.upper().replace('-', '_')}": value for key, value in of_pip.items()}
    for name, value in {**for_uv(of_pip), **pip, "PIP_CONFIG_FILE": os.devnull}.items():
        print(f"export {name}={shlex.quote(value)}")


main()
