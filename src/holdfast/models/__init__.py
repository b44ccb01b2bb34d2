"""Models: any OpenAI-compatible or Anthropic upstream, the small local model, a script."""
