"""Two parties meet in a directory that they do not trust, and keep step with each other by notes (decision 44).

Nothing relies on locks, renaming or exclusive creation, which are what is tested. A note is a file with a new name,
written once. Both parties do the same: at each step a party writes its note, and waits for the other's. Its file
`ID.here` is there for as long as it takes part, and goes first. So a party that ends has nothing to say.
All names of a party begin with its id, so that it can remove them; upkeep removes those of the dead.

Others may write in the directory, too. So what stands where a note belongs may be anything: a link, a pipe, a file
without end. Only whole notes of the partner's user are read, and only this user's are removed. Another user may be the
partner, and write what he likes. So of a note only what has a place in its shape is taken, within bounds: no text
drives a terminal. A note that lacks anything raises Nonsense, and the tests between two hosts end.
"""

from __future__ import annotations

import errno
import hashlib
import math
import re
from collections.abc import Callable
from typing import Any

import orjson

from fsqueue.clock import Backoff, Clock, Entropy
from fsqueue.doctor.contests import start_of
from fsqueue.doctor.probes import OK, UNFIT, UNTRIED, WARNING
from fsqueue.errors import StorageError
from fsqueue.filesystem import NOT_FILES, Filesystem
from fsqueue.filesystem.expected_errors import retried_after_stale
from fsqueue.interruptions import suppress
from fsqueue.upkeep import doctorplaces

HOST_CHARS_MAX = 253
"""The longest name of a host (RFC 1035, section 2.3.4)."""
TEXT_CHARS_MAX, ITEMS_MAX = 10_000, 100
"""The longest other text (a mount's options can be long), and the most entries of a list."""
NUMBER_MAX = 1e18
"""More than any time in milliseconds, any size in bytes and any device's number."""

Body = dict[str, Any]

TEXT, NUMBER, NUMBER_OR_NONE = str, float, None
"""Shapes. Others: a whole number, up to which one counts; a tuple of words; a list of a shape; a dict of shapes."""
IDENTITY = {
    "host": TEXT,
    "boot": TEXT,
    "device": NUMBER,
    "mount": {
        "verdict": (OK, WARNING, UNFIT, UNTRIED),
        "seen": TEXT,
        "advice": TEXT,
        "figures": dict.fromkeys(("type", "point", "options", "source"), TEXT),
    },
}


class PartnerLost(StorageError):
    """The other party fell silent, or never came."""


class PartnerEnded(PartnerLost):
    """The other party has ended, and has removed its files."""

    def __init__(self) -> None:
        super().__init__("The doctor on the other host was ended.")


class Nonsense(PartnerLost):
    """The other party has written a note that no doctor writes."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"What the other party said makes no sense ({what}): it runs another version of fsqueue, or is no doctor."
        )


def say(text: str, most: int = TEXT_CHARS_MAX) -> str:
    """Return a text as it may be said to another party: printable, and not too long."""
    return "".join(char if char.isprintable() else "?" for char in text[:most])


def taken(said: Any, shape: Any, name: str = "all") -> Any:
    """Return the fields of another party's note that `shape` names. Nonsense if one is missing or out of bounds.

    `name` says what it is, for that error.
    """
    if isinstance(shape, dict) and isinstance(said, dict):
        return {key: taken(said.get(key), inner, key) for key, inner in shape.items()}
    if isinstance(shape, list) and isinstance(said, list) and len(said) <= ITEMS_MAX:
        return [taken(one, shape[0], name) for one in said]
    if shape is TEXT:
        fits = isinstance(said, str) and len(said) <= TEXT_CHARS_MAX and said.isprintable()
    elif isinstance(shape, tuple):
        fits = said in shape
    elif isinstance(shape, int):
        fits = type(said) is int and 0 <= said <= shape
    elif shape in (NUMBER, NUMBER_OR_NONE):
        fits = said is shape or (type(said) in (int, float) and -NUMBER_MAX <= said <= NUMBER_MAX)  # a NaN is not
    else:
        fits = False
    if not fits:
        raise Nonsense(f"{name!r} is not what it should be")
    return said


ANSWER_S = 5.0
"""Seconds that a waiting party takes at most to answer one that wants to be its partner."""
POLL_S = (0.005, 0.25)
"""Shortest and longest pause between two looks for a note."""
LISTED = 8
"""Number of looks of which one does not rely on the listing, which may be old."""
SILENCE_S = 60.0
"""Seconds of silence after which a partner is lost."""
TESTS_S = 600.0
"""Seconds of tests after which a partner is lost, too: they take half a minute."""
NOTE_BYTES_MAX = 1 << 18
"""Maximum length of a note."""
NO_NOTES = (*NOT_FILES, errno.ENOENT, errno.EACCES, errno.EPERM)
"""What the system says of things that stand where a note could, and are none."""
HERE = re.compile(rf"({doctorplaces.ID})\.here")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()


class Rendezvous:
    """One party: an id, and the directory where it meets another. Close it, whatever happens."""

    def __init__(self, fs: Filesystem, directory: str, clock: Clock, entropy: Entropy) -> None:
        self.fs = fs
        self.directory = directory
        self.clock = clock
        self.entropy = entropy
        self.me = entropy.hex16()
        self.partner = ""
        self.lost = False
        """Whether a partner that was met fell silent. What it wrote can be cleared away."""
        self._owner = self._owner_there = -1
        """The users whose this party's files and the partner's are."""
        self._step = 0
        self._until = math.inf
        """When a partner that was met must have said everything."""

    @property
    def leads(self) -> bool:
        """Return whether this party makes what both need: of the two, one does."""
        return self.me < self.partner

    @property
    def with_stranger(self) -> bool:
        """Return whether the partner is another user than this party's."""
        return self._owner_there != self._owner

    # -- notes --------------------------------------------------------------------------------------

    def exchange(self, body: Body, shape: Body, timeout_s: float | None = None) -> Body:
        """Write this party's note of the next step, and return the partner's; PartnerLost if it does not come in time.

        It must come within `timeout_s` (SILENCE_S), and before the tests have taken TESTS_S. Nonsense if it does
        not have the `shape` (see TEXT).
        """
        self._step += 1
        try:
            self._post(f"{self.partner}.{self._step:06d}", body)
        except FileExistsError:
            raise PartnerLost("Another process has put something in the place of a note.") from None
        timeout_s = min(SILENCE_S if timeout_s is None else timeout_s, self._until - self.clock.monotonic())
        there = self._await(f"{self.partner}.{self.me}.{self._step:06d}", max(timeout_s, 0.0))
        found: Body = taken(there, shape)
        return found

    def keep_step(self) -> None:
        """Wait until the partner has come to the same step."""
        self.exchange({}, {})

    def _post(self, name: str, body: Body) -> None:
        data = orjson.dumps(body)
        with self.fs.closing(self.fs.create(f"{self.directory}/{self.me}.{name}")) as fd:
            self._owner = self.fs.fstat(fd).st_uid
            self.fs.write_all(fd, _digest(data) + b"\n" + data)
            self.fs.fsync(fd)

    def _await(self, name: str, timeout_s: float) -> Body:
        backoff, until, looks = Backoff(POLL_S, self.entropy.random), self.clock.monotonic() + timeout_s, 0
        while True:
            looks += 1
            listed = self.fs.names(self.directory)
            if looks % LISTED == 0 or name in listed:
                body = self._take(name)
                if isinstance(body, dict):
                    return body
            if looks % LISTED == 0 or f"{self.partner}.here" not in listed:
                self.heed_end()
            if self.clock.monotonic() > until:
                self.lost = self._until < math.inf
                raise PartnerLost(
                    f"The other host said nothing more for {timeout_s:.3g} s: it was stopped, or cut off."
                )
            self.clock.sleep(backoff.next_s())

    def _take(self, name: str) -> Any:
        """Return the body of a note, or None if it is not there yet, not whole, or none of the partner's."""
        where = self.fs, f"{self.directory}/{name}", NOTE_BYTES_MAX, self._owner_there
        try:
            digest, _, data = retried_after_stale(lambda: start_of(*where)).partition(b"\n")
            return orjson.loads(data) if _digest(data) == digest else None
        except orjson.JSONDecodeError:  # no doctor wrote it
            return None
        except OSError as error:
            if error.errno in NO_NOTES:
                return None
            raise

    def heed_end(self) -> None:
        """Raise PartnerEnded if the partner has ended. Call it if something of the partner's is missing."""
        try:
            if not self.fs.exists(f"{self.directory}/{self.partner}.here"):
                raise PartnerEnded
        except OSError as error:
            if error.errno not in NO_NOTES:
                raise

    # -- meeting ------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Say that this party is here. From then on the directory is not empty, so that no other party removes it."""
        self._post("here", {})

    def meet(self, identity: Body, timeout_s: float, waiting: Callable[[], None]) -> Body:
        """Find another party, after `announce`, and return its identity; PartnerLost if none comes.

        `waiting()` is called once, if there is none yet. A party that does not answer is passed over from then on,
        unless it wants this one: it may be dead, or busy with another.
        """
        until, told = self.clock.monotonic() + timeout_s, False
        tried: set[str] = set()
        while self.clock.monotonic() < until:
            other = self._candidate(tried)
            if other:
                tried.add(other)
                there = self._agree_with(other, identity)
                if there is not None:
                    return there
            elif not told:
                told = True
                waiting()
            self.clock.sleep(POLL_S[1])
        raise PartnerLost(f"No other host joined within {timeout_s:g} s.")

    def _candidate(self, tried: set[str]) -> str:
        """Return the party that should be the partner; "" if there is none.

        Parties of this user come first, so that strangers cannot keep them apart; then those that want this one; then
        the newest, since those of killed doctors are old.
        """
        names = set(self.fs.names(self.directory))
        found = []
        for other in (match[1] for name in names if (match := HERE.fullmatch(name)) and match[1] != self.me):
            wants_me = f"{other}.{self.me}.000001" in names
            if wants_me or other not in tried:
                try:
                    here = self.fs.stat(f"{self.directory}/{other}.here")
                except OSError:
                    continue  # it has just ended
                found.append((here.st_uid == self._owner, wants_me, here.st_mtime_ns, other))
        return max(found)[3] if found else ""

    def _agree_with(self, other: str, identity: Body) -> Body | None:
        """Return the identity of `other`, if both parties want each other within ANSWER_S."""
        try:
            self.turn_to(other)
            for _ in range(2):  # at first each sees that the other wants it, and then, that the other has seen so
                there = self.exchange(identity, IDENTITY, ANSWER_S)
        except (PartnerEnded, FileNotFoundError):
            self._remove(f"{self.me}.{other}.")
        except Nonsense:
            raise
        except PartnerLost:
            before, self.me = self.me, self.entropy.hex16()  # so that no late answer to the old id finds anything
            try:
                self.announce()
            finally:
                self._remove(f"{before}.")
        else:
            self._until = self.clock.monotonic() + TESTS_S
            return there
        self.partner = ""
        return None

    def turn_to(self, other: str) -> None:
        """Take `other` for the partner, from the first note on. FileNotFoundError if it has ended."""
        self.partner, self._step = other, 0
        self._owner_there = self.fs.stat(f"{self.directory}/{other}.here").st_uid

    # -- the end ----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait until the partner has read all that this party wrote, or has ended, or is lost."""
        with suppress(PartnerLost, OSError):  # after the last step: nothing is missing
            self.keep_step()

    def close(self) -> None:
        """Remove what this party wrote, and what a lost partner of this user wrote."""
        if self.lost:
            self._remove(f"{self.partner}.")
        self._remove(f"{self.me}.")

    def _remove(self, prefix: str) -> None:
        """Remove this user's files of parties whose names begin so. `here` goes first: see `heed_end`."""
        for _ in range(2):  # an NFS 3 client may list what is old; but not after a change of its own
            for name in sorted(self.fs.names(self.directory), reverse=True):  # "h" comes after all hexadecimal digits
                if name.startswith(prefix) and doctorplaces.NOTE.fullmatch(name):
                    path = f"{self.directory}/{name}"
                    with suppress(OSError):
                        if self.fs.stat(path).st_uid == self._owner:
                            self.fs.unlink(path)
