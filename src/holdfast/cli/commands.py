"""Every command: the file that has it, and its line in the help, in the order of the help.

A group imports a command's file when that command is used, so such a file imports what it needs at its top.
What takes long to import (`app`, models, server, chat, demo, importers) is imported when the command runs:
`holdfast COMMAND --help` must be fast too. A new command is a line here and `@command` in its file.
"""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "holdfast": {
        "serve": ("serve", "Serve the OpenAI API; every conversation is kept."),
        "demo": ("demo", "Take a tour in about a minute, on real processes."),
        "chat": ("chat", "Talk in the terminal; /help there lists the commands."),
        "run": ("run", "Say something and print the answer, as it comes."),
        "env": ("env", "Print the local server's address and key, for a shell."),
        "models": ("models", "List the models that answer here, and the aliases for them."),
        "keys": ("", "API keys: who may ask the server, and as whom."),
        "sessions": ("", "List sessions, look at them, act on them."),
        "why": ("why", "Say whether and when a session will be reset."),
        "ps": ("processes", "List background processes, newest first."),
        "logs": ("processes", "Print what a process has said."),
        "stop": ("processes", "Stop a process and everything it has started."),
        "pin": ("processes", "Let a process hold resets of its session up, for a stated time."),
        "memories": ("", "What was remembered of ended sessions, and flushes that failed."),
        "notices": ("", "What people should be told, such as that their chat was reset."),
        "sweep": ("nodes", "Settle what is due, and say what was done."),
        "nodes": ("nodes", "List who is alive: the holdfast processes of this store."),
        "doctor": ("doctor", "Check every invariant and the store's health."),
        "backup": ("doctor", "Copy the store to a file while everything goes on."),
        "restore": ("doctor", "Put a backup in the place of the store."),
        "migrate": ("migrate", "Copy this SQLite store to PostgreSQL, verified."),
        "import": ("", "Import conversations of a Hermes home or an export file."),
        "config": ("", "The settings in effect, and which settings files are trusted."),
        "version": ("config", "Say which holdfast this is, and what it stands on."),
    },
    "sessions": {
        "list": ("sessions", "List sessions, the most recently active first."),
        "show": ("sessions", "Show one session."),
        "messages": ("sessions", "Read what was said."),
        "turns": ("sessions", "List turns, newest first."),
        "lineage": ("sessions", "Draw a conversation's line of sessions, and its forks."),
        "stats": ("sessions", "Count sessions: open, leaked, how they ended."),
        "search": ("sessions", "Find messages that hold all these words."),
        "end": ("session_actions", "End an open session."),
        "cancel": ("session_actions", "Stop the turn that is running; what it had said is kept."),
        "resume": ("session_actions", "Go on from an older session."),
        "fork": ("session_actions", "Begin a new conversation with a copy of a session's context."),
        "delete": ("session_actions", "Delete a whole conversation, for good."),
        "export": ("session_actions", "Write conversations as JSON Lines, with everything in them."),
    },
    "import": {
        "hermes": ("importing", "Take over a Hermes home."),
        "codex": ("importing", "Take over the sessions of Codex."),
        "claude-code": ("importing", "Take over the sessions of Claude Code."),
        "file": ("importing", "Take over conversations from a file of `holdfast sessions export`."),
    },
    "keys": {
        "list": ("keys", "List API keys, of all owners unless one is named."),
        "create": ("keys", "Make an API key."),
        "revoke": ("keys", "Take an API key back, for good."),
    },
    "memories": {
        "list": ("memories", "List memories, the newest first."),
        "search": ("memories", "Find memories that hold all these words."),
        "edit": ("memories", "Change what a memory says."),
        "forget": ("memories", "Forget memories, for good: nothing of what they said is left."),
        "retry": ("memories", "Have flushes tried again that were given up."),
        "skip": ("memories", "Do not flush sessions: those named, or all that are older than a date."),
    },
    "notices": {
        "list": ("notices", "List notices, the oldest first."),
        "delivered": ("notices", "Mark a notice as delivered."),
    },
    "config": {
        "show": ("config", "Show every setting, its value, and where it came from."),
        "trust": ("config", "Use the holdfast.toml of a directory when you work there."),
        "untrust": ("config", "Ignore the holdfast.toml of a directory again."),
    },
}
"""By group. A command without a file is a group."""
