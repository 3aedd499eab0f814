"""Places where doctors work: what they are called, how they are made and held, what may be removed of them.

A doctor works in directories where strangers may write, and root may be its caller. It makes places of its own, holds
them by descriptor, and removes nothing but names of its own grammar. It never trusts that a name still leads to the
same file.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable

from fsqueue.filesystem.open_directories import PRIVATE, SHARED, Displaced, Names, OpenDirectory, Stat, is_mine
from fsqueue.format.layout import DOCTOR
from fsqueue.interruptions import let_out, suppress

REMNANT_AGE_S = 86_400.0
"""What a killed doctor left is removed a day after it was last changed."""
JOIN = "join"
"""Where parties of two hosts meet, in the directory DOCTOR."""
OPEN = 0o777
"""Mode, before the umask, of a place in which another user takes part: each renames what the other made."""
TRIES = 20
"""Maximum number of looks for a meeting place that others remove and make again."""

ID = "[0-9a-f]{16}"
PLACE = re.compile(rf"{re.escape(DOCTOR)}-{ID}")
"""The place of an examination from one host."""
CONTEST = re.compile(rf"{ID}\.place")
"""The place of the tests between two parties, named after the one that leads."""
NOTE = re.compile(rf"{ID}\.(?:here|{ID}\.[0-9]{{6}})")
"""A party's note: its id comes first, and then its partner's."""

PROBE = rf"probe-{ID}"
FORGOTTEN = r"\.nfs[0-9a-f]{8,64}"
"""What an NFS client makes of a file that is removed while it is open."""
_PARTY = rf"(?:[tp][0-9]{{1,3}}|{ID})"
_IN_A_CONTEST: Names = (
    ("ledger", None),
    (r"(?:prize|created|linked)-[0-9]{1,4}", None),
    (rf"renamed-[0-9]{{1,4}}-{_PARTY}", None),
    (rf"own-{_PARTY}", None),
    ("sights[12]", [("fresh|listing|plain", [("new|gone|grows", None), (FORGOTTEN, None)])]),
    (FORGOTTEN, None),
)
MADE_BY_DOCTORS: Names = (
    *_IN_A_CONTEST,
    (PROBE, None),
    (PROBE, [("file", None), ("inner", [("file", None)]), (FORGOTTEN, None)]),
    ("threads|processes", _IN_A_CONTEST),
)
"""All that a doctor makes in a place of its own. What other programs put there is not removed."""


class UnsafePlace(OSError):
    """The meeting place belongs to a stranger. He could exchange what is in it; the sentence says what to do."""


def make_place(directory: OpenDirectory, token: Callable[[], str]) -> OpenDirectory:
    """Make a place for one examination, with a name that no neighbour can foresee, and closed to others. OSError."""
    return directory.make(f"{DOCTOR}-{token()}", PRIVATE, _fresh(token))


def remove_place(holder: OpenDirectory, place: OpenDirectory) -> bool:
    """Remove a place in `holder` with what doctors make in it; False if something else is in it, or it was moved."""
    # Twice: an NFS 3 client may list what is old; but not after a change of its own.
    return any(holder.remove(place, MADE_BY_DOCTORS) for _ in range(2))


def _fresh(token: Callable[[], str]) -> Callable[[], str]:
    return lambda: f"{DOCTOR}-{token()}"


# -- where two parties meet ------------------------------------------------------------------------------


def meeting_place(directory: OpenDirectory, token: Callable[[], str]) -> OpenDirectory:
    """Open the directory where parties meet, which is made if need be. UnsafePlace if it is not safe to use."""
    for left in reversed(range(TRIES)):
        try:
            with directory.make_or_enter(DOCTOR, SHARED, _fresh(token)) as outer:
                _refuse_strangers(directory, outer, token)
                inner = outer.make_or_enter(JOIN, SHARED, _fresh(token))
                try:
                    _refuse_strangers(directory, inner, token)
                except BaseException:
                    inner.close()
                    raise
                return inner
        except (FileNotFoundError, Displaced):  # another doctor has just tidied up
            if not left:
                raise
    raise AssertionError("unreachable")


def _refuse_strangers(directory: OpenDirectory, place: OpenDirectory, token: Callable[[], str]) -> None:
    """Raise UnsafePlace if what this user writes in `place` can be exchanged by others who may write there."""
    found = place.stat()
    if is_mine(found) or found.st_mode & stat.S_ISVTX:
        return
    if found.st_uid != directory.as_made(_fresh(token)())[0]:
        raise UnsafePlace(
            1,
            f"{DOCTOR} here belongs to another user (number {found.st_uid}) and is not sticky, so that others could "
            "exchange what is written in it",
        )


def leave_meeting_place(directory: OpenDirectory) -> None:
    """Remove the meeting place, if nothing is left in it."""
    with suppress(OSError), directory.enter(DOCTOR) as outer:
        outer.remove_directory(JOIN)
        directory.remove_directory(DOCTOR)


def make_contest(meeting: OpenDirectory, party: str, others: bool, token: Callable[[], str]) -> OpenDirectory:
    """Make the place of the tests that `party` leads: closed to others, unless the partner is one of them."""
    return meeting.make(f"{party}.place", OPEN if others else PRIVATE, _fresh(token))


def enter_contest(meeting: OpenDirectory, party: str) -> OpenDirectory:
    """Open the place of the tests that the partner `party` leads."""
    return meeting.enter(f"{party}.place")


def clear_away(meeting: OpenDirectory, party: str) -> None:
    """Remove the place of the tests that a lost party led, if it belongs to this user."""
    with suppress(OSError), meeting.enter(f"{party}.place") as place:
        if is_mine(place.stat()):
            remove_place(meeting, place)


# -- what killed doctors left --------------------------------------------------------------------------------


def reap(directory: OpenDirectory, names: Iterable[str], now_s: float) -> int:
    """Remove what killed doctors of this user left in a directory a day ago; how many of their places and files went.

    `names` are those in the directory; `now_s` is by the clock that stamps its files. What is removed has a name of a
    doctor, belongs to this user, is old, and is no link; of what is in it, only what has a doctor's name goes, too.
    """
    removed, has_joined = 0, False
    for name in names:
        if PLACE.fullmatch(name):
            removed += _reap_place(directory, name, now_s) or _reap_file(directory, name, now_s)
        elif name == DOCTOR:
            has_joined = True
    if has_joined:
        with suppress(OSError), directory.enter(DOCTOR) as outer:
            removed += _reap_meetings(outer, now_s)
            if is_mine(outer.stat()):
                directory.remove_directory(DOCTOR)
    return removed


def _reap_meetings(outer: OpenDirectory, now_s: float) -> int:
    """Remove what is left in the directory DOCTOR; how many names went."""
    removed = 0
    with suppress(OSError), outer.enter(JOIN) as meeting:
        for name in meeting.names():
            if CONTEST.fullmatch(name):
                removed += _reap_place(meeting, name, now_s)
            elif NOTE.fullmatch(name) or PLACE.fullmatch(name):
                removed += _reap_file(meeting, name, now_s)
        if is_mine(meeting.stat()):
            outer.remove_directory(JOIN)
    return removed


def _reap_place(holder: OpenDirectory, name: str, now_s: float) -> bool:
    try:
        with holder.enter(name) as place:
            return _is_remnant(place.stat(), now_s) and holder.remove(place, MADE_BY_DOCTORS)
    except OSError as error:
        let_out(error)
        return False


def _reap_file(holder: OpenDirectory, name: str, now_s: float) -> bool:
    found = holder.look(name)
    return found is not None and stat.S_ISREG(found.st_mode) and _is_remnant(found, now_s) and holder.remove_file(name)


def _is_remnant(found: Stat, now_s: float) -> bool:
    """Tell whether it is this user's, and so old that no doctor can be at it."""
    return is_mine(found) and found.st_mtime < now_s - REMNANT_AGE_S
