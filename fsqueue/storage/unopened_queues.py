"""Look at a queue of a group without opening it: how many tasks names in it promise.

To open a queue takes ten times as long, and a group may have 100,000 of them, of which few have tasks.
"""

from __future__ import annotations

from fsqueue.errors import FsqueueError
from fsqueue.filesystem import Filesystem
from fsqueue.filesystem.rooted import stamp_of
from fsqueue.format import layout, names, sparse
from fsqueue.format.layout import Layout
from fsqueue.format.names import Batch, QueueDirectory, TaskFileName
from fsqueue.interruptions import let_out
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.logs import read_present

LOGS_MAX = 100_000
"""Maximum number of logs of which is kept what they say: some 300 bytes each."""


def remaining(group: GroupDirectory, directory: QueueDirectory) -> int | None:
    """Return how many tasks without an outcome a queue has, as names and the logs of its open batches say.

    None if only a queue that is open can tell, also for what is no queue or cannot be read: the error comes when it is
    opened. A hint, as each listing is: 0 does not prove that the queue is drained. Nothing is written, and no link is
    followed.
    """
    try:
        return _remaining(group, group.path_of(directory))
    except (OSError, FsqueueError) as error:
        let_out(error)
        return None


def _remaining(group: GroupDirectory, path: str) -> int | None:
    fs = group.fs
    state = layout.read_queue_state(sparse.content_of(fs.read_pieces(layout.settings_file(path))), path)
    if state.group != group.state.id or state.closed:
        return None
    of_queue = Layout(path, state.directory, state.settings.shards)
    there = fs.names(of_queue.base, strict=True)
    if "staging" in there and fs.names(of_queue.staging, strict=True):
        return None  # what is staged may count, as soon as something names it
    if "commits" in there and fs.names(of_queue.pending, strict=True):
        return None
    if "queue" not in there:
        return 0
    found: dict[Batch, TaskFileName] = {}
    for shard in fs.names(of_queue.tasks, strict=True):
        for text in fs.names(f"{of_queue.tasks}/{shard}", strict=True):
            if (name := names.parse_task_file(text)) is not None:
                found[name.batch] = name
    if "movements" in there and not _batches_with_logs(fs, of_queue) <= found.keys():
        return None  # a file that is being renamed may be missing in a listing, but then it has a log
    tasks = 0
    for batch, name in found.items():
        if not name.is_open:
            tasks += name.tasks
        elif (left := _left_in(group, of_queue.log(batch))) is not None:
            tasks += left
        else:
            return None
    return tasks


def _batches_with_logs(fs: Filesystem, of_queue: Layout) -> set[Batch]:
    texts = (
        text
        for shard in fs.names(of_queue.logs, strict=True)
        for text in fs.names(f"{of_queue.logs}/{shard}", strict=True)
    )
    return {batch for text in texts if (batch := names.parse_log_file(text)) is not None}


def _left_in(group: GroupDirectory, log: str) -> int | None:
    """Return how many tasks of an open batch have no outcome. None if another file decides: an update is prepared.

    What was found is kept, and holds while the log is the same file, as long as it was. Each record makes it longer.
    """
    fs, kept = group.fs, group.left_in_logs
    with fs.closing(fs.look(log)) as fd:
        stamp = stamp_of(fs.fstat(fd))
    known = kept.get(log)
    if known is not None and known[0] == stamp:
        return known[1]
    state = read_present(fs, log)
    if state.prepared or not state.opened:
        return None
    if len(kept) >= LOGS_MAX:
        kept.clear()
    kept[log] = stamp, state.remaining
    return state.remaining
