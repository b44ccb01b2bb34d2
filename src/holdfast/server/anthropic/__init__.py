"""Anthropic's API: requests and answers are translated to and from the chat messages in the store."""
