"""Accept only those regular expressions of clients whose comparison with a name ends soon.

Python's `re` backtracks, and holds the GIL meanwhile. `(a+)+b` takes years for a name of fifty letters: any client,
also one that may only read, could stop a gateway by it.
"""

from __future__ import annotations

import re

from fsqueue.service.faults import BadField

REPEATS_MAX = 4
"""Maximum number of `*`, `+`, `?` and `{...}` in one pattern. Each may multiply the time by the length of a name."""
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P=\w+\)|\(\?#[^)]*\)|\(\?[a-zA-Z]+\)"
    r"|\(\?P<\w+>|\(\?<?[=!]|\(\?>|\(\?[a-zA-Z-]*:|\(\?|[()|]|[*+?]|\{\d*,?\d*\}|.",
    re.DOTALL,
)
"""A part of a pattern: an escape, a set of characters, what stands in brackets by itself, the start of a group, one of
`()|`, a repeat, or a character."""
_REPEAT = re.compile(r"[*+?]|\{\d*,?\d*\}")


def check(name: str, pattern: str | None) -> str | None:
    """Return a client's pattern; BadField if it could take very long, or is none. `name`: the field's name."""
    if pattern is None:
        return None
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadField(name, f"is no regular expression: {error}. Nothing was done.") from None
    if why := _why_slow(pattern):
        raise BadField(name, f"{why}: comparing names with it could take for ever. Nothing was done.")
    return pattern


def _why_slow(pattern: str) -> str:
    """Return why a pattern could take very long; "" if it cannot."""
    if "(?" in pattern and re.search(r"\(\?[a-zA-Z]*x", pattern):
        return "is written with comments (?x)"
    repeats, groups = 0, [False]
    """Of each group that is open, whether it has a repeat or an alternative."""
    ended, was_repeat = False, False
    for token in _TOKEN.findall(pattern):
        if _REPEAT.fullmatch(token):
            if ended and token != "?":
                return "repeats a group that has a repeat or an alternative in it"
            repeats += 0 if was_repeat else 1  # behind a repeat, `?` and `+` say how it is done
            groups[-1] = was_repeat = True
            continue
        ended = was_repeat = False
        if token.startswith("(") and not token.endswith((")", "(?")):
            groups.append(False)
        elif token == ")" and len(groups) > 1:
            ended = groups.pop()
            groups[-1] |= ended
        elif token == "|":
            groups[-1] = True
        elif re.fullmatch(r"\\[1-9]|\(\?P=.*\)", token):
            return "refers to what a group has found"
        elif token == "(?":
            return "has a group of a kind that is not known"
    return f"has more than {REPEATS_MAX} repeats" if repeats > REPEATS_MAX else ""
