"""What a gateway serves: a group of queues, or a single queue."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import fsqueue


class Served:
    """A group, or a queue, which then is the only one. It keeps the queues open that were used last.

    `open_max`: how many of those that nothing uses. QueueNotFound, NotAQueue. Safe to use from many threads.
    """

    def __init__(self, path: str | os.PathLike[str], open_max: int) -> None:
        self.group = fsqueue.Group.at(path)
        self._only = None if self.group is not None else fsqueue.Group.queue_at(path)
        self._open: OrderedDict[str, tuple[fsqueue.Queue, int]] = OrderedDict()
        """Each with how many use it now. The one that was used last comes last."""
        self._lock, self._open_max = threading.Lock(), open_max

    @property
    def path(self) -> str:
        """Return the path of the group or the queue, as it is typed."""
        if self._only is None:
            assert self.group is not None
            return str(self.group.path)
        return self._only.typed_path if isinstance(self._only, fsqueue.GroupQueue) else str(self._only.path)

    @property
    def only(self) -> str | None:
        """Return the name of the only queue: that of its directory; None if a group is served."""
        if self._only is None:
            return None
        return self._only.name if isinstance(self._only, fsqueue.GroupQueue) else self._only.path.name

    @contextmanager
    def queue(self, name: str) -> Iterator[fsqueue.Queue]:
        """Hold a queue open for a block. InvalidArgument for what is no name; QueueNotFound for another than the only
        one. A queue of a group need not be there.
        """
        if self._only is not None:
            if name != self.only:
                raise fsqueue.QueueNotFound(f"There is no queue {name!r:.300} here. This gateway serves {self.only!r}.")
            yield self._only
            return
        assert self.group is not None
        with self._lock:
            queue, users = self._open.pop(name, (None, 0))
            queue = self.group[name] if queue is None else queue
            self._open[name] = queue, users + 1
        try:
            yield queue
        finally:
            with self._lock:
                queue, users = self._open[name]
                self._open[name] = queue, users - 1
                over = len(self._open) - self._open_max
                unused = [one for one, (_, users) in self._open.items() if not users][: max(0, over)]
                closing = [self._open.pop(one)[0] for one in unused]
            for one in closing:
                one.close()

    def names(self, pattern: str | None, tasks_min: int, after: str | None, limit: int) -> list[str]:
        """Return names of queues in order: those behind `after`, `limit` at most. See `Group.queues`."""
        if self._only is not None:
            name = str(self.only)
            return [name] if after is None or name > after else []
        assert self.group is not None
        found = (queue.name for queue in self.group.queues(pattern, 0))
        behind = sorted(name for name in found if after is None or name > after)
        if not tasks_min:
            return behind[:limit]
        return list(islice((name for name in behind if self._has(name, tasks_min)), limit))

    def _has(self, name: str, tasks_min: int) -> bool:
        try:
            with self.queue(name) as queue:
                return queue.status(exact=False).remaining >= tasks_min
        except fsqueue.NotAQueue:  # something else has the place of a queue
            return False
        except fsqueue.QueueFileLost:
            return True  # tasks may be in it: what is asked of it next says so

    def close(self) -> None:
        """Close all queues, and the group with those that its updates have opened."""
        with self._lock:
            queues = [queue for queue, _ in self._open.values()]
        for queue in [*queues, *filter(None, [self._only])]:
            queue.close()
        if self.group is not None:
            self.group.close()
