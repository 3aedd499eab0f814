"""Check names: what does not belong into the tree, lies in the wrong place, or was left behind; and named commits."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from functools import partial

from fsqueue.errors import LockTimeout
from fsqueue.filesystem import PassingOverStrays
from fsqueue.format import names, sparse
from fsqueue.format.layout import CANCELLED_FILE, RESULTS, SETTINGS_FILE, is_doctor_directory, read_queue_state
from fsqueue.format.models import GcReport
from fsqueue.format.names import Uuid
from fsqueue.fsck.findings import Suspect, found, guarded
from fsqueue.fsck.repair import WAIT_S, Repair
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage import commits, counters, nested, payloads, retrying, staging
from fsqueue.storage.store import Store
from fsqueue.upkeep import collect, trash

TREE_LEVELS = 3
"""A generation, its parts, their shards."""
PARTS = ("queue", "movements", "completions", "dead", "history", "payloads", "commits", "staging", "nodes", "limits")


def check(store: Store, repair: Repair) -> Iterator[Suspect]:
    """Yield all that the names tell, from the top down."""
    yield from _Places(store, repair).all()


class _Places:
    def __init__(self, store: Store, repair: Repair) -> None:
        self.store = store
        self.repair = repair
        self.layout = store.layout
        self.linked: list[str] = []
        """Files to which the queue appends, if they have a second name."""
        base, days = self.layout.base, self.layout.history_days
        parts = (self.layout.logs, f"{base}/completions", f"{base}/dead", days, f"{base}/nodes", f"{base}/limits")
        self.epochs = {*store.queue_state.key_epochs[:2]}
        below = (f"{part}/" for part in (*parts, *map(self.layout.keys, self.epochs)))
        self.appended = (self.layout.cancelled, *below)
        """How the paths of files begin to which the queue appends."""
        self.shards = set(names.all_shards(self.layout.shards))

    def all(self) -> Iterator[Suspect]:
        layout = self.layout
        parts = {
            self.store.path: self._top(),
            layout.base: self._walk(layout.base, _part),
            # Logs before task files: to put a file in its place makes a log, where the batch's own would then not fit.
            layout.logs: self._shards(layout.logs, self._log),
            layout.tasks: self._shards(layout.tasks, self._task_file),
            f"{layout.base}/completions": self._walk(f"{layout.base}/completions", _number),
            layout.dead_letters: self._letters(),
            layout.history_days: self._history(),
            layout.payload_days: self._payloads(),
            layout.staging: self._staging(),
            layout.nodes: self._walk(layout.nodes, lambda name: "file" if names.is_node_file(name) else None),
            layout.limits: self._walk(layout.limits, lambda name: "file" if names.is_slot_file(name) else None),
            f"{layout.base}/keys": self._keys(),
            layout.commits: self._commits(),
        }
        for place, suspects in parts.items():
            yield from guarded(self.store, place, suspects)
        for path in self.linked:  # last: a log that a repair has linked into its shard has one name again by now
            yield Suspect(found(self.store, "linked-file", path), partial(self._is_linked, path), lambda: None)

    def _is_linked(self, path: str) -> bool:
        """Return whether a file has a second name, by a revalidating open."""
        fs = self.store.fs
        try:
            with fs.closing(fs.look(path)) as fd:
                return fs.fstat(fd).st_nlink > 1
        except FileNotFoundError:
            return False

    def _history(self) -> Iterator[Suspect]:
        days = self.layout.history_days
        yield from self._walk(days, lambda name: "directory" if names.parse_day(name) else None)
        for day in self.store.fs.names(days):
            if names.parse_day(day):
                yield from self._walk(f"{days}/{day}", self._history_file)

    def _history_file(self, name: str) -> str | None:
        return "file" if names.parse_settled_file(name, self.layout.shards) is not None else self._shard_file(name)

    def _payloads(self) -> Iterator[Suspect]:
        days = self.layout.payload_days
        yield from self._walk(days, lambda name: "directory" if names.parse_day(name) else None)
        for day in payloads.days(self.store):
            yield from self._walk(
                self.layout.payloads(day), lambda name: "file" if names.parse_task_file(name) is not None else None
            )

    def _letters(self) -> Iterator[Suspect]:
        directory = self.layout.dead_letters
        for name, kind in self.store.fs.entries(directory):
            path = f"{directory}/{name}"
            if kind == "file" and names.parse_successor(name, self.layout.shards) is not None:
                yield from self._old(path, "staged-file", partial(collect.reap_successors, self.store))
            else:
                yield from self._kind(path, kind, self._shard_file(name))

    def _keys(self) -> Iterator[Suspect]:
        for directory in map(self.layout.keys, self.epochs):
            yield from self._walk(directory, lambda name: "directory" if name in self.shards else None)
            for shard in names.all_shards(self.layout.shards):
                yield from self._walk(f"{directory}/{shard}", partial(self._key_file, shard))

    def _key_file(self, shard: names.Shard, name: str) -> str | None:
        digest = names.parse_key_file(name)
        return "file" if digest is not None and self.layout.shard(digest) == shard else None

    def _commits(self) -> Iterator[Suspect]:
        yield from self._walk(self.layout.commits, _record)
        yield from self._walk(self.layout.pending, lambda name: "file" if names.parse_proposal_file(name) else None)
        yield from _named_commits(self.store, self.repair)

    # -- the top ----------------------------------------------------------------------------------

    def _top(self) -> Iterator[Suspect]:
        fs, top = self.store.fs, self.store.path
        for name, kind in fs.entries(top):
            path = f"{top}/{name}"
            if name in ("queue.jsonl", "doorbell"):
                yield from self._kind(path, kind, "file")
            elif (
                is_doctor_directory(name)
                or name in (trash.OWN, ".quarantine", RESULTS, self.store.queue_state.directory)
                or (name.startswith(trash.BESIDE) and self._is_trash(name.removeprefix(trash.BESIDE)))
            ):
                yield from self._kind(path, kind, "directory")
                if path == self.layout.quarantine and kind == "directory":
                    yield from self._inside(path)
            elif names.is_fresh(name) and kind == "file":
                yield from self._old(path, "new-file", partial(fs.unlink, path))
            elif names.parse_generation(name) is not None and kind == "directory" and nested.inside(fs, path):
                yield from self._inside(path)
            elif collect.over(self.store, name) and kind == "directory":
                yield Suspect(
                    found(self.store, "old-generation", path),
                    partial(self._stays, path),
                    self._clear_generations,
                )
            elif names.parse_generation(name) is not None:
                yield Suspect(
                    found(self.store, "stray", path, note="a generation that does not exist"),
                    partial(self._never_began, path, kind),
                    partial(self.repair.generation, path),
                )
            else:
                yield from self._kind(path, kind, None)
        yield from self._walk(self.layout.trash, lambda name: "directory" if self._is_trash(name) else None)
        for path in self._trees():
            yield from self._inside(path)
        trees = [path for path in self._trees() if nested.inside(fs, path) is None]
        if trees:
            yield Suspect(
                found(self.store, "trash", self.layout.trash, note=f"{len(trees)} trees"),
                self._abandoned_trash,
                self._reap,
            )

    def _is_trash(self, name: str) -> bool:
        return trash.is_ours(name, self.store.queue_state.id)

    def _trees(self) -> list[str]:
        return trash.own_trees(self.store.fs, self.store.path, self.store.queue_state.id)

    def _reap(self) -> None:
        trash.reap_own(self.store.fs, self.store.path, self.store.queue_state.id)

    def _never_began(self, path: str, kind: str) -> bool:
        """Return whether it is no generation, and no process is beginning it: overwriting makes the directory first."""
        try:
            with self.store.locked_existing(self.layout.settings_file, WAIT_S) as file:
                current = read_queue_state(
                    sparse.content_of(self.store.fs.all_pieces(file.fd)), self.store.path
                ).directory
        except LockTimeout:
            return False
        except PermissionError:  # this user may only look
            current = self.store.queue_state.directory
        return path.rpartition("/")[2] != current and self._is(path, kind)

    def _clear_generations(self) -> None:
        collect.generations(self.store, GcReport())
        self._reap()

    def _abandoned_trash(self) -> bool:
        """Return whether there is trash that no process is reaping: nothing of it goes for a moment."""
        before = self._traces()
        self.store.clock.sleep(GRACE_S)
        return bool(before) and self._traces() == before

    def _traces(self) -> dict[str, int]:
        """Return when directories of the trees in the trash were last changed, down to where a generation has its
        files.
        """
        fs = self.store.fs
        traces: dict[str, int] = {}
        level = [path for path in self._trees() if nested.inside(fs, path) is None]
        for _ in range(TREE_LEVELS):
            for path in level:
                with suppress(FileNotFoundError):
                    traces[path] = fs.stat(path).st_mtime_ns
            level = [f"{path}/{name}" for path in level for name, kind in fs.entries(path) if kind == "directory"]
        return traces

    # -- shards -----------------------------------------------------------------------------------

    def _shards(self, part: str, right: Callable[[str, str, str], Suspect | None]) -> Iterator[Suspect]:
        """Yield the directories of the shards; what lies in the wrong one is moved before anything is checked."""
        fs = self.store.fs
        for shard, kind in fs.entries(part):
            directory = f"{part}/{shard}"
            if kind != "directory":
                yield from self._kind(directory, kind, "directory" if shard in self.shards else None)
                continue
            entries = fs.entries(directory)
            if _SETTINGS in entries and nested.inside(fs, directory):
                yield from self._inside(directory)
                continue
            for name, inside in entries:
                path = f"{directory}/{name}"
                suspect = right(shard, name, path) if inside == "file" else None
                if suspect is not None:
                    yield suspect
                elif shard in self.shards:
                    known = names.parse_task_file(name) if part == self.layout.tasks else names.parse_log_file(name)
                    yield from self._kind(path, inside, "file" if known else None)
            if shard not in self.shards:
                yield from self._kind(directory, kind, None)

    def _task_file(self, shard: str, text: str, path: str) -> Suspect | None:
        name = names.parse_task_file(text)
        if name is None or self.layout.shard(name.batch) == shard:
            return None
        return self._misplaced(path, name.tasks, lambda: self.repair.file_to_its_shard(path, name))

    def _log(self, shard: str, text: str, path: str) -> Suspect | None:
        uuid = names.parse_log_file(text)
        if uuid is None or self.layout.shard(uuid) == shard:
            return None
        return self._misplaced(path, 0, lambda: self.repair.log_to_its_shard(path, uuid))

    def _misplaced(self, path: str, tasks: int, mend: Callable[[], object]) -> Suspect:
        return Suspect(found(self.store, "wrong-shard", path, tasks), lambda: self._is(path, "file"), mend)

    # -- staging ----------------------------------------------------------------------------------

    def _staging(self) -> Iterator[Suspect]:
        fs = self.store.fs
        waiting = retrying.pending(self.store)
        for name, kind in fs.entries(self.layout.staging):
            path = f"{self.layout.staging}/{name}"
            if kind != "file" or is_attempt(name):
                yield from self._kind(path, kind, "directory" if is_attempt(name) else None)
            elif name in waiting:
                count = getattr(names.parse_task_file(name), "count", 0)
                yield Suspect(
                    found(self.store, "pending-retry", path, count),
                    partial(self._is_pending, name),
                    partial(retrying.publish_pending, self.store),
                )
            elif names.parse_task_file(name) is None and not names.is_passing(name):
                yield from self._kind(path, kind, None)
            else:
                yield from self._old(path, "staged-file", partial(collect.reap_staged, self.store, name))

    def _is_pending(self, name: str) -> bool:
        """Return whether a retry has staged it and no process is about to publish it.

        The lock is asked for first: a process that gives it up has published the file, or died. Asked for afterwards,
        it would not be held either by one that publishes it between the two looks.
        """
        path = f"{self.layout.staging}/{name}"
        return not staging.is_held(self.store, path) and name in retrying.pending(self.store)

    def _old(self, path: str, kind: str, mend: Callable[[], object]) -> Iterator[Suspect]:
        """Yield a file that no process has written to for a day."""

        def is_old() -> bool:
            return collect.is_abandoned(self.store, path)

        if is_old():
            yield Suspect(found(self.store, kind, path), is_old, mend)

    # -- anything ---------------------------------------------------------------------------------

    def _walk(self, directory: str, wanted: Callable[[str], str | None]) -> Iterator[Suspect]:
        entries = self.store.fs.entries(directory)
        if _SETTINGS in entries and nested.inside(self.store.fs, directory):
            yield from self._inside(directory)
            return
        for name, kind in entries:
            yield from self._kind(f"{directory}/{name}", kind, wanted(name))

    def _shard_file(self, name: str) -> str | None:
        return "file" if name.endswith(".jsonl") and name.removesuffix(".jsonl") in self.shards else None

    def _kind(self, path: str, kind: str, wanted: str | None) -> Iterator[Suspect]:
        """Report a name whose file is not of the kind `wanted` (None: no file is wanted there)."""
        if kind == wanted or path.rpartition("/")[2].startswith(".nfs"):
            if wanted == "file" and (path == self.layout.doorbell or path.startswith(self.appended)):
                with suppress(FileNotFoundError):
                    if self.store.fs.stat(path).st_nlink > 1:
                        self.linked.append(path)
            return
        if kind == "directory" and nested.inside(self.store.fs, path):
            yield from self._inside(path)
            return
        if kind == "link" and wanted and f"{path}/".startswith(f"{self.layout.base}/"):
            count = getattr(names.parse_task_file(path.rpartition("/")[2]), "tasks", 0)
            yield Suspect(found(self.store, "hidden-file", path, count), lambda: self._is(path, kind), lambda: None)
            return
        what = "link" if kind == "link" else "in-the-way" if wanted else "stray"
        yield Suspect(
            found(self.store, what, path, note="" if kind == "file" else f"a {_WORDS[kind]}"),
            lambda: self._is(path, kind),
            lambda: self.repair.quarantine.move(path),
        )

    def _inside(self, path: str) -> Iterator[Suspect]:
        """Tell of a queue in a directory that would else be moved or removed. It is left alone."""
        inner = nested.inside(self.store.fs, path)
        if inner is not None:
            yield Suspect(
                found(self.store, "queue-inside", inner),
                lambda: nested.inside(self.store.fs, path) is not None,
                lambda: None,
            )

    def _is(self, path: str, kind: str) -> bool:
        try:
            mode = self.store.fs.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        return kind == _KINDS.get(stat.S_IFMT(mode), "other")

    def _stays(self, path: str) -> bool:
        self.store.clock.sleep(GRACE_S)
        return self._is(path, "directory")


_SETTINGS = (SETTINGS_FILE, "file")
"""What makes another queue of a directory, also of one that this queue needs."""
_KINDS = {stat.S_IFLNK: "link", stat.S_IFDIR: "directory", stat.S_IFREG: "file"}
_WORDS = {"link": "symbolic link", "directory": "directory", "other": "pipe, socket or device"}


def _part(name: str) -> str | None:
    if name == CANCELLED_FILE:
        return "file"
    return "directory" if name in PARTS or names.parse_key_epoch(name) is not None else None


def _record(name: str) -> str | None:
    if name == "pending":
        return "directory"
    return "file" if names.parse_record_file(name) or names.parse_ballot_file(name) else None


def _number(name: str) -> str | None:
    return "file" if name in counters.NUMBERS else None


GRACE_S = 2.0
"""Seconds that a file which no process has locked may take before it counts as left behind."""


def _named_commits(store: Store, repair: Repair) -> Iterator[Suspect]:
    """Yield named commits that may be wrong: decided and not published, left behind by dead processes, damaged.

    Check proposals, then attempts, then records.
    """
    fs, layout = store.fs, store.layout
    for identity in commits.proposals(store, layout):
        with PassingOverStrays():  # `places` tells of them; what they may hide is not given up
            yield from _proposal(store, identity)
    for name in fs.names(layout.commits):
        ballot = names.parse_ballot_file(name)
        if ballot is not None and collect.is_abandoned(store, layout.ballot(ballot)):
            path, mend = layout.ballot(ballot), partial(collect.reap_ballot, store, name)
            yield Suspect(found(store, "stale-proposal", path), partial(_has_no_proposal, store, ballot), mend)
    for name, kind in fs.entries(layout.staging):
        if kind == "directory" and is_attempt(name):
            yield from _attempt(store, name)
    for name, kind in fs.entries(layout.commits):
        commit = names.parse_record_file(name)
        if kind == "file" and commit is not None:
            path = f"{layout.commits}/{name}"
            is_damaged = partial(_is_damaged, store, path, commit)
            if is_damaged():
                yield Suspect(found(store, "damaged-record", path), is_damaged, partial(repair.quarantine.move, path))


def is_attempt(name: str) -> bool:
    """Return whether a directory in `staging/` belongs to a commit."""
    return names.parse_attempt(name) is not None or names.is_gone(name)


def _proposal(store: Store, identity: Uuid) -> Iterator[Suspect]:
    layout = store.layout
    path, mend = layout.proposal(identity), partial(commits.end_proposal, store, layout, identity)
    record = commits.proposed(store, layout, identity)
    if record is not None and commits.is_decided(store, layout, record):
        yield Suspect(
            found(store, "pending-commit", path, record.total("tasks"), record.name),
            partial(_stays_pending, store, record),
            mend,
        )
    elif collect.is_abandoned(store, path):
        yield Suspect(found(store, "stale-proposal", path), partial(collect.is_abandoned, store, path), mend)


def _stays_pending(store: Store, record: commits.Record) -> bool:
    """Return whether no process is publishing a decided commit. One that does has the proposal locked."""
    store.clock.sleep(GRACE_S)
    try:
        with store.locked_existing(store.layout.proposal(record.id), WAIT_S):
            return commits.is_decided(store, store.layout, record)
    except FileNotFoundError:
        return False


def _has_no_proposal(store: Store, identity: Uuid) -> bool:
    return collect.is_abandoned(store, store.layout.ballot(identity)) and not store.fs.exists(
        store.layout.proposal(identity)
    )


def _attempt(store: Store, name: str) -> Iterator[Suspect]:
    path = f"{store.layout.staging}/{name}"
    age_s = GRACE_S if names.is_gone(name) else collect.ATTEMPT_AGE_S  # it changes while it is removed

    def is_left() -> bool:
        if age_s == GRACE_S:
            store.clock.sleep(GRACE_S)
        return collect.is_abandoned(store, path, age_s)

    if collect.is_abandoned(store, path, age_s):
        yield Suspect(found(store, "staged-attempt", path), is_left, partial(collect.reap_attempt, store, name))


def _is_damaged(store: Store, path: str, commit: str) -> bool:
    try:
        record = commits.parse(store.fs.read(path))
    except OSError as error:
        let_out(error)
        return False  # gone, or what it is instead of a file was told by its name
    return record is None or record.name != commit
