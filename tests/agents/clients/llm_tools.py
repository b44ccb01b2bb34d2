def weather(city: str) -> str:
    """The weather of a city"""
    return "tide-42"
