"""Two parties meet in a directory that they do not trust, and exchange messages there.

Nothing rests on locks, renaming or exclusive creation, which are what is on trial. A message is a file with a name that
nobody has used, written once; the reader takes it when what it holds agrees with its digest, and otherwise looks again.
All names of a party begin with its id, so that it can remove them; upkeep removes those of the dead.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson

from fsqueue.clock import Clock, Entropy
from fsqueue.errors import StorageError
from fsqueue.filesystem import Filesystem

ACCEPT_S, ANSWER_S = 2.0, 5.0
"""How long a party that is there takes at most to accept an invitation, and to answer otherwise."""
AGAIN_S = 5.0
"""When to ask again whoever did not accept: it may be dead, so after pauses that double."""
POLL_S = (0.005, 0.25)
"""Shortest and longest pause between two looks for a message."""
GOODBYE = "goodbye"
"""A message of its own name, since its author may have been interrupted in the middle of another."""
SILENCE_S = 60.0
"""A partner who says nothing for so long is lost."""


class PartnerLost(StorageError):
    """The other party fell silent, or never came."""


class Rendezvous:
    """One party: an id, and the directory where it meets another. Close it, whatever happens."""

    def __init__(self, fs: Filesystem, directory: str, clock: Clock, entropy: Entropy) -> None:
        self.fs = fs
        self.directory = directory
        self.clock = clock
        self.me = entropy.hex16()
        self.partner = ""
        self._sent = self._read = 0
        self._lost = self._finished = False
        self._answered: set[str] = set()
        """Invitations that were accepted, whatever came of it."""

    @property
    def leads(self) -> bool:
        """Whether this party leads: of the two, one does."""
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
        """The body of a message, or None if it is not there yet, or not whole."""
        try:
            digest, _, data = self.fs.read(f"{self.directory}/{name}").partition(b"\n")
        except FileNotFoundError:
            return None
        if hashlib.blake2b(data, digest_size=16).hexdigest().encode() != digest:
            return None
        return orjson.loads(data)

    def _await(self, name: str, timeout_s: float) -> Any:
        """The body of the message `name`, GOODBYE if its author has ended; None if it does not come in time."""
        goodbye = f"{name.partition('.')[0]}.{self.me}.goodbye"
        pause, until, looks = POLL_S[0], self.clock.monotonic() + timeout_s, 0
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
            self.clock.sleep(pause)
            pause = min(pause * 1.3, POLL_S[1])

    def send(self, body: dict[str, Any]) -> None:
        """Say something to the partner."""
        self._sent += 1
        self._post(f"{self.partner}.{self._sent:06d}", body)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """What the partner said next; PartnerLost if that is nothing, for SILENCE_S seconds or so many."""
        timeout_s = SILENCE_S if timeout_s is None else timeout_s
        self._read += 1
        body = self._await(f"{self.partner}.{self.me}.{self._read:06d}", timeout_s)
        if isinstance(body, dict):
            return body
        self._lost = True
        if body is None:
            raise PartnerLost(f"The other host said nothing more for {timeout_s:g} s: it was stopped, or cut off.")
        raise PartnerLost("The doctor on the other host was ended.")

    def exchange(self, body: dict[str, Any]) -> dict[str, Any]:
        """Say something to the partner, and hear what it says at the same point."""
        self.send(body)
        return self.receive()

    # -- meeting ------------------------------------------------------------------------------------------

    def meet(self, identity: dict[str, Any], timeout_s: float, waiting: Callable[[], None]) -> dict[str, Any]:
        """Find another party, and return its identity; PartnerLost if none comes. `waiting()` is called once.

        Of two, the one with the smaller id invites, the other accepts, the first confirms. Who does not answer is
        passed over for a while: it may be dead, or busy with somebody else.
        """
        self._post("here", identity)
        self.clock.sleep(POLL_S[0])
        until = self.clock.monotonic() + timeout_s
        again: dict[str, float] = {}
        tries: Counter[str] = Counter()
        told = False
        while self.clock.monotonic() < until:
            names = self.fs.names(self.directory)
            for name in names:
                leader, _, rest = name.partition(".")
                if rest.startswith(f"invite.{self.me}.") and name not in self._answered:
                    self._answered.add(name)
                    if self._follow(leader, rest):
                        return self._identity_of(leader)
            others = {name.partition(".")[0] for name in names if name.endswith(".here")} - {self.me}
            now = self.clock.monotonic()
            free = [other for other in others if self.me < other and again.get(other, 0.0) <= now]
            if free:
                other = min(free, key=lambda other: tries[other])
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
                return False  # it is dead, or busy; or somebody who is alive waits for an answer
            self.clock.sleep(POLL_S[1] / 5)
        self.partner = other  # before it hears of it: who is ended now says goodbye
        self._post(f"begin.{other}.{number}", {})
        return True

    def _is_invited(self) -> bool:
        return any(
            f".invite.{self.me}." in name and name not in self._answered for name in self.fs.names(self.directory)
        )

    def _follow(self, leader: str, invitation: str) -> bool:
        number = invitation.rpartition(".")[2]
        self.partner = leader  # it may have begun already: who is ended now says goodbye
        self._post(f"accept.{leader}.{number}", {})
        if self._await(f"{leader}.begin.{self.me}.{number}", ANSWER_S) is None:
            self.partner = ""
            return False
        return True

    def _identity_of(self, other: str) -> dict[str, Any]:
        identity = self._await(f"{other}.here", ANSWER_S)
        if not isinstance(identity, dict):
            raise PartnerLost("The other host came, and could not be understood.")
        return identity

    # -- cleaning up ------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The end that both have reached: the leader says so, the other takes its leave, the leader tidies up."""
        if self.leads:
            self.send({"done": True})
            self.receive(ANSWER_S)
            self._lost = True
        else:
            self.receive()
            self._remove_all(self.me)
            self.send({"bye": True})
        self._finished = True

    def close(self) -> None:
        """Remove what this party wrote; what a lost partner wrote, too. One that is there is told that this is the end,
        by a message that is left for it.
        """
        if self._finished and not self.leads:
            return
        if self._lost:
            self._remove_all(self.partner)
        self._remove_all(self.me)
        if self.partner and not self._lost:
            try:
                self._post(f"{self.partner}.goodbye", {})
            except OSError:
                pass

    def _remove_all(self, party: str) -> None:
        for _ in range(2):  # an NFS 3 client may list what is old; but not after a change of its own
            for name in self.fs.names(self.directory):
                if name.startswith(f"{party}."):
                    self._remove(name)

    def _remove(self, name: str) -> None:
        try:
            self.fs.unlink(f"{self.directory}/{name}")
        except OSError:
            try:
                self.fs.remove_tree(f"{self.directory}/{name}")
            except OSError:
                pass
