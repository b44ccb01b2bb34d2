"""Events: every type says what it means."""

from holdfast.domain.events import EVENT_MEANINGS, EventType

NOUNS = {
    *("conversation", "message", "messages", "session", "turn", "window", "node", "process", "key"),
    *("compaction", "flush", "memory", "request", "delivery", "pairing", "place"),
}


def test_every_type_of_event_has_its_meaning() -> None:
    assert set(EVENT_MEANINGS) == set(EventType)
    assert all(EVENT_MEANINGS.values())


def test_types_are_named_by_what_they_happen_to() -> None:
    for event in EventType:
        noun, _, verb = event.partition(".")
        assert noun in NOUNS
        assert verb
