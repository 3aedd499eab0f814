"""Lease, complete, complete and lease, or insert one task where all is as usual: one frame each.

Each of the four functions is a critical section of its own: lock the log, look, change the state, append, unlock. It
changes nothing before it has seen that the normal way would do the same. Else it returns, and its caller goes the
normal way (`leasing.Leaser`, `transitions.complete`, `single_inserts.SingleInserter`). They repeat each other on
purpose: a call would be one frame more. See docs/decisions/0060-fast-path.md.
"""

from __future__ import annotations

from orjson import OPT_APPEND_NEWLINE, Fragment, dumps, loads

from fsqueue.checks import CHECK
from fsqueue.errors import StorageError
from fsqueue.filesystem import LOST, resources
from fsqueue.format import movements, nesting, task_file
from fsqueue.format.names import Batch
from fsqueue.interruptions import let_out
from fsqueue.leased_task import LeasedTask, Verbs
from fsqueue.protocol import sealing, transitions
from fsqueue.protocol.shares import Holder
from fsqueue.storage.locked_batch import LockedBatch, end_badly
from fsqueue.storage.logs import TAIL_BYTES, Log
from fsqueue.storage.record_times import FAR_MS
from fsqueue.storage.store import Store

FIRST = 1
"""The number of the attempt at a task that is as it began."""


class Unusual(Exception):
    """Raised within this module if something is not as usual. Nothing was changed."""


class AppendBroken(Exception):
    """Raised if the append of a task's record has failed with `error`. The record may be in the log, or not."""

    def __init__(self, error: OSError | StorageError) -> None:
        super().__init__(error)
        self.error = error


def lease_next(
    store: Store, batch: Batch, lease_ms: int | None, holder: Holder, queue: Verbs | None
) -> list[LeasedTask] | None:
    """Lease the next task of the batch in hand, and return it. None: nothing was done; go the normal way.

    The caller knows that no other batch has a better task. This function has seen that this task and the next one are
    as they began, and that nothing else can be leased from the batch now (`States.survey`). So the batch stays in hand,
    and its task file keeps its name.
    """
    log, held = store.logs.get(batch), resources.this_thread.owned.sections
    if log is None or held:
        return None
    held.append(log)
    if not log.mutex.acquire(False):
        held.remove(log)
        return None
    fs, fd = store.fs, log.fd
    is_locked = is_sound = False
    try:
        try_lock, pread = fs.try_lock, fs.pread  # what objects hold is looked up first: see decision 26
        if fd < 0 or not try_lock(fd):
            raise Unusual
        is_locked = log.is_used = True
        if pread(fd, TAIL_BYTES, log.end):
            log.catch_up()
        state, at = log.replay_state, store.clock.now_ms()
        if (last := state.at) > at:
            if last > at + FAR_MS:
                raise Unusual
            at = last
        place = state._frontier
        if place + 1 >= state.fresh_end or at >= state.quiet_until:
            if not _survey(log, at):
                raise Unusual
            place = state._frontier
        index, lines = state._order[place], log.lines or ()
        try:
            line = lines[index]
            record = loads(line)
            payload = record["payload"]
            if len(line) > nesting.SHALLOW_BYTES:
                task_file.check_depth(line)
        except (ValueError, LookupError, TypeError) as error:
            let_out(error)
            raise Unusual from None
        base, lease = log.end, store.entropy.hex16()
        until = at + (store.lease_ms if lease_ms is None else lease_ms)
        named = [[index, index + 1]]
        made = {"op": "lease", "at": at, "lease": lease, "tasks": named, "until": until, "worker": holder}
        if not state.lease(at, lease, [index], until, holder, False, base):
            raise Unusual
        state._frontier = place + 1
        state.at = at
        if until < state.quiet_until:
            state.quiet_until = until
        log.append(dumps(made, option=OPT_APPEND_NEWLINE))
        if CHECK:
            LockedBatch.entered(store, log).check_invariants()
        assert queue is not None  # a method of it called this
        task = LeasedTask(queue, batch, index, lease, payload, FIRST, base, until, log.layout.generation)
        if len(record) > 1:
            task.key, task.priority = record.get("key"), record.get("priority")
        is_sound = True
        return [task]
    except Unusual:
        is_sound = True
    except OSError as error:
        let_out(error)
        if error.errno not in LOST:
            raise
    finally:
        try:
            if not is_sound:
                store.logs.drop(log)
            elif is_locked and log.fd >= 0:
                unlock = fs.unlock
                unlock(fd)
        except BaseException as other:
            end_badly(store, log, other)
        finally:
            log.mutex.release()
            held.remove(log)
    return None


def _survey(log: Log, at: int) -> bool:
    """Return whether the next two tasks are as they began, can be read, and no other task can be leased at the moment.

    The answer holds until another process appends a record, or a critical section goes the normal way. After the one
    and at the beginning of the other comes `Log.catch_up`, which forgets what `survey` has found.
    """
    name, state = log.name, log.replay_state
    if state.gone or log.torn or log.lines is None or name is None or name.priority is not None:
        return False
    return state.survey(at)


def complete_in_hand(store: Store, task: LeasedTask, result: bytes | None = None) -> bool:
    """Complete a task, with a `result` as JSON, and return True. False: nothing was done; go the normal way.

    This function has seen that the task's lease holds, and that another task of its batch has no outcome yet. So the
    batch goes on.
    """
    log, held = store.logs.get(task.batch), resources.this_thread.owned.sections
    if log is None or held or not store.queue_file.is_unchanged(task.generation):
        return False
    held.append(log)
    if not log.mutex.acquire(False):
        held.remove(log)
        return False
    fs, fd = store.fs, log.fd
    is_locked = is_sound = False
    try:
        try_lock, pread = fs.try_lock, fs.pread
        if fd < 0 or not try_lock(fd):
            raise Unusual
        is_locked = log.is_used = True
        if pread(fd, TAIL_BYTES, log.end):
            log.catch_up()
        state, index, at = log.replay_state, task.index, store.clock.now_ms()
        if (last := state.at) > at:
            if last > at + FAR_MS:
                raise Unusual
            at = last
        if state.gone or log.torn or state.remaining < 2 or not state.holds(index, task.lease):
            raise Unusual
        made = {"op": "complete", "at": at, "lease": task.lease, "tasks": [[index, index + 1]]}
        if CHECK:
            transitions.check_fenced(LockedBatch.entered(store, log), task.lease, [index])
        value = None
        if result is not None:
            made["result"] = value = loads(result)
        if state.used or task.began is not None or task.used is not None or task.took_s is not None:
            made |= transitions.work_fields_of(LockedBatch.entered(store, log), task, at)
            state.apply(made, log.end)
        else:
            state.complete(at, [index], log.end, value)
            state.at = at
        if result is not None:
            made["result"] = Fragment(result)
        log.append(dumps(made, option=OPT_APPEND_NEWLINE))
        if CHECK:
            LockedBatch.entered(store, log).check_invariants()
        is_sound = True
        return True
    except Unusual:
        is_sound = True
        return False
    except OSError as error:
        let_out(error)
        if error.errno not in LOST:
            raise
        lost = error
    finally:
        try:
            if not is_sound:
                store.logs.drop(log)
            elif is_locked and log.fd >= 0:
                unlock = fs.unlock
                unlock(fd)
        except BaseException as other:
            end_badly(store, log, other)
        finally:
            log.mutex.release()
            held.remove(log)
    transitions.complete(store, [task], transitions.result_of(task, result), lost)  # tells whether it is in the log
    return True


def exchange_next(
    store: Store,
    task: LeasedTask,
    result: bytes | None,
    lease_ms: int | None,
    holder: Holder,
    queue: Verbs | None,
) -> list[LeasedTask] | None:
    """Complete a task, with a `result` as JSON, and lease the next one of its batch, by one append. Return the next
    one.

    None: nothing was done; go the normal way. [] if the task is completed, and no other was leased: the append ended
    with an error, and the completion was looked for, or repeated.

    The caller knows that no other batch has a better task. This function has seen what `complete_in_hand` and
    `lease_next` look for.
    """
    batch = task.batch
    log, held = store.logs.get(batch), resources.this_thread.owned.sections
    if log is None or held:
        return None
    held.append(log)
    if not log.mutex.acquire(False):
        held.remove(log)
        return None
    fs, fd = store.fs, log.fd
    is_locked = is_sound = False
    try:
        try_lock, pread = fs.try_lock, fs.pread
        if fd < 0 or not try_lock(fd):
            raise Unusual
        is_locked = log.is_used = True
        if pread(fd, TAIL_BYTES, log.end):
            log.catch_up()
        state, done = log.replay_state, task.index
        if not state.holds(done, task.lease) or state.used:
            raise Unusual
        if task.began is not None or task.used is not None or task.took_s is not None:
            raise Unusual
        at = store.clock.now_ms()
        if (last := state.at) > at:
            if last > at + FAR_MS:
                raise Unusual
            at = last
        place = state._frontier
        if place + 1 >= state.fresh_end or at >= state.quiet_until:
            if not _survey(log, at):
                raise Unusual
            place = state._frontier
        index, lines = state._order[place], log.lines or ()
        try:
            line = lines[index]
            record = loads(line)
            payload = record["payload"]
            if len(line) > nesting.SHALLOW_BYTES:
                task_file.check_depth(line)
        except (ValueError, LookupError, TypeError) as error:
            let_out(error)
            raise Unusual from None
        made: movements.Record = {"op": "complete", "at": at, "lease": task.lease, "tasks": [[done, done + 1]]}
        base, lease = log.end, store.entropy.hex16()
        if CHECK:
            transitions.check_fenced(LockedBatch.entered(store, log), task.lease, [done])
        if result is None:
            state.complete(at, [done], base)
        else:
            state.complete(at, [done], base, loads(result))
            made["result"] = Fragment(result)
        completion = dumps(made, option=OPT_APPEND_NEWLINE)
        base += len(completion)
        until = at + (store.lease_ms if lease_ms is None else lease_ms)
        made = {
            "op": "lease",
            "at": at,
            "lease": lease,
            "tasks": [[index, index + 1]],
            "until": until,
            "worker": holder,
        }
        if not state.lease(at, lease, [index], until, holder, False, base):
            return None  # behind a change of the state: the log is read anew
        state._frontier = place + 1
        state.at = at
        if until < state.quiet_until:
            state.quiet_until = until
        log.append(completion + dumps(made, option=OPT_APPEND_NEWLINE))
        if CHECK:
            LockedBatch.entered(store, log).check_invariants()
        assert queue is not None  # a method of it called this
        following = LeasedTask(queue, batch, index, lease, payload, FIRST, base, until, log.layout.generation)
        if len(record) > 1:
            following.key, following.priority = record.get("key"), record.get("priority")
        is_sound = True
        return [following]
    except Unusual:
        is_sound = True
        return None
    except OSError as error:
        let_out(error)
        if error.errno not in LOST:
            raise
        lost = error
    finally:
        try:
            if not is_sound:
                store.logs.drop(log)
            elif is_locked and log.fd >= 0:
                unlock = fs.unlock
                unlock(fd)
        except BaseException as other:
            end_badly(store, log, other)
        finally:
            log.mutex.release()
            held.remove(log)
    transitions.complete(store, [task], transitions.result_of(task, result), lost)  # tells whether it is in the log
    return []


def insert_next(store: Store, batch: Batch, identity: str, task: bytes) -> tuple[int, int] | None:
    """Insert a task into the open batch of the last insert. Return its index, and where the log ends behind its record.

    None: nothing was done; go the normal way. `task`: its line, as it would stand in a task file. It has no priority,
    and is available at once. This function has seen that the batch is not full, and that its tasks are taken as they
    came. AppendBroken; after any other error the task is not in the queue.
    """
    log, held = store.logs.get(batch), resources.this_thread.owned.sections
    if log is None or held:
        return None
    held.append(log)
    if not log.mutex.acquire(False):
        held.remove(log)
        return None
    fs, fd = store.fs, log.fd
    is_locked = is_sound = False
    try:
        try_lock, pread = fs.try_lock, fs.pread
        if fd < 0 or not try_lock(fd):
            raise Unusual
        is_locked = log.is_used = True
        if pread(fd, TAIL_BYTES, log.end):
            log.catch_up()
        state, base = log.replay_state, log.end
        index = state.count
        if state.gone or log.torn or state.is_ranked or state.sealed or state.inserts != store.domain:
            raise Unusual
        if index >= store.settings.batch_tasks_max or base >= sealing.LOG_BYTES_MAX:
            raise Unusual
        at = store.clock.now_ms()
        if (last := state.at) > at:
            if last > at + FAR_MS:
                raise Unusual
            at = last
        if not state.insert(at, identity, index, 0, base):
            raise Unusual
        state.at = at
        made = {"op": "insert", "at": at, "id": identity, "first": index}
        try:
            log.append(movements.insert_line(made, task))
        except (OSError, StorageError) as error:
            let_out(error)
            raise AppendBroken(error) from error
        if CHECK:
            LockedBatch.entered(store, log).check_invariants()
        is_sound = True
        return index, log.end
    except Unusual:
        is_sound = True
    finally:
        try:
            if not is_sound:
                store.logs.drop(log)
            elif is_locked and log.fd >= 0:
                unlock = fs.unlock
                unlock(fd)
        except BaseException as other:
            end_badly(store, log, other)
        finally:
            log.mutex.release()
            held.remove(log)
    return None
