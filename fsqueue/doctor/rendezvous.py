"""Two parties meet in a directory that they do not trust, and exchange messages there.

Nothing relies on locks, renaming or exclusive creation, which are what is tested. A message is a file with a new name,
written once. The reader takes it if its content agrees with its digest, and otherwise looks again.
All names of a party begin with its id, so that it can remove them; upkeep removes those of the dead.

Others may write in the directory, too. So what stands where a message belongs may be anything: a link, a pipe, a file
without end. Nothing but whole messages is read, and nothing but this party's own is removed.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from fsqueue.clock import Backoff, Clock, Entropy
from fsqueue.errors import StorageError
from fsqueue.filesystem import NOT_FILES, Filesystem
from fsqueue.filesystem.expected_errors import asking_again
from fsqueue.upkeep import doctorplaces

ACCEPT_S, ANSWER_S = 2.0, 5.0
"""How long a party that is there takes at most to accept an invitation, and to answer otherwise."""
AGAIN_S = 5.0
"""When to invite a party again that did not accept. It may be dead, so the pauses double."""
POLL_S = (0.005, 0.25)
"""Shortest and longest pause between two looks for a message."""
GOODBYE = "goodbye"
"""A message of its own name, since its author may have been interrupted in the middle of another."""
SILENCE_S = 60.0
"""Seconds of silence after which a partner is lost."""
TESTS_S = 600.0
"""Seconds of tests after which a partner is lost, too: they take half a minute."""
MESSAGE_BYTES_MAX = 1 << 18
"""No message of a doctor is longer."""
ENDED = "The doctor on the other host was ended."
NO_MESSAGES = (*NOT_FILES, errno.ENOENT, errno.EACCES, errno.EPERM)
"""What the system says of things that stand where a message could, and are none."""
HERE = re.compile(rf"({doctorplaces.ID})\.here")


class PartnerLost(StorageError):
    """The other party fell silent, or never came."""


class Rendezvous:
    """One party: an id, and the directory where it meets another. Close it, whatever happens."""

    def __init__(self, fs: Filesystem, directory: str, clock: Clock, entropy: Entropy) -> None:
        self.fs = fs
        self.directory = directory
        self.clock = clock
        self.entropy = entropy
        self.me = entropy.hex16()
        self.partner = ""
        self._until = 0.0
        """When a partner that was met must have said everything."""
        self._sent = self._read = 0
        self.lost = self._finished = self._announced = False
        """`lost`: the partner will not come back, and what it wrote can be cleared away."""
        self._answered: set[str] = set()
        """Invitations that were accepted, whatever came of it."""

    @property
    def leads(self) -> bool:
        """Return whether this party leads: of the two, one does."""
        return self.me < self.partner

    # -- messages -----------------------------------------------------------------------------------

    def _post(self, name: str, body: Any) -> None:
        data = orjson.dumps(body)
        fd = self.fs.create(f"{self.directory}/{self.me}.{name}")
        try:
            self.fs.write_all(fd, hashlib.blake2b(data, digest_size=16).hexdigest().encode() + b"\n" + data)
            self.fs.fsync(fd)
        finally:
            self.fs.close(fd)

    def _take(self, name: str) -> Any:
        """Return the body of a message, or None if it is not there yet, not whole, or no message at all."""
        try:
            digest, _, data = self._content(f"{self.directory}/{name}").partition(b"\n")
        except OSError as error:
            if error.errno in NO_MESSAGES:
                return None
            raise
        if hashlib.blake2b(data, digest_size=16).hexdigest().encode() != digest:
            return None
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:  # no doctor wrote it
            return None

    def _content(self, path: str) -> bytes:
        """Return what a file holds, as far as a message can be long: others may write into it without end."""

        def from_the_start() -> bytes:
            fd = self.fs.look_anew(path)
            try:
                found = chunk = self.fs.pread(fd, MESSAGE_BYTES_MAX, 0)
                while chunk and len(found) < MESSAGE_BYTES_MAX:
                    chunk = self.fs.pread(fd, MESSAGE_BYTES_MAX - len(found), len(found))
                    found += chunk
                return found
            finally:
                self.fs.close(fd)

        return asking_again(from_the_start)

    def _await(self, name: str, timeout_s: float) -> Any:
        """Return the body of the message `name`, GOODBYE if its author has ended; None if it does not come in time."""
        goodbye = f"{name.partition('.')[0]}.{self.me}.goodbye"
        backoff, until, looks = Backoff(POLL_S, self.entropy.random), self.clock.monotonic() + timeout_s, 0
        while True:
            looks += 1
            there = self.fs.names(self.directory)
            if looks % 8 == 0 or name in there:
                body = self._take(name)
                if body is not None:
                    return body
            if goodbye in there:
                return GOODBYE
            if self.clock.monotonic() > until:
                return None
            self.clock.sleep(backoff.next_s())

    def send(self, body: dict[str, Any]) -> None:
        """Send a message to the partner."""
        self._sent += 1
        self._post(f"{self.partner}.{self._sent:06d}", body)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return what the partner said next; PartnerLost after SILENCE_S seconds, or those given, of silence."""
        timeout_s = SILENCE_S if timeout_s is None else timeout_s
        if self._until:
            timeout_s = min(timeout_s, self._until - self.clock.monotonic())
        self._read += 1
        body = self._await(f"{self.partner}.{self.me}.{self._read:06d}", timeout_s)
        if isinstance(body, dict):
            return body
        self.lost = True
        if body is None:
            raise PartnerLost(
                f"The other host said nothing more for {max(timeout_s, 0):.3g} s: it was stopped, or cut off."
            )
        raise PartnerLost(ENDED)

    def heed_goodbye(self) -> None:
        """Raise PartnerLost if the partner that leads says goodbye within ANSWER_S. Call it if a file of it is missing.

        A leader that is interrupted first removes the place of the tests, and then says so.
        """
        if not self.leads and self._await(f"{self.partner}.{self.me}.no-message", ANSWER_S) == GOODBYE:
            self.lost = True
            raise PartnerLost(ENDED)

    def exchange(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a message to the partner, and return the one that it sends at the same point."""
        self.send(body)
        return self.receive()

    # -- meeting ------------------------------------------------------------------------------------------

    def announce(self, identity: dict[str, Any]) -> None:
        """Write this party's identity. From then on the directory is not empty, so that no other party removes it."""
        self._post("here", identity)
        self._announced = True

    def meet(self, identity: dict[str, Any], timeout_s: float, waiting: Callable[[], None]) -> dict[str, Any]:
        """Find another party, and return its identity; PartnerLost if none comes. `waiting()` is called once.

        Of two, the one with the smaller id invites, the other accepts, the first confirms. A party that does not
        answer is passed over for a while: it may be dead, or busy with another. Parties of this user come first, so
        that strangers cannot keep them apart.
        """
        if not self._announced:
            self.announce(identity)
        self.clock.sleep(POLL_S[0])
        until = self.clock.monotonic() + timeout_s
        again: dict[str, float] = {}
        tries: Counter[str] = Counter()
        told = False
        while self.clock.monotonic() < until:
            names = self.fs.names(self.directory)
            for name in sorted(self._invitations(names), key=self.is_a_strangers):
                self._answered.add(name)
                leader, _, rest = name.partition(".")
                if self._follow(leader, rest):
                    return self._identity_of(leader)
                if self.clock.monotonic() > until:
                    break
            others = {match[1] for name in names if (match := HERE.fullmatch(name))} - {self.me}
            now = self.clock.monotonic()
            free = [other for other in others if self.me < other and again.get(other, 0.0) <= now]
            if free:
                other = min(free, key=lambda other: (self.is_a_strangers(f"{other}.here"), tries[other]))
                again[other] = now + AGAIN_S * 2 ** min(tries[other], 4)
                tries[other] += 1
                if self._lead(other, tries[other]):
                    return self._identity_of(other)
            elif not told:
                told = True
                waiting()
            self.clock.sleep(POLL_S[1])
        raise PartnerLost(f"No other host joined within {timeout_s:g} s.")

    def _lead(self, other: str, number: int) -> bool:
        self._post(f"invite.{other}.{number}", {})
        until = self.clock.monotonic() + ACCEPT_S
        while self._take(f"{other}.accept.{self.me}.{number}") is None:
            if self.clock.monotonic() > until or self._is_invited():
                return False  # it is dead, or busy; or a living party waits for an answer
            self.clock.sleep(POLL_S[1] / 5)
        self.partner = other  # before it hears of it: if this party is ended now, it says goodbye
        self._post(f"begin.{other}.{number}", {})
        return True

    def _is_invited(self) -> bool:
        return bool(self._invitations(self.fs.names(self.directory)))

    def _invitations(self, names: Iterable[str]) -> list[str]:
        """Return the names of invitations that were not answered yet."""
        mine = re.compile(rf"{doctorplaces.ID}\.invite\.{self.me}\.[1-9][0-9]{{0,5}}")
        return [name for name in names if mine.fullmatch(name) and name not in self._answered]

    def is_a_strangers(self, name: str) -> bool:
        """Tell whether a message comes from another user than this party's; True if that cannot be told."""
        try:
            theirs, mine = (self.fs.stat(f"{self.directory}/{one}") for one in (name, f"{self.me}.here"))
        except OSError:
            return True
        return theirs.st_uid != mine.st_uid

    def _follow(self, leader: str, invitation: str) -> bool:
        number = invitation.rpartition(".")[2]
        self.partner = leader  # it may have begun already: if this party is ended now, it says goodbye
        self._post(f"accept.{leader}.{number}", {})
        if self._await(f"{leader}.begin.{self.me}.{number}", ANSWER_S) is None:
            self.partner = ""
            return False
        return True

    def _identity_of(self, other: str) -> dict[str, Any]:
        identity = self._await(f"{other}.here", ANSWER_S)
        self._until = self.clock.monotonic() + TESTS_S
        if not isinstance(identity, dict):
            raise PartnerLost("The other party came, and could not be understood.")
        return identity

    # -- cleaning up ------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End a meeting that both have finished: the leader says so, the other answers, the leader tidies up."""
        if self.leads:
            self.send({"done": True})
            self.receive(ANSWER_S)
            self.lost = True
        else:
            self.receive()
            self._remove_all(self.me)
            self.send({"bye": True})
        self._finished = True

    def close(self) -> None:
        """Remove what this party wrote; what a lost partner of this user wrote, too. One that is there is told that
        this is the end, by a message that is left for it.
        """
        if self._finished and not self.leads:
            return
        if self.lost:
            self._remove_all(self.partner)
        self._remove_all(self.me)
        if self.partner and not self.lost:
            try:
                self._post(f"{self.partner}.goodbye", {})
            except OSError:
                pass

    def _remove_all(self, party: str) -> None:
        """Remove a party's messages: this one's, or those of a partner that belong to this user. Files only."""
        for _ in range(2):  # an NFS 3 client may list what is old; but not after a change of its own
            for name in self.fs.names(self.directory):
                if doctorplaces.is_of(party, name) and (party == self.me or not self.is_a_strangers(name)):
                    try:
                        self.fs.unlink(f"{self.directory}/{name}")
                    except OSError:
                        pass
