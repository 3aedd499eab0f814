"""Open the queues of a group that a decision names (docs/design.md, section 4.22)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from fsqueue.errors import HiddenTasks, NotAQueue, QueueFileLost
from fsqueue.format import layout, names
from fsqueue.format.decisions import LogName
from fsqueue.format.layout import QueueState
from fsqueue.format.names import QueueDirectory
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store


def state_of(group: GroupDirectory, name: LogName) -> QueueState | None:
    """Return the state, from `queue.jsonl`, of the queue that has a log; None if the queue's name leads to another
    queue now, or to nothing.

    HiddenTasks if the queue may be there all the same: something else stands in its place or in that of its file, or
    the file is gone or damaged. FormatTooNew, FormatTooOld; OSError.
    """
    try:
        state = group.queue_state(name.directory)
    except (QueueFileLost, NotAQueue) as error:
        how = "gone" if isinstance(error, QueueFileLost) else "damaged"
        raise HiddenTasks(errno.ENODEV, layout.settings_file(group.path_of(name.directory)), how, "file") from error
    return state if state is not None and state.id == queue_id(name) and state.group == group.state.id else None


def generation(name: LogName) -> int:
    """Return the number of the generation in which a log is."""
    parsed = names.parse_generation(name.generation)
    assert parsed is not None  # a LogName has been parsed
    return parsed[0]


def queue_id(name: LogName) -> names.QueueId:
    """Return the id of the queue in which a log is."""
    parsed = names.parse_generation(name.generation)
    assert parsed is not None
    return parsed[1]


def proven(group: GroupDirectory, directory: QueueDirectory, own: Store | None) -> Store:
    """Open a queue of the group, as the worker of `own`. The caller closes it. Errors as of `Store`."""
    store = Store(group.path_of(directory), None if own is None else own.worker_name, holder=group)
    try:
        group.prove(store, directory)
    except BaseException:
        store.close()
        raise
    return store


@contextmanager
def opened(group: GroupDirectory, name: LogName, own: Store) -> Iterator[Store | None]:
    """Open the queue that has a log, for the length of a block. If that is `own`, yield `own`. None if the log's
    generation is not the present one, or the queue is not in its place. Errors as of `state_of` and `Store`.
    """
    if own.lies_at(group, name.directory):
        own.refresh(now=True)
        yield own if own.queue_state.directory == name.generation else None
        return
    if state_of(group, name) is None:
        yield None
        return
    store = proven(group, name.directory, own)
    try:
        yield store if store.queue_state.directory == name.generation else None
    finally:
        store.close()
