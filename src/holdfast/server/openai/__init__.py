"""OpenAI's Responses and Conversations API in terms of the chat messages that holdfast keeps: translation."""
