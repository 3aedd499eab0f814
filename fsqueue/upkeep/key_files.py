"""Remove the files of free keys (docs/design.md, section 4.18; decision 32).

On a disk of this host each file goes by itself, under its lock. On a network mount no file is removed by its name: the
lock can be lost, and a removal that was sent under it may arrive when another process has taken the key. There a key
epoch begins, with a directory of its own, once most of the files are those of free keys. A day later the claims of
living tasks are copied from the earlier directory, and that goes as a whole. No later epoch has its name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec

from fsqueue.errors import FULL, LockTimeout, StorageError
from fsqueue.filesystem import LOST, NOT_FILES
from fsqueue.format import names
from fsqueue.format.layout import QueueState, key_epochs_record
from fsqueue.format.models import GcReport
from fsqueue.interruptions import let_out, suppress
from fsqueue.protocol import finishing
from fsqueue.protocol.keyed_inserts import Claims
from fsqueue.storage import keys, queue_changes
from fsqueue.storage.keys import KeyFile
from fsqueue.storage.store import Store
from fsqueue.upkeep import trash
from fsqueue.upkeep.refusals import PASSED_OVER, Refusals

logger = logging.getLogger("fsqueue")

P = ParamSpec("P")

KEY_AGE_S = 86_400
"""The file of a free key is removed a day after its last change: a key that is used again soon keeps its file."""
EPOCH_AGE_S = 72_000
"""Age of an epoch at which the earlier one ends. By then every client's listing shows all files of the earlier one.

Less than a day, so that an upkeep that runs daily does not come too early.
"""
FREE_MIN = 100
"""Minimum number of files to remove for which an epoch begins. They must not be fewer than those to keep."""
CLAIM_BYTES = 200
"""About what a claim takes. An epoch does not begin for one long file if all others have more to carry over."""


DIGEST_BYTES = 16
"""What the digest takes that names a key's file, as bytes."""


class KeyCollector:
    """Collect the files of free keys in one queue, for one upkeep."""

    def __init__(self, store: Store, report: GcReport, refused: Refusals) -> None:
        self.store = store
        self.layout = store.layout
        self.epochs = store.queue_state.key_epochs
        self.report = report
        self.refused = refused
        self._claims = Claims(store)
        self._passed_over = 0
        """Number of files that could not be looked into: they are for the next upkeep."""

    def collect(self) -> None:
        """Remove what can be removed now, or take the next step towards it."""
        if self.epochs.earlier < self.epochs.present:
            self._end_earlier()
        elif self.store.fs.shared:
            if self._is_worth_an_epoch():
                self._tried(self._begin_next)
        else:
            for path in self._present_files():
                self.report.keys_removed += self._is_old(path) and self._tried(self._reap, path)
        self._discard_ended()

    def _discard_ended(self) -> None:
        """Remove the directories of key epochs whose files do not count, through the trash."""
        store, base, state = self.store, self.layout.base, self.store.queue_state
        if state.generation != self.layout.generation:
            return
        numbers = map(names.parse_key_epoch, store.fs.names(base))
        ended = [names.key_epoch(each) for each in numbers if each is not None and each < state.key_epochs.earlier]
        if sum(self._tried(trash.discard, store, base, epoch) for epoch in ended):
            self.report.trash_reaped += trash.reap_own(store.fs, store.path, state.id)

    # -- on a disk of this host ------------------------------------------------------------------------

    def _reap(self, path: str) -> bool:
        with keys.locked_existing(self.store, self.layout, path, finishing.WAIT_S) as key_file:
            return self._is_old(path) and self._is_free(key_file) and key_file.remove()

    # -- on a network mount ----------------------------------------------------------------------------

    def _is_worth_an_epoch(self) -> bool:
        """Return whether most files of the present epoch are those of free keys, or one has grown too long."""
        store, present = self.store, self.epochs.present
        total = longest = 0
        digests = bytearray()  # of the old files: 16 bytes each, since there may be millions
        for path in self._present_files():
            total += 1
            with suppress(OSError):
                found = store.fs.stat(path)
                longest = max(longest, found.st_size)
                if self._is_before(found.st_mtime):
                    digests += bytes.fromhex(os.path.basename(path).partition(".")[0])
        if longest > max(keys.BYTES_MAX, CLAIM_BYTES * total):
            return True
        old = len(digests) // DIGEST_BYTES
        if old < max(total - old, FREE_MIN):
            return False
        each = (names.key_digest_of(digests[at : at + DIGEST_BYTES]) for at in range(0, len(digests), DIGEST_BYTES))
        paths = (self.layout.key(digest, present) for digest in each)
        free = sum(self._tried(self._is_free_now, path) for path in paths)
        return free >= max(total - free, FREE_MIN)

    def _is_free_now(self, path: str) -> bool:
        with keys.locked_existing(self.store, self.layout, path, finishing.WAIT_S) as key_file:
            return self._is_free(key_file)

    def _begin_next(self) -> bool:
        """Begin the next epoch, with a number that no directory has: `queue.jsonl` may be an old copy."""
        there = map(names.parse_key_epoch, self.store.fs.names(self.layout.base))
        present = self.epochs.present
        return self._append(present, 1 + max([present, *(number or 0 for number in there)]))

    def _end_earlier(self) -> None:
        """Carry over what counts of the earlier epoch, and end it. By now every client's listing shows all its files.

        If one cannot be looked into, the epoch does not end, and the next upkeep goes through all files again.
        """
        store, epochs = self.store, self.epochs
        age_ms = store.clock.now_ms() - epochs.begun_at
        if abs(age_ms) < EPOCH_AGE_S * 1000:  # a time of the future was written by a wrong clock
            return
        found = carried = 0
        for path in keys.files(store, self.layout, epochs.earlier):
            found += 1
            carried += self._tried(self._carry, path)
        if self._passed_over:
            logger.warning(
                "%s is kept: of its files of keys %d could not be looked into; the next upkeep tries again",
                self.layout.keys(epochs.earlier),
                self._passed_over,
            )
        elif self._tried(self._append, epochs.present, epochs.present):
            self.report.keys_removed += found - carried

    def _carry(self, path: str) -> bool:
        """Copy the last claim of an earlier file into the key's file of the present epoch, if its task lives, unless
        that file has a claim. Return whether the task lives.
        """
        store = self.store
        with keys.locked_existing(store, self.layout, path, finishing.WAIT_S) as before:
            claim = before.last()
        if claim is None or self._claims.living(self.layout, claim) is None:
            return False
        with keys.locked(store, self.layout, claim.key, finishing.WAIT_S) as key_file:
            if key_file.last(claim.key) is None and self._claims.living(self.layout, claim) is not None:
                key_file.add(claim)
        return True

    def _append(self, earlier: int, present: int) -> bool:
        """Append to `queue.jsonl` which epochs count now, unless another process was faster. Return whether it did."""
        store, known = self.store, self.store.queue_state

        def line(state: QueueState) -> bytes | None:
            if state != known or state.key_epochs != self.epochs:
                return None
            return key_epochs_record(state.generation, earlier, present, store.clock.now_ms())

        return queue_changes.append(store, line)

    # -- each file -------------------------------------------------------------------------------------

    def _tried(self, step: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Return whether a step has done something; False if it has to wait for the next upkeep."""
        try:
            return bool(step(*args, **kwargs))
        except (FileNotFoundError, LockTimeout, StorageError) as error:
            logger.debug("a file of keys in %s is left for the next upkeep: %s", self.layout.base, error)
        except OSError as error:
            if error.errno not in (*PASSED_OVER, *LOST, *FULL):
                raise
            self.refused.add(error)
            if error.errno in NOT_FILES:  # a stray has no claim
                return False
        self._passed_over += 1
        return False

    def _present_files(self) -> Iterator[str]:
        return keys.files(self.store, self.layout, self.epochs.present)

    def _is_old(self, path: str) -> bool:
        try:
            return self._is_before(self.store.fs.stat(path).st_mtime)
        except OSError as error:
            let_out(error)
            return False

    def _is_before(self, changed_s: float) -> bool:
        return changed_s <= self.store.clock.now_ms() / 1000 - KEY_AGE_S

    def _is_free(self, key_file: KeyFile) -> bool:
        """Return whether no task lives that a locked file names.

        A file in which no line can be read is left to fsck, but for one that has no whole line: its writer died before
        it inserted anything.
        """
        claim = key_file.last()
        return key_file.has_no_line() if claim is None else self._claims.living(self.layout, claim) is None
