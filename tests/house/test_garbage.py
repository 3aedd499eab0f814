"""Tests leave nothing open for those that come after them, unless it is held for good."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

from tests.garbage import collect_and_keep


class Held:
    """In a cycle with itself: only the garbage collector ends it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_a_thread_still_holds_is_collected_when_it_has_ended() -> None:
    begun, may_end = threading.Event(), threading.Event()
    held: list[weakref.ref[Held]] = []

    def hold() -> None:
        mine = Held()
        held.append(weakref.ref(mine))
        begun.set()
        may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    collect_and_keep()
    may_end.set()
    thread.join()
    gc.collect()
    assert held[0]() is None


def test_what_no_thread_holds_is_kept_for_good() -> None:
    program = "import gc\nfrom tests.garbage import collect_and_keep\ncollect_and_keep()\nassert gc.get_freeze_count()"
    subprocess.run([sys.executable, "-c", program], check=True)
