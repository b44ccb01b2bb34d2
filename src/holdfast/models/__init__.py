"""Models: any OpenAI-compatible or Anthropic upstream, the small local model, a script.

To add a provider: a class with the methods of `base.Model`, and its kind in `choose.py` and in
`settings/sections.py`.
"""
