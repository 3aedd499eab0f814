"""Read results, and remove what commands leave beside them, in a thread: their filesystem may not answer, or not soon.

The loop asks and is answered by a post. Meanwhile it renews leases and hears signals. What may lie before the thread is
bounded by the number of paths that the loop has asked for (`Commands`).
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from fsqueue.errors import FsqueueError
from fsqueue.filesystem.results import NO_RESULT_FILES, ResultFile, ResultFiles
from fsqueue.worker.background import BackgroundThread, Died
from fsqueue.worker.events import Mailbox
from fsqueue.worker.jobs import not_kept

SWEEP_NAMES = 1_000
"""Number of names of a tree to remove before the thread looks whether a result waits to be read."""
CLOSE_S = 2.0
"""Maximum wait at the end for the removal of everything. The next worker on this host removes what is left."""
TEMPORARY = "the directory for temporary files"
"""What results are in if their directory has no name."""

T = TypeVar("T")


class ResultKeeper(BackgroundThread):
    """Do what concerns the files of results, in order; trees are removed when nothing else is to be done.

    Each answer is called in the loop: with what was asked for, or with the OSError that kept it from being had.
    """

    def __init__(self, results: ResultFiles, mailbox: Mailbox, died: Died) -> None:
        super().__init__("results", died)
        self._results, self._mailbox = results, mailbox
        self._requests: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], object]] | None] = SimpleQueue()

    def open(self, answer: Callable[[OSError | None], object]) -> None:
        """Make the private directory."""
        self._ask(self._results.open, answer)

    def new(self, answer: Callable[[ResultFile | OSError], object]) -> None:
        """Make a path for an attempt."""
        self._ask(self._results.new, answer)

    def take(self, result: ResultFile, bytes_max: int, answer: Callable[[bytes | OSError], object]) -> None:
        """Read up to `bytes_max` bytes of what an attempt has left, and end the life of its path."""
        self._ask(lambda: self._results.take(result, bytes_max), answer)

    def exchange(
        self,
        result: ResultFile,
        bytes_max: int,
        answer: Callable[[bytes | OSError], object],
        has_path: Callable[[ResultFile | OSError], object],
    ) -> None:
        """Do as `take`, and then as `new`, unless the files cannot be asked. Both are answered at once, in this order.

        To be asked twice would cost the loop another wait for this thread, after each command.
        """

        def both() -> tuple[bytes | OSError, ResultFile | OSError | None]:
            written = _tried(lambda: self._results.take(result, bytes_max))
            is_there = not isinstance(written, OSError) or written.errno in NO_RESULT_FILES
            return written, _tried(self._results.new) if is_there else None

        def answer_both(got: tuple[bytes | OSError, ResultFile | OSError | None] | OSError) -> None:
            assert isinstance(got, tuple)
            answer(got[0])
            if got[1] is not None:
                has_path(got[1])

        self._ask(both, answer_both)

    def _ask(self, action: Callable[[], T], answer: Callable[[T | OSError], object]) -> None:
        self._requests.put((action, answer))

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Remove everything, after what was asked for so far. Wait for that, at most so long."""
        self._requests.put(None)
        if self.ident is not None:
            self.join(wait_s)

    def work(self) -> None:
        try:
            while (request := self._next()) is not None:
                self._do(*request)
        finally:
            self._results.close()

    def _do(self, action: Callable[[], Any], answer: Callable[[Any], object]) -> None:
        got = _tried(action)
        self._mailbox.post(lambda: answer(got))

    def _next(self) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
        """Return the next request. As long as there is none, remove trees."""
        while True:
            try:
                return self._requests.get(block=not self._results.has_trees)
            except Empty:
                self._results.sweep(SWEEP_NAMES)


def _tried(action: Callable[[], T]) -> T | OSError:
    try:
        return action()
    except OSError as error:
        return error


def no_results(results: ResultFiles, error: OSError) -> FsqueueError:
    """Return what it means that no directory for results can be made."""
    what = f"Results cannot be kept in {results.parent or TEMPORARY}"
    return not_kept(error, what, "Name another directory with --result-dir, or TMPDIR.")
