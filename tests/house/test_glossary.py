"""docs/glossary.md has the words that users meet: states, in the order of the alphabet."""

from __future__ import annotations

import re

from fsqueue_cli.looking import ls

from tests.house.source import TOP

ROWS = re.findall(
    r"^\| ([a-z][^|]*) \| ([^|]*) \|$", (TOP / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE
)
WORDS = [word for words, _ in ROWS[1:] for word in words.split(", ")]


def test_words_are_in_order_and_once() -> None:
    firsts = [words for words, _ in ROWS[1:]]
    assert firsts == sorted(firsts)
    assert len(WORDS) == len(set(WORDS)) > 25


def test_each_state_is_explained() -> None:
    [state] = [option for option in ls.params if option.name == "state"]
    assert set(getattr(state.type, "choices", ())) - set(WORDS) == set()
    assert {"delayed", "leased"} <= set(getattr(state.type, "choices", ()))


def test_each_meaning_is_short_and_is_a_sentence() -> None:
    assert [words for words, meaning in ROWS[1:] if not meaning.endswith(".") or len(meaning) > 120] == []
