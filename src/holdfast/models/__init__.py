"""Who answers: any OpenAI-compatible upstream, the small local model, a script."""
