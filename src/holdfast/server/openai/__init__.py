"""OpenAI's APIs. Responses and Conversations are translated to and from the chat messages in the store.

`chat.py` needs no translation: read it first. Another protocol is a package like `server/anthropic`: it
parses a request to chat messages, starts a turn with `start_turn`, and renders it with a `TurnRenderer`.
"""
