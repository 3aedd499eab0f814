"""The trash, and the proof that it is fsqueue's own: deleted queues, earlier generations, old days of the history,
files of keys from an ended epoch.

Nothing is removed because of where it is. A deleted queue's directory bears the queue's id in its name, and holds the
`queue.jsonl` of that queue, which says that it is deleted (docs/design.md, section 5). In a queue's own trash
only the names that fsqueue gives there are removed. Several processes may reap the same trees at once: each removes
what it finds, and the tree is gone after the last.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fsqueue.errors import FormatTooNew, FormatTooOld, NotAQueue
from fsqueue.filesystem import Filesystem, OpenTree, mount_of
from fsqueue.format import names, sparse
from fsqueue.format.layout import SETTINGS_FILE, QueueState, read_queue_state, settings_file
from fsqueue.format.names import Day, Generation, KeyEpoch, QueueId
from fsqueue.interruptions import let_out
from fsqueue.storage import nested
from fsqueue.storage.discovery import queue_path
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

OWN = ".trash"
"""The trash in a queue's directory."""
BESIDE = f"{OWN}-"
"""How the name of a tree begins that did not get into the trash: the disk was full, or something was in its place."""


UNFINISHED_TRIES, UNFINISHED_PAUSE_S = 20, 0.5


@dataclass(slots=True)
class Reaping:
    """The result of a reaping. `removed`: how many names went. `left`: path to reason, for what was kept."""

    removed: int = 0
    left: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    """Those of `left` that are ours, and that another process removes or has files open in: repeat."""


# -- a queue's own trash -----------------------------------------------------------------------------


def is_ours(name: str, queue_id: QueueId) -> bool:
    """Return whether the queue with this id gives such a name to a tree in its trash."""
    tree = names.parse_trashed_generation(name)
    if tree is not None:
        return tree[1] == queue_id
    return names.parse_trashed_day(name) is not None or names.is_trashed_key_epoch(name)


def own_trees(fs: Filesystem, queue: str, queue_id: QueueId) -> list[str]:
    """Return the trees in a queue's trash, and beside it, that the queue put there."""
    inside = ((f"{queue}/{OWN}/{name}", name, kind) for name, kind in fs.entries(f"{queue}/{OWN}"))
    beside = (
        (f"{queue}/{name}", name.removeprefix(BESIDE), kind)
        for name, kind in fs.entries(queue)
        if name.startswith(BESIDE)
    )
    found = (*inside, *beside)
    return sorted(path for path, name, kind in found if kind == "directory" and is_ours(name, queue_id))


def reap_own(fs: Filesystem, queue: str, queue_id: QueueId) -> int:
    """Remove what a queue put into its trash; return how many names went. What cannot be removed is logged."""
    removed = 0
    try:
        for tree in own_trees(fs, queue, queue_id):
            try:
                removed += 0 if nested.spared(fs, tree) else fs.remove_tree(tree)
            except OSError as error:  # does not keep the others
                let_out(error)
                logger.warning("%s could not be reaped (%s); 'fsqueue gc' will try again", tree, error)
    except OSError as error:
        let_out(error)
        logger.warning("the trash of %s could not be reaped (%s); 'fsqueue gc' will try again", queue, error)
    return removed


def discard(store: Store, holder: str, tree: Generation | Day | KeyEpoch) -> bool:
    """Move a tree in the directory `holder` into the queue's trash; False if it is gone, or a queue stands in it."""
    return not nested.spared(store.fs, f"{holder}/{tree}") and store.discard(holder, tree)


# -- deleted queues ----------------------------------------------------------------------------------


def reap(path: object) -> Reaping:
    """Remove what deleted queues left in a directory, each after its proof, and say what was left alone and why.

    If the directory is a queue itself, what is in its own trash goes, too.
    """
    directory = queue_path(path)
    fs = Filesystem(directory, shared=mount_of(directory).shared)
    found = reap_deleted(fs, directory)
    is_there = SETTINGS_FILE in fs.names(directory)
    queue_state = _fate_of(sparse.content_of(fs.read_pieces(settings_file(directory)))) if is_there else None
    if isinstance(queue_state, QueueState):
        found.removed += reap_own(fs, directory, queue_state.id)
    return found


def reap_deleted(fs: Filesystem, directory: str) -> Reaping:
    """Remove the deleted queues in a directory, each after its proof."""
    found = Reaping()
    for path, queue_id in deleted_in(fs, directory):
        reap_tree(fs, path, queue_id, found)
    return found


def until_finished(reaping: Callable[[], Reaping], sleep: Callable[[float], object]) -> Reaping:
    """Reap, and again for ten seconds while another process removes the same. Return the last result, with the sum of
    what was removed."""
    found = reaping()
    for _ in range(UNFINISHED_TRIES):
        if not found.unfinished:
            break
        sleep(UNFINISHED_PAUSE_S)
        before, found = found.removed, reaping()
        found.removed += before
    return found


def deleted_in(fs: Filesystem, directory: str) -> Iterator[tuple[str, QueueId]]:
    """Yield the directories named like deleted queues: path, and the id in the name. A hint: prove each."""
    base = directory.rstrip("/")
    for name, kind in sorted(fs.entries(directory)):
        queue_id = names.parse_deleted(name)
        if kind == "directory" and queue_id is not None:
            yield f"{base}/{name}", queue_id


def reap_one(fs: Filesystem, path: str, queue_id: QueueId) -> Reaping:
    """Remove one of them, if it bears the proof; else say why not."""
    found = Reaping()
    reap_tree(fs, path, queue_id, found)
    return found


def reap_tree(fs: Filesystem, path: str, queue_id: QueueId, found: Reaping) -> None:
    """Do the same, and add to what was found before."""
    why: list[str] = []

    def proof(tree: OpenTree) -> bool:
        why[:] = filter(None, [why_not(tree, queue_id) or _why_spared(fs, path)])
        return not why

    try:
        found.removed += fs.remove_tree(path, proof, SETTINGS_FILE)
        if not why and fs.is_directory(path):
            why.append("another process is removing it, or has files in it open")
            found.unfinished.append(path)
    except OSError as error:
        let_out(error)
        refused = ": its owner has to remove it" if error.errno in (errno.EACCES, errno.EPERM) else ""
        why.append(f"it could not be removed ({error.strerror or error}){refused}")
    if why:
        found.left[path] = why[0]


def _why_spared(fs: Filesystem, path: str) -> str:
    """Return that a queue stands in a deleted one, whose directory must stay then; "" if none does."""
    found = nested.inside(fs, path, of_itself=False)
    return f"the queue {found} stands in it: move that elsewhere" if found is not None else ""


def why_not(tree: OpenTree, queue_id: QueueId) -> str:
    """Return why nothing proves that an open directory is a deleted queue's; "" if something does.

    `queue_id`: what its name says. An empty directory of such a name is the rest of one.
    """
    if not tree.names():
        return ""  # the last that was in it was the proof
    content = tree.read(SETTINGS_FILE)
    if content is None:
        return f"no {SETTINGS_FILE} in it proves that it was a queue"
    queue_state = _fate_of(content)
    if isinstance(queue_state, str):
        return queue_state
    if queue_state.id != queue_id:
        return f"its {SETTINGS_FILE} is that of another queue than its name says"
    if not queue_state.closed:
        return (
            f"its {SETTINGS_FILE} does not say that the queue is deleted. The disk may have been full when the process "
            "died that deleted it. Remove it by hand, or rename it to have the queue back"
        )
    return ""


def _fate_of(content: bytes) -> QueueState | str:
    """Return what a `queue.jsonl` says, or why that cannot be said."""
    try:
        return read_queue_state(content, "")
    except NotAQueue:
        return f"its {SETTINGS_FILE} is damaged"
    except FormatTooNew:
        return "a newer fsqueue made it: use that one"
    except FormatTooOld:
        return "an older fsqueue made it: use that one"
