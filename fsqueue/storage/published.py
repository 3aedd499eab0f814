"""Find and read published task files without a lock. `LockedBatch` has what is done under the batch's lock."""

from __future__ import annotations

from fsqueue.filesystem import either_of_two
from fsqueue.format import names, sparse
from fsqueue.format.layout import Layout
from fsqueue.format.names import TaskFileName
from fsqueue.storage.store import Store


def listed(store: Store, layout: Layout, batch: str) -> list[str]:
    """Return the names that a listing of the shard shows for this batch."""
    directory = f"{layout.tasks}/{layout.shard(batch)}"
    return [
        text
        for text in store.fs.names(directory)
        if text[14 : 14 + len(batch) + 1] == f"{batch}-" and names.parse_task_file(text)
    ]


def names_of(store: Store, layout: Layout, batch: str) -> list[TaskFileName]:
    """Return the names of a batch's task files, in order. A listing can miss one: two are taken."""
    texts = either_of_two(lambda: listed(store, layout, batch))
    return list(names.task_files_of(batch, sorted(texts)))


def content_of(store: Store, path: str) -> bytes:
    """Return the content of a task file. Long runs of zeros, which a power loss leaves, are one NUL byte each."""
    try:
        return sparse.content_of(store.fs.read_pieces(path))
    except IsADirectoryError as error:  # it was opened, so the system's error names no path
        error.filename = path
        raise
