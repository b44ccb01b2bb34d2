"""OpenAI's APIs. Responses and Conversations are translated to and from the chat messages in the store."""
