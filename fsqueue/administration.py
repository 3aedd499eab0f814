"""Rare verbs on a whole queue: create, purge, delete, release all (docs/design.md, section 4)."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsqueue import forks
from fsqueue.clock import Clock, Entropy
from fsqueue.cluster.identity import is_in_job, user_of_this_process
from fsqueue.errors import (
    FULL,
    FsqueueError,
    InvalidArgument,
    LockTimeout,
    NotAQueue,
    QueueExists,
    QueueNotFound,
    StorageError,
    UnsafeFilesystem,
    from_os_error,
)
from fsqueue.filesystem import Filesystem, Mount, OpenTree, directories_above, mount_of, mountadvice
from fsqueue.filesystem.side_threads import SideThread
from fsqueue.format import groups, layout, names, sparse
from fsqueue.format.groups import GroupState
from fsqueue.format.layout import QueueState, Settings
from fsqueue.format.names import Batch
from fsqueue.format.replay import LEASED, ReplayState
from fsqueue.format.wording import counted
from fsqueue.interruptions import let_out, suppress
from fsqueue.protocol import all_limits, limiting, overwriting, revoking
from fsqueue.storage import (
    bells,
    group_directory,
    group_slots,
    listing,
    locked_batch,
    nested,
    queue_changes,
    remains,
    slots,
)
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.group_slots import Clocks
from fsqueue.storage.queue_changes import Locked
from fsqueue.storage.queue_file import refuse_stray_group_file
from fsqueue.storage.store import Store
from fsqueue.upkeep import collect, trash

REAPER_THREAD = "fsqueue-reaper"
"""The name of a thread that removes trash behind a call."""
CREATE_TRIES = 10
"""How often a queue is made whose directory others move away meanwhile."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is created: a queue, or a group of queues."""

    word: str
    file: str
    """The name of the file that is linked."""
    birth: Callable[[Settings, str, int], bytes]


_QUEUE = _Kind("queue", layout.SETTINGS_FILE, layout.birth_record)
_GROUP = _Kind("group of queues", groups.GROUP_FILE, groups.birth_record)


class _Moved(Exception):
    """The directory in which a queue is being made was moved away."""


def create_group(path: str, settings: Settings, *, exist_ok: bool, allow_unsafe: bool) -> None:
    """Make a group of queues whose queues begin with these settings, as `create` makes a queue."""
    create(path, settings, exist_ok=exist_ok, allow_unsafe=allow_unsafe, kind=_GROUP)
    bells.make(Filesystem(path, shared=mount_of(path).shared), path)


def create(path: str, settings: Settings, *, exist_ok: bool, allow_unsafe: bool, kind: _Kind = _QUEUE) -> None:
    """Make a queue: a complete `queue.jsonl` is written aside and linked to its name, which decides.

    A crash before the link leaves an empty directory, or one with a leftover that starts with
    `.new-`; creating again goes on from there. A deleted queue that is still in place is moved away.
    """
    for _ in range(CREATE_TRIES):
        mount = mount_of(path)
        fs = Filesystem(path, shared=mount.shared)
        try:
            _create(kind, fs, mount, path, settings, exist_ok, allow_unsafe)
            if kind is _QUEUE and allow_unsafe and mountadvice.is_unfit(mount):
                _allow_unsafe(fs, path)
            return
        except _Moved:
            continue
        except UnsafeFilesystem:
            raise
        except (OSError, FsqueueError) as error:
            let_out(error)
            if not fs.is_open() or fs.is_in_place():
                raise
    raise StorageError(
        f"Other processes delete the {kind.word} {path} as often as this one creates it. Nothing was created. Repeat."
    )


def _state_of(fs: Filesystem, path: str) -> QueueState:
    return layout.read_queue_state(sparse.content_of(fs.read_pieces(layout.settings_file(path))), path)


def _create(
    kind: _Kind, fs: Filesystem, mount: Mount, path: str, settings: Settings, exist_ok: bool, allow_unsafe: bool
) -> None:
    clock, entropy = Clock(), Entropy()
    try:
        is_new = not fs.exists(path)
        if kind.file not in fs.names(path):
            _refuse_reserved(path)
            _refuse_nested(mount, path)
        _make_and_hold(fs)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.ENOENT):
            raise
        obstacle = _in_the_way(fs, path)
        if obstacle is not None:
            raise NotAQueue(f"{obstacle}. Choose another path; nothing was changed.") from None
        if error.errno == errno.ENOENT:
            raise
        raise _Moved from None
    if kind is _QUEUE and kind.file in fs.names(path) and _state_of(fs, path).closed:
        move_away(fs, path, clock, entropy)
        _make_and_hold(fs)
    present = [name for name in fs.names(path) if not layout.is_leftover(name)]
    if kind.file in present:
        if kind is _GROUP:
            refuse_stray_group_file(fs, path)
        if exist_ok:
            _sync_name(fs, path)
            return
        raise QueueExists(
            f"There is a {kind.word} at {path} already. Use it as it is (exist_ok=True), or choose another path."
        )
    if groups.GROUP_FILE in present:
        raise NotAQueue(
            f"{path} is a group of queues. A queue in it comes into being when the first task is inserted, as by: "
            f"fsqueue insert {shlex.quote(f'{path}/NAME')}. Nothing was changed."
        )
    if present:
        remains.refuse(fs, path)
        raise NotAQueue(
            (remains.without_group(fs, path) if kind is _GROUP else None)
            or f"{path} is not empty ({present[0]!r} is in it) and holds no {kind.word}. Choose a new path; nothing "
            "was changed."
        )
    if _is_link(fs, path):
        raise NotAQueue(
            f"{path} is a symbolic link to an empty directory. A queue there could not be deleted by this path. "
            f"Nothing was changed. Create it by the path of the directory, which 'readlink -f {path}' tells."
        )
    if not is_new and fs.stat(path).st_uid not in (0, os.geteuid()):
        raise NotAQueue(
            f"{path} is an empty directory of another user, who could read and replace what is put there. Nothing was "
            "changed. Choose a new path, or have its owner create the queue."
        )
    if not allow_unsafe:
        try:
            check(fs, mount, path, clock, entropy)
        except UnsafeFilesystem:
            if not fs.is_in_place():
                raise _Moved from None
            if is_new:
                _outside_of(fs, path).remove_directory(path)
            raise
    fresh, target = f"{path}/{names.fresh(entropy.hex16())}", f"{path}/{kind.file}"
    fd = fs.create(fresh)
    try:
        now = clock.now_ms()
        unsafe = layout.unsafe_record(now) if allow_unsafe and mountadvice.is_unfit(mount) else b""
        if kind is _GROUP and fs.exists(f"{path}/{fresh.rpartition('/')[2].upper()}"):
            raise UnsafeFilesystem(
                f"The filesystem at {path} ignores case: the queues 'A' and 'a' of a group would be one. No group was "
                "created. Choose a directory that tells them apart."
            )
        place = layout.place_record(fs.place(path), now) if kind is _QUEUE else b""
        fs.write_all(fd, kind.birth(settings, entropy.hex16(), now) + place + unsafe)
        fs.fsync(fd)
        fs.link(fresh, target)
        if not fs.is_in_place():
            if kind is _QUEUE:  # it may lie in a deleted queue, which this file would bring back to life
                fs.unlink(target)
            raise _Moved  # a group may be in use by now, wherever it was moved
    except FileExistsError:
        if not exist_ok:
            raise QueueExists(
                f"Another process created a {kind.word} at {path} just now. Open it with "
                f"{'Queue' if kind is _QUEUE else 'Group'}(path)."
            ) from None
    finally:
        fs.close(fd)
        with suppress(OSError):  # no process reads it
            fs.unlink(fresh)
    try:
        _sync_name(fs, path)
    except OSError as error:
        let_out(error)
        then = (
            f"The {kind.word} was created, but a power loss may still undo that. Use it, or create it again with "
            "'exist_ok'."
        )
        raise from_os_error(error, f"creating the {kind.word} {path}", then) from error


def _make_and_hold(fs: Filesystem) -> None:
    """Make the queue's directory and open it: what follows works in this one, or learns that it was removed."""
    fs.make_root()
    if not fs.is_in_place():
        raise _Moved


def _is_link(fs: Filesystem, path: str) -> bool:
    """Return whether the last component of a path is a symbolic link."""
    try:
        return stat.S_ISLNK(_outside_of(fs, path).stat(path).st_mode)
    except OSError as error:
        let_out(error)
        return False


def _in_the_way(fs: Filesystem, path: str) -> str | None:
    """Return what keeps a directory from being made at `path`, as the beginning of a sentence.

    None if nothing does by now: another process has removed it since, or has made the directory.
    """
    try:
        mode = _outside_of(fs, path).stat(path).st_mode
    except FileNotFoundError:
        link = _dangling(fs, path)
        return None if link is None else f"{path} lies below {link}, a symbolic link that leads to no directory"
    except OSError as error:
        let_out(error)
        return f"{path} lies below something that is no directory"
    if stat.S_ISDIR(mode):
        return None
    if stat.S_ISLNK(mode):
        return f"{path} is a symbolic link that leads to no directory"
    return f"{path} is a {'file' if stat.S_ISREG(mode) else 'device, pipe or socket, and no directory'}"


def _dangling(fs: Filesystem, path: str) -> str | None:
    """Return the symbolic link that keeps a missing path from being made: the nearest there is of what is above it."""
    while path != layout.parent_of(path):
        try:
            mode = Filesystem(layout.parent_of(path), shared=fs.shared).stat(path).st_mode
        except OSError as error:
            let_out(error)
            path = layout.parent_of(path)
        else:
            return path if stat.S_ISLNK(mode) else None
    return None


def _refuse_reserved(path: str) -> None:
    """Raise InvalidArgument for a name that would have its parent taken for a queue or a group, or for what is left of
    a queue.
    """
    name = path.rpartition("/")[2]
    if groups.is_reserved(name):
        raise InvalidArgument(
            f"{name!r} is a name that fsqueue gives to files and directories of its own: what looks for queues in the "
            "directory above would be misled. Nothing was created. Choose another name."
        )


def _refuse_nested(mount: Mount, path: str) -> None:
    """Raise InvalidArgument if a path lies in a group, or in another queue's directory, which may be deleted whole."""
    group = group_directory.around(directories_above(path), refuses_strays=True)
    if group is not None:
        raise InvalidArgument(
            f"{path} lies inside the directory of the group {group}. A queue in a group comes into being when the "
            f"first task is inserted, as by: fsqueue insert {shlex.quote(f'{group}/NAME')}. Groups do not nest. "
            "Nothing was created."
        )
    outer = nested.around(path, mount.shared)
    if outer is not None:
        raise InvalidArgument(
            f"{path} lies inside the directory of the queue {outer}, and would be deleted with it. Nothing was "
            "created. Choose a path outside of it."
        )


def _sync_name(fs: Filesystem, path: str) -> None:
    """Make the queue's name durable. Its creator may have died before it did."""
    fs.sync_directory(path)
    try:
        fs.sync_directory(path.rpartition("/")[0] or "/")
    except PermissionError:
        pass  # the directory that holds the queue is another's matter


def _allow_unsafe(fs: Filesystem, path: str) -> None:
    """Record, once, that a queue may be used where it is known to be unsafe: opening it refuses that otherwise."""
    clock = Clock()
    with queue_changes.locked(fs, clock, Entropy(), path) as queue_file:
        if not queue_file.state.allows_unsafe and not queue_file.state.closed:
            queue_file.append(layout.unsafe_record(clock.now_ms()))


def check(fs: Filesystem, mount: Mount, directory: str, clock: Clock, entropy: Entropy) -> None:
    """Refuse a mount that is known to be unfit, or on which one of the quick probes fails."""
    with forks.held_off():
        from fsqueue.doctor import probes
    verdict, seen, advice = mountadvice.advice_on(mount)
    unfit = [("mount", seen, advice)]
    if verdict != mountadvice.UNFIT:
        findings = probes.quick(probes.Bench(fs, f"{directory}/.new-", clock, entropy))
        unfit = [(one.probe, one.seen, one.advice) for one in findings if one.verdict == probes.UNFIT]
    if unfit:
        raise mountadvice.refusal(
            mount,
            " ".join(mountadvice.words(*one) for one in unfit),
            f"No queue was created; 'fsqueue doctor {shlex.quote(directory)}' tells more. To create it all the same: "
            "allow_unsafe=True, --allow-unsafe.",
        )


def change_settings(store: Store, given: dict[str, Any]) -> Settings:
    """Append the settings that are not as given to `queue.jsonl`. Return the settings from then on.

    If there were no limits, and now are, they hold when this returns: all processes know of them, and each lease that
    is held has its slot.
    """
    by, epoch = user_of_this_process(), store.entropy.hex16()

    def line(state: QueueState) -> bytes | None:
        now_ms, record = store.clock.now_ms(), b""
        after, limits, changes = layout.limits_after(state.settings, state.limits, given, epoch)
        if not changes.keys().isdisjoint(layout.LIMITS):
            record += layout.limits_record(state, limits, by, now_ms)
            if state.has_group_limits:  # programs that do not know these must not lease now
                record += layout.group_mark(now_ms)
        if others := {name: getattr(after, name) for name in changes if name not in layout.LIMITS}:
            record += layout.settings_record(others, now_ms)
        return record or None

    _, limits, _ = layout.limits_after(store.settings, store.queue_state.limits, given, epoch)
    if limits is not None:
        slots.prepare(store)  # before anything is changed: root may not be able to give it to the queue's owner
    queue_changes.append(store, line)
    if store.queue_state.limits is not None:
        limiting.begin(store)
    return store.settings


def set_group_limits(group: GroupDirectory, given: dict[str, Any]) -> Settings:
    """Append the limits of a group that are not as given to its file. Return the group's settings from then on.

    If limits begin, they hold when this returns: all queues of the group are marked, all processes know of that, and
    each lease that is held in any of them has its slot.
    """
    user, epoch, by = user_of_this_process(), group.entropy.hex16(), Clocks(group.clock, group.entropy)

    def line(state: GroupState) -> bytes | None:
        after, limits, changes = layout.limits_after(state.settings, state.limits, given, epoch)
        if len(after.limit) > group_slots.FIELDS_MAX:
            raise InvalidArgument(
                f"At most {group_slots.FIELDS_MAX} fields of payloads may have a limit of a group, not "
                f"{len(after.limit)}. Nothing was changed. To end that of a field: limit.FIELD=none."
            )
        # Also where nothing was: a group whose file was written anew says so then, and its queues go on.
        return groups.limits_record(limits, user, group.clock.now_ms()) if changes or not state.had_limits else None

    state = group_slots.change(group, by, line)
    if state.limits is not None:
        all_limits.begin_in(group, by)
    else:
        group_slots.unmark_all(group, by)
    return state.settings


def pause(store: Store, reason: str | None, by: dict[str, Any]) -> bool:
    """Have no task leased from now on. Return False, with nothing changed, if the queue is paused already."""
    return queue_changes.append(
        store, lambda state: None if state.paused else layout.pause_record(reason, by, store.clock.now_ms())
    )


def resume(store: Store) -> bool:
    """Have tasks leased again, and notify idle workers. Return False if the queue was not paused."""
    by = user_of_this_process()

    def line(state: QueueState) -> bytes | None:
        if not state.paused:
            return None
        now_ms = store.clock.now_ms()
        # Programs that do not know limits, or not those of groups, must not lease now.
        mark = layout.group_mark(now_ms) if state.has_group_limits else b""
        if state.limits is not None:
            return layout.limits_record(state, state.limits, by, now_ms, resumes=True) + mark
        return layout.resume_record(now_ms) + mark

    was_paused = queue_changes.append(store, line)
    store.doorbell.ring()
    return was_paused


_PERHAPS_PURGED = (
    "The queue may be purged, and may be as it was: look at its status before you repeat the purge, which would drop "
    "what was inserted since."
)


def purge(store: Store) -> None:
    """Begin the next generation in `queue.jsonl`, in place and synced. Then rename the old tree into the trash.

    In this order, an inserter that publishes into the old tree reads the new generation, and inserts again.

    A crash in between leaves the old tree where it is; upkeep moves it.
    """
    store.refresh(now=True)
    old = store.queue_state
    with queue_changes.locked(store.fs, store.clock, store.entropy, store.path) as queue_file:
        if queue_file.state == old:  # else another process purged or deleted it just now
            begun = old.generation + 1
            overwriting.clear(store, names.generation(begun, old.id))
            try:
                queue_file.append(layout.generation_record(begun, store.clock.now_ms()))
            except OSError as error:
                let_out(error)
                if queue_file.may_differ():
                    raise store.explain(error, "purging", _PERHAPS_PURGED) from error
                raise
    # It is purged from here on. No error may say something else: a second purge would drop what comes in meanwhile.
    try:
        trash.discard(store, store.path, old.directory)
    except (OSError, FsqueueError) as error:
        let_out(error)
        collect.logger.warning("what was purged from %s is still there (%s); 'fsqueue gc' moves it", store.path, error)
    try:
        store.refresh(now=True)
    except (OSError, FsqueueError) as error:
        let_out(error)
        store.queue_file.forget()  # the next verb reads it
    store.doorbell.ring()
    reap_later(store)


def delete(store: Store, foreground: bool) -> dict[str, str]:
    """Delete a queue: mark it as closed and rename its directory, both under the lock of its `queue.jsonl`; then reap.

    With `foreground`, return what could not be removed: path to reason.

    Everything that may refuse this user comes before the mark. Where the system refuses the renaming all the same (a
    mount point, an attribute), the mark is taken back. A crash after the mark leaves a directory that counts as
    deleted, and that opening or creating a queue there moves away. Deleting must work on a full disk, too: see
    `_empty_until_marked`.
    """
    store.refresh(now=True)
    fs, path, mark = store.fs, store.path, layout.closed_record(store.clock.now_ms())
    outside = _outside_of(fs, path)
    _refuse_link(outside, path)
    if not outside.may_move(path):
        raise StorageError(_NOT_YOURS.format(path=path, parent=outside.root))
    nested.refuse_inside(fs, path)
    store.logs.close()
    with queue_changes.locked(fs, store.clock, store.entropy, path) as queue_file:
        state = queue_file.state
        if state.id != store.queue_state.id or not fs.is_in_place():
            return {}  # another process deleted it just now, and another queue is there
        try:
            marked = state.closed or _mark(queue_file, mark)
            moved = _move(outside, queue_file, store.entropy)
        except BaseException:
            if not state.closed:
                _unmark(queue_file, mark)
            raise
        if moved is not None and not marked:
            _empty_until_marked(queue_file, mark, outside, moved)
    if moved is not None and foreground:
        return _warned(trash.until_finished(lambda: trash.reap_one(outside, moved, state.id), store.clock.sleep).left)
    if moved is not None:
        _reap_later(lambda: _warned(trash.reap_one(outside, moved, state.id).left))
    return {}


def _warned(left: dict[str, str]) -> dict[str, str]:
    """Log what could not be removed of a deleted queue."""
    for path, why in left.items():
        collect.logger.warning("%s is left of the deleted queue (%s); 'fsqueue gc --trash' tries again", path, why)
    return left


_NOT_YOURS = (
    "Permission denied while deleting the queue {path}: this user may not rename its directory. Nothing was changed. "
    "Ask a user who may write to {parent}; where that is sticky, the user must own the queue's directory or {parent}. "
    "purge drops what is in the queue."
)


def _refuse_link(outside: Filesystem, path: str) -> None:
    """Raise InvalidArgument if a link leads to the queue: to rename it would leave the queue where it is."""
    try:
        is_directory = stat.S_ISDIR(outside.stat(path).st_mode)
    except FileNotFoundError:
        raise QueueNotFound(f"There is no queue at {path} any more: it was deleted, or moved.") from None
    if not is_directory:
        raise InvalidArgument(
            f"{path} is a symbolic link to the directory of a queue. Nothing was changed. Delete the queue by the path "
            f"of its directory, which 'readlink -f {path}' tells."
        )


def _mark(queue_file: Locked, mark: bytes) -> bool:
    """Append the mark to `queue.jsonl`; False if there is no room for it."""
    try:
        queue_file.append(mark)
        return True
    except OSError as error:
        if error.errno not in FULL:
            raise
        return False


def _unmark(queue_file: Locked, mark: bytes) -> None:
    """Blank the mark out of `queue.jsonl`: a queue that could not be deleted is one still."""
    fs, path = queue_file.fs, os.path.dirname(queue_file.path)
    if not fs.is_in_place():
        return  # it was moved away after all, and is proven to be trash by its mark
    try:
        fd = fs.look(layout.settings_file(path), os.O_RDWR)  # that of `queue_file` can only append
        try:
            pieces = fs.all_pieces(fd)
            if fs.same_file(queue_file.fd, layout.settings_file(path)) and sparse.content_of(pieces).endswith(mark):
                fs.pwrite(fd, b" " * (len(mark) - 1), sparse.end_of(pieces) - len(mark))
                fs.fsync(fd)
        finally:
            fs.close(fd)
    except OSError as error:
        let_out(error)
        collect.logger.warning("the queue %s counts as deleted, but it is still in place: %s", path, error)


def _move(outside: Filesystem, queue_file: Locked, entropy: Entropy) -> str | None:
    """Rename a queue's directory to that of a deleted queue; return its path then, or None if another did.

    Under the lock of its `queue.jsonl`. Where that is afterwards tells what happened: a renaming may be reported as
    failed on NFS, and another directory may have been put in place of the queue's.
    """
    path = os.path.dirname(queue_file.path)
    target = f"{outside.root.rstrip('/')}/{names.deleted(queue_file.state.id, entropy.hex16())}"
    renamed = outside.rename(path, target)
    if _holds(outside, target, queue_file.fd):
        return target
    if renamed:
        outside.rename(target, path)
        raise StorageError(
            f"Another directory has the name {path} now. It was not changed. Find the queue's directory, and delete "
            "that."
        )
    return None


def _holds(outside: Filesystem, directory: str, fd: int) -> bool:
    try:
        return outside.same_file(fd, layout.settings_file(directory))
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        return False


REAPED_AT_ONCE = 64
"""On a full disk: number of names that are removed before the mark is tried again."""


def _empty_until_marked(queue_file: Locked, mark: bytes, outside: Filesystem, moved: str) -> None:
    """Remove files of a queue that was moved away without its mark, until there is room for that, or nothing is left.

    Deleting is how users make room. That this process has moved the directory is the proof, for itself. If it dies
    before the mark is there, nothing proves any more that the directory is trash: `gc --trash` names it, and leaves it.
    """

    def is_the_one(tree: OpenTree) -> bool:
        content = tree.read(layout.SETTINGS_FILE)
        return content is not None and layout.read_queue_state(content, moved).id == queue_file.state.id

    try:
        while not _mark(queue_file, mark) and outside.remove_tree(
            moved, is_the_one, layout.SETTINGS_FILE, REAPED_AT_ONCE
        ):
            pass
    except (OSError, FsqueueError) as error:
        let_out(error)
        collect.logger.warning("%s is left of the deleted queue: %s", moved, error)


def finish_deletion(path: str) -> None:
    """Move a closed queue away that its deleter left in place; if we may not, it stays closed."""
    try:
        move_away(Filesystem(path, shared=mount_of(path).shared), path, Clock(), Entropy())
    except (OSError, FsqueueError) as error:
        let_out(error)
        collect.logger.info("the deleted queue %s is still in place: %s", path, error)


def move_away(fs: Filesystem, path: str, clock: Clock, entropy: Entropy) -> None:
    """Rename a closed queue's directory, under the lock of its `queue.jsonl`: else another might be there since."""
    outside = _outside_of(fs, path)
    if names.parse_deleted(path.rpartition("/")[2]) is not None:
        return  # it was moved away before
    _refuse_link(outside, path)
    nested.refuse_inside(fs, path)
    try:
        with queue_changes.locked(fs, clock, entropy, path) as queue_file:
            if queue_file.state.closed and fs.is_in_place():
                _move(outside, queue_file, entropy)
    except FileNotFoundError:
        pass  # another process did


def _outside_of(fs: Filesystem, path: str) -> Filesystem:
    """Return the directory that holds a queue."""
    return Filesystem(layout.parent_of(path), shared=fs.shared)


def reap_later(store: Store) -> None:
    """Reap a queue's own trash in the background; what it leaves goes with the next reaping."""
    _reap_later(partial(trash.reap_own, store.fs, store.path, store.queue_state.id))


def _reap_later(reap: Callable[[], object]) -> None:
    """Reap trash in a thread. What remains, because the process ends or the system has no thread, gc removes."""
    with suppress(OSError):
        SideThread(REAPER_THREAD, reap).start()


def release_all(
    store: Store, worker: str | None, host: str | None, slurm_job: str | None, job: str | None, offline: bool
) -> int:
    """End the leases of matching workers: on a host or Slurm's node, in a job or an element of an array of jobs.

    Tasks that move to another queue are left alone, unless `worker` names that move: the other queue may have them.
    """

    def chosen(replay_state: ReplayState, index: int) -> bool:
        holder = replay_state.holder[index]
        if holder is not None and holder.move is not None and worker is None:
            return False
        info = (holder.worker if holder is not None else None) or {}
        return (
            (worker is None or str(info.get("name")) == worker)
            and (host is None or host in (str(info.get("host")), str(info.get("slurm_node"))))
            and (slurm_job is None or ("slurm_job" in info and is_in_job(info, slurm_job)))
            and (job is None or is_in_job(info, job))
        )

    return release(store, chosen, offline)


def release(store: Store, chosen: Callable[[ReplayState, int], bool], offline: bool = False) -> int:
    """End the chosen leases in every batch at work. What stays busy is named after the rest is done.

    Batches that are locked share the time of one lock to wait; with `offline` none is waited for.
    """
    store.refresh(now=True)
    released = 0

    def act(batch: Batch, wait_s: float) -> None:
        nonlocal released
        released += revoking.revoke(store, batch, chosen, wait_s)

    try:
        held = (
            batch
            for batch, replay_state in listing.at_work(store, read=listing.read_present_state)
            if any(lease_holds(replay_state, index, chosen) for index in range(replay_state.count))
        )
        busy = list(locked_batch.for_each_batch(store, held, act, 0.0 if offline else None))
    except (OSError, FsqueueError) as error:
        let_out(error)
        failure = store.explain(
            error, "releasing leases", f"Leases released: {released}. Repeat the call for the rest."
        )
        raise failure from error if isinstance(error, OSError) else error.__cause__
    finally:
        store.doorbell.ring()
    if busy:
        what = (
            "workers are at work on them. Repeat it without 'offline'"
            if offline
            else "the processes that hold the locks are stopped or cut off. Repeat it later"
        )
        raise LockTimeout(
            f"Leases released: {released}. But {counted(len(busy), 'batch', 'batches')} stayed locked "
            f"({busy[0]}, ...): {what}."
        )
    return released


def lease_holds(replay_state: ReplayState, index: int, chosen: Callable[[ReplayState, int], bool]) -> bool:
    """Return whether a task is leased, in time or not, by a chosen worker."""
    return (
        replay_state.holder[index] is not None and replay_state.state[index] == LEASED and chosen(replay_state, index)
    )
