"""Hold the priorities of one input to one kind: texts, or whole numbers (docs/order.md)."""

from __future__ import annotations

from .insert_input import BadLine

SHOWN_CHARS = 40


def cut(text: str) -> str:
    """Return a text, or its beginning if it is long."""
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def shown(text: str) -> str:
    """Return a text in quotes, cut if it is long."""
    return repr(cut(text))


class PriorityKind:
    """Remember whether the priorities of an input are texts or numbers: the first one decides."""

    def __init__(self, place: str, cure: str) -> None:
        self._place, self._cure = place, cure
        """Where a priority stands, and what to do if texts are meant."""
        self._is_number: bool | None = None

    def other(self, value: str, is_number: bool) -> BadLine | None:
        """Return the error on a priority that is not of the kind of those before it; None if it is."""
        if self._is_number is None:
            self._is_number = is_number
        return None if is_number == self._is_number else self.refusal(value, is_number)

    def refusal(self, value: str, is_number: bool) -> BadLine:
        """Return the error on a priority that is a text among numbers, or a number among texts."""
        what, others = ("a number", "texts") if is_number else ("a text", "numbers")
        return BadLine(
            f"has {shown(value)} in the {self._place} (--priority): {what}, and those before it are {others}. Of "
            f"texts, '10' comes before '9': if you mean that, {self._cure}",
            may_skip=False,
        )
