"""How often looks at the queues of a group ask a file server, counted in the filesystem layer. Labs count the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group
from fsqueue.filesystem import Filesystem
from fsqueue.filesystem.mounts import Mount

QUEUES = 5


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """A group that seems to lie on a network mount. All tasks of its queues are done; none of them is open."""
    for module in ("store", "group_directory"):
        monkeypatch.setattr(f"fsqueue.storage.{module}.mount_of", lambda path: Mount("nfs4", "/m", "rw,vers=4.2"))
    made = Group.create(tmp_path / "g", shards=2, allow_unsafe=True)
    for number in range(QUEUES):
        queue = made[f"q{number}"]
        queue.insert_many([1, 2])
        queue.complete(queue.lease(2))
    made.close()
    return Group(made.path)


def counted(monkeypatch: pytest.MonkeyPatch, *methods: str) -> Counter[str]:
    """Count the calls of methods of `Filesystem` from now on: by the method, and by the name it is given."""
    calls: Counter[str] = Counter()

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(fs: Filesystem, *args: Any, **given: Any) -> Any:
            calls[name] += 1
            calls.update(f"{name} {Path(one).name}" for one in args[:1] if isinstance(one, str))
            return method(fs, *args, **given)

        return call

    for name in methods:
        monkeypatch.setattr(Filesystem, name, counting(name, getattr(Filesystem, name)))
    return calls


@pytest.mark.parametrize("look", [Group.status, Group.is_drained], ids=["status", "is_drained"])
def test_the_server_s_clock_is_measured_once_for_all_queues(
    group: Group, look: Callable[[Group], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch, "compare_clock")
    look(group)
    assert calls["compare_clock"] == 1
    look(group)
    assert calls["compare_clock"] == 1
    assert not group["q3"].store.clock.is_stale()
