"""A test whose child does not end says where that child is."""

from __future__ import annotations

import os
import signal

import pytest

from tests.concurrency.processes import children


def test_who_waits_in_vain_for_a_child_is_told_what_all_children_do() -> None:
    listen, tell = os.pipe()

    def lingers() -> None:
        os.write(tell, b"!")
        while True:
            signal.pause()  # until it is killed: to be asked where it is ends one pause

    def tarries() -> None:
        os.write(tell, b"!")
        while True:
            signal.pause()  # until it is killed: to be asked where it is ends one pause

    with children((lingers,), (tarries,)) as both:
        for _ in both:
            os.read(listen, 1)
        with pytest.raises(TimeoutError) as caught:
            both[0].wait(0)
        for child, place in zip(both, ("in lingers", "in tarries"), strict=True):
            assert f"process {child.pid} (" in str(caught.value)
            assert place in str(caught.value)
    os.close(listen)
    os.close(tell)
