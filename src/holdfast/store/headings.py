"""Reads what lists show of conversations: first words, a preview of the last message, and sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..domain.headings import ConversationSums, Heading, heading_of
from .rows import to_json
from .transaction import Q, Transaction


def headings(tx: Transaction, conversation_ids: Sequence[str]) -> Mapping[str, Heading]:
    """The headings of these conversations, by id; those that do not exist are left out. One statement, which
    reads the first bytes of three messages of each."""
    if not conversation_ids:
        return {}
    rows = tx.all(Q.headings, ids=to_json(sorted(set(conversation_ids))))
    return {conversation: heading_of(first, last) for conversation, *first, last in rows}


def words_of_sessions(tx: Transaction, session_ids: Sequence[str]) -> Mapping[str, str]:
    """The first words of a person in each of these sessions, by id; sessions without any are left out. One
    statement, which reads the first bytes of one message of each."""
    if not session_ids:
        return {}
    rows = tx.all(Q.words_of_sessions, ids=to_json(sorted(set(session_ids))))
    found = {session: heading_of([first], None).first_words for session, first in rows}
    return {session: words for session, words in found.items() if words}


def sums_of_conversations(tx: Transaction, conversation_ids: Sequence[str]) -> Mapping[str, ConversationSums]:
    """What the sessions of these conversations add up to, and which model answered last, by id; those that do
    not exist are left out. One statement."""
    if not conversation_ids:
        return {}
    rows = tx.all(Q.sums_of_conversations, ids=to_json(sorted(set(conversation_ids))))
    return {
        id_: ConversationSums(int(messages), int(sessions), int(given), int(made), model)
        for id_, messages, sessions, given, made, model in rows
    }
