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
        "demo": ("demo", "Show what survives kill -9, in about a minute."),
        "chat": ("chat", "Chat in the terminal."),
        "run": ("run", "Send a message and print the reply as it streams."),
        "launch": ("launch", "Run Codex, Claude Code, opencode and others on the local server."),
        "env": ("env", "Print the local server's address and key, for a shell."),
        "models": ("models", "List the models that answer here, and the aliases for them."),
        "keys": ("", "Create, list and revoke API keys."),
        "sessions": ("", "List, show and manage sessions."),
        "turns": ("", "Running, waiting and queued turns."),
        "why": ("why", "Explain whether and when a session will be reset."),
        "ps": ("processes", "List background processes, newest first."),
        "logs": ("processes", "Print a process's output."),
        "stop": ("processes", "Stop a process and everything it has started."),
        "pin": ("processes", "Prevent resets while this process runs, for N hours."),
        "memories": ("", "Memories of ended sessions, and memory jobs that failed."),
        "notices": ("", "List notices for people, such as that their chat was reset."),
        "pair": ("", "List, approve and revoke people who wrote to a connector."),
        "sweep": ("nodes", "Clean up after crashed processes and apply due resets now."),
        "nodes": ("nodes", "List the living holdfast processes of this store."),
        "doctor": ("doctor", "Check every invariant and the store's health."),
        "backup": ("doctor", "Copy the store to a file while it is in use."),
        "restore": ("doctor", "Replace the store by a backup."),
        "migrate": ("migrate", "Copy this SQLite store to PostgreSQL, verified."),
        "import": ("", "Import conversations of a Hermes home or an export file."),
        "config": ("", "The settings in effect, and which settings files are trusted."),
        "version": ("config", "Print the versions of holdfast, Python and SQLite."),
    },
    "sessions": {
        "list": ("sessions", "List sessions, the most recently active first."),
        "show": ("sessions", "Show one session."),
        "messages": ("sessions", "Print a session's messages."),
        "turns": ("sessions", "List turns, newest first."),
        "lineage": ("sessions", "Show a conversation's sessions and forks as a tree."),
        "stats": ("sessions", "Count sessions: open, leaked, how they ended."),
        "search": ("sessions", "Search messages that contain all these words."),
        "end": ("session_actions", "End an open session."),
        "cancel": ("session_actions", "Cancel the running turn and withdraw those queued after it."),
        "resume": ("session_actions", "Continue from an older session."),
        "fork": ("session_actions", "Begin a new conversation with a copy of a session's context."),
        "title": ("session_actions", "Name a conversation, or print its name."),
        "compact": ("session_actions", "Replace older messages of a context by a summary, now."),
        "rewind": ("session_actions", "Continue from an earlier message; what followed stays readable."),
        "delete": ("session_actions", "Delete a whole conversation permanently."),
        "export": ("session_actions", "Write conversations as JSON Lines, with everything in them."),
    },
    "turns": {
        "list": ("turns", "List running, waiting and queued turns."),
        "retry": ("turns", "Retry a waiting turn now."),
        "give-up": ("turns", "End a waiting turn as failed; its conversation is free."),
    },
    "import": {
        "hermes": ("importing", "Import a Hermes home."),
        "codex": ("importing", "Import the sessions of Codex."),
        "claude-code": ("importing", "Import the sessions of Claude Code."),
        "file": ("importing", "Import a file of `holdfast sessions export`."),
    },
    "keys": {
        "list": ("keys", "List API keys, of all owners unless one is named."),
        "create": ("keys", "Create an API key."),
        "revoke": ("keys", "Revoke an API key."),
    },
    "memories": {
        "list": ("memories", "List memories, the newest first."),
        "search": ("memories", "Search memories that contain all these words."),
        "add": ("memories", "Add a memory to a conversation."),
        "edit": ("memories", "Edit the text of a memory."),
        "forget": ("memories", "Delete memories permanently."),
        "retry": ("memories", "Retry memory jobs that failed."),
        "skip": ("memories", "Skip the memory jobs of sessions, by id or by date."),
    },
    "notices": {
        "list": ("notices", "List notices, the oldest first."),
        "delivered": ("notices", "Mark a notice as delivered."),
    },
    "pair": {
        "list": ("pair", "List people who may write through a connector, or have asked to."),
        "approve": ("pair", "Let the person with this code write."),
        "revoke": ("pair", "Refuse a person from now on."),
    },
    "config": {
        "show": ("config", "Show every setting, its value, and where it came from."),
        "trust": ("config", "Use the holdfast.toml of a directory when you work there."),
        "untrust": ("config", "Ignore the holdfast.toml of a directory again."),
    },
}
"""By group. A command without a file is a group."""
