"""The real code, wired to a simulated world: the filesystem layer's own functions over another `os`.

What the package asks of the machine besides files (mounts, host names, reaper threads)
is answered for the process that is acting.
"""

from __future__ import annotations

import builtins
import errno
import gc
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from threading import get_ident
from typing import Any
from unittest import mock

import fsqueue.fsck  # noqa: F401 - a verb would import it on a simulated machine, and take parts of that for the real one
from fsqueue import administration, forks, several_queues
from fsqueue.clock import Clock, Entropy
from fsqueue.filesystem import Filesystem, Mount, OpenTree, beneath, operations, resources, trees
from fsqueue.filesystem.beneath import DIRECTORY_FLAGS
from fsqueue.filesystem.rooted import Rooted, Stamp, stamp_of
from fsqueue.filesystem.trees import Proof
from fsqueue.format.layout import read_queue_state
from fsqueue.groups import barriers, drain_check, group, group_source
from fsqueue.protocol import waiting
from fsqueue.storage import absence, group_directory, nested, open_logs, queue_file, store
from tests.garbage import collect_and_keep
from tests.simulation import slurm
from tests.simulation.disk import Directory
from tests.simulation.kernel import Process

_DEPTH = forks.depth
SHARED, LOCAL = Mount("nfs4", "/", "rw"), Mount("ext4", "/", "rw")


PAUSES_S = (0.002, 0.5)
"""Between two tries for a busy lock: longer than in earnest, since each try costs a step."""


alive: weakref.WeakSet[SimFilesystem] = weakref.WeakSet()
"""What there is of worlds, also of those whose stories are over."""


class SimFilesystem(Filesystem):
    """The filesystem layer, over the `os` of the process that acts."""

    def __init__(self, root: str, process: Process, shared: bool) -> None:
        super().__init__(root, shared=shared)
        alive.add(self)
        self.pauses_s = PAUSES_S
        self.try_lock, self.unlock, self.close = process.try_lock, process.unlock, self._close
        self.is_locked, self.drop = process.is_locked, _dropping(process)
        self.at_once = _one_after_the_other
        self._process = process
        self._top: Directory | None = None

    def _close(self, fd: int) -> None:
        try:
            self._process.close(fd)
        except OSError as error:
            self._disown(fd)
            resources.refuse_unopened(error)
        else:
            self._disown(fd)

    def _disown(self, fd: int) -> None:
        # Behind it: the real close does both in one step, and is interrupted before or after it. A finalizer may close
        # a file of an earlier world, in which descriptors have the same numbers: that leaves the record alone.
        entry = resources.this_thread.owned.fds.get(fd)
        if entry is not None and entry.by is self:
            resources.disown(fd)

    def close_root(self) -> None:
        self._top = None

    def open_root_in(self, holder: Rooted) -> None:
        """By its path, at the first use: nobody plants links here."""

    def watch(self, path: str, fd: int) -> Callable[[], int]:
        self.close(fd)
        return lambda: self.size_on_server(path)

    def size_on_server(self, path: str) -> int:
        directory, _, name = path.rpartition("/")
        return int(self._process.stat(name, dir_fd=self._directory(directory)).st_size)

    def is_open(self) -> bool:
        return self._top is not None

    @property
    def device(self) -> int:
        return 0  # there is one disk

    def is_in_place(self) -> bool:
        try:
            return self._process.directory(self.root) is self._directory(self.root)
        except OSError:
            return False

    def stamp_at(self, path: str) -> Stamp | None:
        try:
            return stamp_of(self._process.stat(path))  # type: ignore[arg-type]
        except OSError:
            return None

    def place(self, path: str) -> None:
        """Nobody copies directories here."""

    def _directory(self, path: str) -> Directory:
        """The directory at a path, from that of the root on which the first use found."""
        below = self._below
        inside = path[len(below) :] if path.startswith(below) else self._inside(path)
        top = self._top
        if top is None:
            top = self._top = self._process.directory(self.root)
        return self._process.directory(inside, top) if inside else top

    def _open(self, path: str, flags: int) -> int:
        below = self._below
        inside = path[len(below) :] if path.startswith(below) else self._inside(path)
        top = self._top or self._directory(self.root)
        fd: int = self._process.open(inside, flags, dir_fd=top)
        resources.this_thread.owned.fds[fd] = resources.Entry(self)
        return fd

    def _holder(self, path: str) -> _Holder:  # type: ignore[override]
        if path == self.root:
            return _Holder(self._directory(path), ".")
        directory, _, name = path.rpartition("/")
        return _Holder(self._directory(directory), name)

    def _list(self, directory: str) -> list[str]:
        names: list[str] = self._process.listdir(self._directory(directory))
        return names

    def _walk_to(self, path: str) -> int:
        within = self._open(self.root, DIRECTORY_FLAGS)
        for name in self._inside(path).split("/"):
            try:
                inner = self._process.open(name, DIRECTORY_FLAGS, dir_fd=within)
            finally:
                self._process.close(within)
            within = inner
        return within

    def may_move(self, path: str) -> bool:
        """All is one user's here."""
        return True

    def remove_tree(
        self, path: str, proof: Proof | None = None, last: str | None = None, most: int | None = None
    ) -> int:
        """By paths: nobody plants links here."""
        removed = 0
        try:
            if proof is not None and not proof(_PathTree(self, path)):
                return 0
            with operations.os.scandir(path) as entries:
                for entry in entries:
                    if most is not None and removed >= most:
                        return removed
                    if entry.is_dir():
                        removed += self.remove_tree(entry.path, most=None if most is None else most - removed)
                    elif entry.name != last:
                        removed += self.unlink(entry.path)
            if most is not None and removed >= most:
                return removed
            if last is not None and self.names(path) == [last]:
                removed += self.unlink(f"{path}/{last}")
            operations.os.rmdir(path)
            return removed + 1
        except FileNotFoundError:
            return removed
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ESTALE):
                return removed
            raise


def _dropping(process: Process) -> Callable[[int], None]:
    """Return what closes a process's file whose owner is let go of.

    The record of owners (`resources.Kept`) has it, and lives as long as Python. So it does not hold the process, with
    which all of its world would live on: a later test would meet the files of that.
    """
    weakly = weakref.ref(process)

    def drop(fd: int) -> None:
        if (alive := weakly()) is not None:
            with suppress(OSError):
                alive.close(fd)

    return drop


def _one_after_the_other(calls: Sequence[Callable[[], object]]) -> None:
    """What the layer does in threads: here a thread is a process. A crash between two leaves the same as in earnest."""
    for call in calls:
        call()


class _Holder:
    """A directory by whose names alone it is used: nothing is asked to hold it, and it is no step."""

    __slots__ = ("directory", "name")

    def __init__(self, directory: Directory, name: str) -> None:
        self.directory, self.name = directory, name

    def __enter__(self) -> tuple[Directory, str]:
        return self.directory, self.name

    def __exit__(self, *error: object) -> None:
        pass


class _PathTree(OpenTree):
    """A directory by its path, for a look before it is removed."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self._fs, self._path = fs, path

    def names(self) -> list[str]:
        return self._fs.names(self._path)

    def read(self, name: str) -> bytes | None:
        try:
            return self._fs.read(f"{self._path}/{name}")
        except FileNotFoundError:
            return None


class Persona:
    """Who acts: a process, with its clock, its randomness and its name."""

    def __init__(
        self, process: Process, clock: Clock, entropy: Entropy, shared: bool, worker: dict[str, Any] | None = None
    ) -> None:
        self.process, self.clock, self.entropy, self.shared = process, clock, entropy, shared
        self.depth = 0
        """How many forks lie between its first process and the present one."""
        number = sum(process.name.encode())
        self.worker = worker or {"host": process.host.name, "pid": number}

    def filesystem(self, root: str) -> SimFilesystem:
        return SimFilesystem(root, self.process, self.shared)


_stage: list[Persona | None] = [None]
"""Who is acting. One moves at a time, whatever thread he is in."""


def me() -> Persona:
    """Who is acting."""
    persona = _stage[0]
    assert persona is not None
    return persona


def on_stage() -> Persona | None:
    """Who is acting, if anybody."""
    return _stage[0]


def take_stage(persona: Persona | None) -> None:
    """Let this one act from here on: the filesystem layer's `os` is that of its process."""
    _stage[0] = persona
    forks.depth = _DEPTH + (0 if persona is None else persona.depth)


def begin_anew() -> None:
    """Have this thread know nothing of an earlier world: what it has open there, and which queue had its turn."""
    owned = resources.this_thread.owned
    owned.fds.clear()
    owned.sections.clear()
    owned.fresh.clear()
    vars(several_queues._turns).clear()


_tellers: set[int] = set()
"""The threads that tell stories. All others live in the real world, also while a story is told."""


def tells() -> bool:
    """Return whether this thread tells a story."""
    return get_ident() in _tellers


def tell_here() -> None:
    """Let this thread tell stories for as long as it lives."""
    _tellers.add(get_ident())


@contextmanager
def _telling_here() -> Iterator[None]:
    """Let this thread tell stories while this lasts."""
    is_outermost = get_ident() not in _tellers
    tell_here()
    try:
        yield
    finally:
        if is_outermost:
            _tellers.remove(get_ident())
            begin_anew()
            take_stage(None)


class _OsOfThread:
    """The filesystem layer's `os`: that of the process that acts, in a thread that tells a story; else the real one.

    An earlier test may have left a thread that still reads a queue or removes one. Its calls would count as steps of
    the story, take turns in it, and make a seed mean another story.
    """

    def __getattr__(self, name: str) -> Any:
        persona = _stage[0]
        return getattr(os if persona is None or get_ident() not in _tellers else persona.process, name)


def _for_tellers(module: Any, name: str, instead: Any) -> Any:
    """Return what answers a thread that tells stories with `instead`, and others as the package does."""
    real = getattr(module, name, None) or getattr(builtins, name)
    if not callable(real):
        return instead

    def answer(*args: Any, **kwargs: Any) -> Any:
        return (instead if get_ident() in _tellers else real)(*args, **kwargs)

    return answer


@contextmanager
def acting(persona: Persona) -> Iterator[None]:
    """What happens inside is done by this one."""
    before = _stage[0]
    take_stage(persona)
    try:
        yield
    finally:
        take_stage(before)


class _NoThread:
    """A reaper that dies before it begins: what it leaves is `gc`'s."""

    def __init__(self, *args: Any) -> None:
        pass

    def start(self) -> None:
        pass


def _mount(path: str) -> Mount:
    return SHARED if me().shared else LOCAL


def _filesystem(root: str, **_: Any) -> SimFilesystem:
    return me().filesystem(root)


_MACHINE: list[tuple[Any, str, Callable[..., Any] | object]] = [
    *((module, "os", _OsOfThread()) for module in (operations, beneath, trees, resources)),
    (beneath, "openat2_works", lambda: False),
    (queue_file, "read_queue_state", lru_cache(maxsize=1000)(read_queue_state)),
    (store, "mount_of", _mount),
    (store, "Filesystem", _filesystem),
    (nested, "Filesystem", _filesystem),
    (absence, "Filesystem", _filesystem),
    (group_directory, "Filesystem", _filesystem),
    (group_directory, "mount_of", _mount),
    *(
        (module, "Clock", lambda: me().clock)
        for module in (group_directory, waiting, drain_check, group_source, group, barriers)
    ),
    *((module, "Entropy", lambda: me().entropy) for module in (group_directory, waiting)),
    (open_logs, "beside", lambda logs: []),
    (store, "Clock", lambda: me().clock),
    (store, "Entropy", lambda: me().entropy),
    (store, "worker_of_this_process", lambda name=None: me().worker),
    (store, "boot_id", lambda: f"boot {me().process.world.disk.boots}"),
    (administration, "mount_of", _mount),
    (administration, "Filesystem", _filesystem),
    (administration, "Clock", lambda: me().clock),
    (administration, "Entropy", lambda: me().entropy),
    (administration, "check", lambda *about: None),
    (administration, "SideThread", _NoThread),
]


@contextmanager
def simulated_machine() -> Iterator[None]:
    """While this lasts, the package meets simulated machines only, in this thread and in those of the workers."""
    with ExitStack() as stack:
        stack.enter_context(_telling_here())
        for module, name, instead in (*_MACHINE, *slurm.MACHINE):
            is_builtin = name not in vars(module)
            patched = mock.patch.object(module, name, _for_tellers(module, name, instead), create=is_builtin)
            stack.enter_context(patched)
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """The same, for many worlds one after the other: nothing is logged, and `collect` is called when it is time to.

    What the garbage collector would close, it would close at another moment each time.
    """
    is_outermost = gc.isenabled()
    if is_outermost:
        gc.disable()
        # What is there before, as caches of cases, need not be looked through each time. Not within another one: the
        # world that is told of there would stay when it is over, and later tests would meet its files.
        collect_and_keep()
    logging.disable(logging.WARNING)
    try:
        with simulated_machine():
            yield
    finally:
        logging.disable(logging.NOTSET)
        if is_outermost:
            gc.enable()


def collect(told: int) -> None:
    """Between two worlds: `told` says how many there were."""
    if not told % 100:
        gc.collect()
