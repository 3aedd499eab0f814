"""Who called what, when it began and ended, and what it answered: the material of the judgement."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from fsqueue import FsqueueError, LeasedTask, Queue, Task
from fsqueue.format.layout import Settings, at_birth
from fsqueue.poll import Poll
from tests.simulation.faults import QUEUE
from tests.simulation.handles import Crash
from tests.simulation.wiring import Persona, acting, on_stage, take_stage
from tests.simulation.world import World

T = TypeVar("T")

BEGUN, DONE, REFUSED, CRASHED, INTERRUPTED, BROKEN = "begun", "done", "refused", "crashed", "interrupted", "broken"


class Call:
    """One call of a verb. `begin` and `end` are steps of the world, `began` and `ended` its times in seconds."""

    __slots__ = (
        "actor", "args", "began", "begin", "end", "ended", "error", "outcome", "payloads", "result", "verb",
    )  # fmt: skip

    def __init__(self, actor: str, verb: str, args: dict[str, Any], world: World) -> None:
        self.actor, self.verb, self.args = actor, verb, args
        self.begin, self.end = world.disk.step, 1 << 60
        self.began, self.ended = world.now, 1e18
        self.outcome = BEGUN
        self.result: Any = None
        self.payloads: dict[str, Any] = {}
        """Of the tasks that it has handed out, by their ids: an update may give a held task another one later."""
        self.error: BaseException | None = None

    def __str__(self) -> str:
        args = ", ".join(f"{key}={_brief(value)}" for key, value in self.args.items())
        answer = f"{type(self.error).__name__}: {self.error}" if self.error is not None else _brief(self.result)
        return f"{self.actor}.{self.verb}({args}) {self.outcome} [{self.begin}..{self.end}] {answer}"


def _brief(value: Any) -> str:
    if isinstance(value, LeasedTask):
        return f"{value.payload}@{value.lease[:4]}"
    if isinstance(value, list):
        return f"[{', '.join(map(_brief, value))}]"
    return "a loop" if isinstance(value, Poll) else str(value)


def original(payload: Any) -> Any:
    """The payload with which a task was inserted, of that or of one that an update has put in its place."""
    return payload.partition("'")[0] if isinstance(payload, str) else payload


class History:
    """All calls, in the order in which they began."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[Call] = []
        self.ids: dict[Any, list[str]] = {}
        """The ids of each payload, as far as anybody saw them: a retried task has another one."""
        self.priorities: dict[Any, Any] = {}
        """With which each payload was inserted that has one."""
        self.changed: dict[str, list[dict[str, Any]]] = {}
        """What each task may have been given besides, by its id."""
        self.wrong: list[str] = []
        """What was noticed to be wrong while it happened."""

    def was_given(self, priorities: dict[Any, Any]) -> None:
        """Tasks are about to be inserted with these priorities, by their payloads."""
        self.priorities.update({payload: given for payload, given in priorities.items() if given is not None})

    def saw(self, payload: Any, task_id: str) -> None:
        """Somebody was told that this task has this payload, or had it first."""
        known = self.ids.setdefault(original(payload), [])
        if task_id not in known:
            known.append(task_id)

    def all_ids(self) -> list[str]:
        return sorted(task_id for known in self.ids.values() for task_id in known)


class Actor:
    """A process that uses the queue through its public names, and notes what it did."""

    def __init__(self, history: History, persona: Persona, path: str = QUEUE) -> None:
        self.history, self.persona, self.path = history, persona, path
        self.world = history.world
        self.name = persona.process.name
        self.held: list[LeasedTask] = []
        self.last = Call(self.name, "", {}, self.world)
        """The call that was made last."""
        self._queue: Queue | None = None
        self.beside: Actor | None = None
        """The same process in the other queue, if there are two."""

    def another(self, history: History, path: str) -> Actor:
        """The same process in another queue."""
        return Actor(history, self.persona, path)

    @property
    def queue(self) -> Queue:
        if self._queue is None:
            persona = self.persona
            with acting(persona):
                filesystem = persona.filesystem(self.path)
                self._queue = Queue(self.path, filesystem=filesystem, clock=persona.clock, entropy=persona.entropy)
            self._all_count_in_one()
        return self._queue

    def _all_count_in_one(self) -> None:
        """The same counter file for all."""
        assert self._queue is not None
        self._queue.store.counter_number = "00"

    def create(self, settings: Settings) -> None:
        """Make the queue, or open the one that is there."""
        made = self._note(
            "create", lambda: Queue.create(self.path, exist_ok=True, allow_unsafe=True, **at_birth(settings))
        )
        if made is not None:
            self._queue = made
            self._all_count_in_one()

    def do(self, verb: str, act: Callable[[Queue], T], **args: Any) -> T | None:
        """Call a verb; None if it was refused with one of the package's own errors."""
        return self._note(verb, lambda: act(self.queue), **args)

    def _note(self, verb: str, act: Callable[[], T], **args: Any) -> T | None:
        world = self.world
        call = Call(self.name, verb, args, world)
        self.history.calls.append(call)
        if world.book is not None:
            world.book.verb(self.name)
        self.last = call
        if world.trace is not None:
            world.say(f"----- {self.name}: {verb} {', '.join(f'{k}={_brief(v)}' for k, v in args.items())}")
        before = on_stage()
        take_stage(self.persona)
        try:
            call.result = result = act()
            call.outcome = DONE
            if verb in ("lease", "next") and result:
                tasks: Any = result if isinstance(result, list) else [result]
                call.payloads = {task.id: task.payload for task in tasks}
            return result
        except FsqueueError as error:
            call.outcome, call.error = REFUSED, error.with_traceback(None)
            return None
        except Crash:
            call.outcome = CRASHED
            raise
        except KeyboardInterrupt:
            call.outcome = INTERRUPTED
            return None
        except Exception as error:
            call.outcome, call.error = BROKEN, error
            self.history.wrong.append(f"{call} is no error of the package's own:\n{traceback.format_exc()}")
            return None
        finally:
            take_stage(before)
            if self.persona.process.has_lock():
                self.history.wrong.append(f"{call}: it leaves a lock")
            elif not self.persona.process.dead and any(child.has_lock() for child in self.persona.process.children):
                self.history.wrong.append(f"{call}: a child keeps a lock of it")
            if world.book is not None:
                world.book.verb_ended(self.name)
            call.end, call.ended = world.disk.step, world.now
            if world.trace is not None:
                world.say(f"----- {call}")

    # -- verbs -------------------------------------------------------------------------------------

    def insert(self, payload: Any, delay_s: float = 0, priority: Any = None) -> None:
        self.history.was_given({payload: priority})
        ref = self.do("insert", lambda q: q.insert(payload, delay_s=delay_s, priority=priority), payloads=[payload])
        if ref is not None:
            self.history.saw(payload, ref.id)

    def insert_many(
        self, payloads: list[Any], batch_tasks: int | None, priorities: list[Any] | None = None, delay_s: float = 0
    ) -> None:
        tasks: list[Any] = list(payloads)
        if priorities is not None:
            self.history.was_given(dict(zip(payloads, priorities, strict=True)))
            tasks = [Task(payload, priority=given) for payload, given in zip(payloads, priorities, strict=True)]
        self.do("insert", lambda q: q.insert_many(tasks, delay_s=delay_s, batch_tasks=batch_tasks), payloads=payloads)

    def lease(self, n: int = 1, lease_s: float | None = None, **how: Any) -> list[LeasedTask]:
        got = self.do("lease", lambda q: q.lease(n, lease_s=lease_s, **how), n=n, **how) or []
        self.took(got)
        return got

    def took(self, tasks: list[LeasedTask]) -> None:
        self.held += tasks
        for task in tasks:
            self.history.saw(task.payload, task.id)

    def _end(self, verb: str, tasks: list[LeasedTask], act: Callable[[Queue], object], **args: Any) -> bool:
        self.held = [task for task in self.held if task not in tasks]
        self.do(verb, act, tasks=tasks, **args)
        return self.last.outcome == DONE

    def complete(self, tasks: list[LeasedTask]) -> bool:
        if len(tasks) == 1:
            return self._end("complete", tasks, lambda q: tasks[0].complete())
        return self._end("complete", tasks, lambda q: q.complete(tasks))

    def release(self, tasks: list[LeasedTask], delay_s: float = 0) -> bool:
        return self._end("release", tasks, lambda q: q.release(tasks, delay_s))

    def fail(self, task: LeasedTask, delay_s: float | None = None) -> bool:
        return self._end("fail", [task], lambda q: task.fail("no luck", delay_s))

    def bury(self, task: LeasedTask) -> bool:
        return self._end("bury", [task], lambda q: task.bury("no hope"))

    def renew(self, tasks: list[LeasedTask], lease_s: float | None = None) -> None:
        self.do("renew", lambda q: q.renew(tasks, lease_s), tasks=tasks)

    def cancel(self, ids: list[str]) -> None:
        self.do("cancel", lambda q: q.cancel(ids), ids=ids)

    def change(self, ids: list[str], given: dict[str, Any]) -> None:
        for task_id in ids:
            self.history.changed.setdefault(task_id, []).append(given)
        self.do("change", lambda q: q.change(ids, **given), ids=ids, given=given)

    def next(self, loop: Poll) -> LeasedTask | None:
        """The next task of a work loop."""
        task = self.do("next", lambda q: next(loop, None))
        if task is not None:
            self.history.saw(task.payload, task.id)
        return task

    def plain(self, verb: str) -> Any:
        """A verb without arguments."""
        return self.do(verb, lambda q: getattr(q, verb)())

    def attach(self, token: str) -> None:
        task = self.do("attach", lambda q: q.attach(token), token=token)
        if task is not None:
            self.held.append(task)

    def work(self, seconds: float) -> None:
        """Time passes, as far as others let it."""
        self.persona.clock.sleep(seconds)

    def exit(self) -> None:
        """The process ends."""
        self.persona.process.kill()
