"""HTTP: the OpenAI-compatible API, the operations API and the server process."""
