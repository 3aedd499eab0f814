"""Python functions in child processes: nothing that they do can keep the worker from renewing its leases.

A child is at the first task that it was given and has not answered, or at none: what it has not received can be taken
back at any time. So a child that dies takes one task with it at most, and that is the one to blame.

Each giving of a task has a number. The child's answer names it, and so does the message that the parent takes back.
A child that answers for anything but the task that it is at is ended: nothing it says is believed any more.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
from collections import deque
from itertools import count
from typing import Any

import orjson

from fsqueue.filesystem import idle_files, resident_bytes
from fsqueue.format.wording import counted
from fsqueue.worker import answer_memory, child_messages, marks, output, shortages
from fsqueue.worker.causes import Cause, Memory
from fsqueue.worker.jobs import How, Job
from fsqueue.worker.limits import KILLED_S, STALL_S
from fsqueue.worker.loop import Loop
from fsqueue.worker.output import Stream
from fsqueue.worker.spawning import Process, ProcessExecutor, python

SENT_MAX = answer_memory.SLOTS
"""Maximum number of tasks in a child's socket, and of answers that were not taken in."""
UNREADY_MAX = 3
"""Number of children in a row, dead before they had found their handler, at which the worker gives up."""
STARTING_MAX = os.cpu_count() or 1
"""Maximum number of children to start at a time: a signal, and the ends of tasks, are noticed between them."""
LISTED = 6
"""The number that the descriptor of an executor's list of functions has in a child."""
NO_TASK = 0
"""The number of what a child prints before it is given a task."""
_NO_CHILD = "Another process for the handler could not be started"
CLOSE_S = 5.0
"""Maximum time for a child that has nothing to do to end."""


class _Child:
    """A child process, and what it was given."""

    def __init__(self, family: Children) -> None:
        self.family = family
        self.slot = family.free_slot()
        self.given: deque[Job] = deque()
        self.is_ready = False
        self.distrusted = ""
        """Why nothing that it says is believed any more; it is being killed then."""
        mailbox, output_writer, how = family.mailbox, family.output_writer, family.how
        self.end, self.theirs = child_messages.pair()
        self.streams: list[Stream] = []
        self.is_watched = False
        self.answers: answer_memory.Answers | None = None
        self.look_at = math.inf
        """When to look for answers that were not told of, on the monotonic clock."""
        self.answered = 0
        """Number of tasks that it has answered."""
        self._weighed = 0
        """Number of tasks that it had answered when its memory was last looked at."""
        self.is_leaving = False
        """Whether it was told that no more tasks come: it ends when it has answered the one that it is at."""
        self.kill_at = math.inf
        """When it is killed if it has not ended, although it has no task any more, on the monotonic clock."""
        source, memory, token = -1, -1, family.entropy.hex16()
        try:
            memory = answer_memory.make()
            self.answers = answer_memory.Answers(memory)
            for ours in (1, 2):
                found = marks.Marks(token, family.flag)
                self.streams.append(Stream(mailbox, output_writer, ours, how.output, how.has_tags, found))
            source = os.memfd_create("nothing")
            self.process = Process(
                family.supervisors,
                [*family.program, "3", "4", "5", *map(str, [LISTED] * len(family.listed))],
                dict(os.environb) | {name.encode(): value.encode() for name, value in how.of_slots[self.slot].items()},
                [
                    source,
                    *(stream.write_end for stream in self.streams),
                    self.theirs.fileno(),
                    family.flag,
                    memory,
                    *family.listed,
                ],
                self._ended,
            )
        except BaseException:
            self.close()
            raise
        finally:
            for fd in (source, memory):
                if fd >= 0:
                    os.close(fd)
        try:
            for stream in self.streams:
                stream.started()
            mailbox.watch(self.end.fileno(), self.read)
            self.is_watched = True
            setup = family.setup | {"parent": self.process.supervisor, "token": token}
            child_messages.send(self.end, 0, "", json.dumps(setup).encode())
        except BaseException:  # it was told of no task, and waits to be told
            self.process.kill(signal.SIGKILL)
            self.process.reap(family.now() + KILLED_S)
            self.close()
            raise

    @property
    def tasks_left(self) -> int:
        """Return the maximum number of tasks that it may be given still."""
        if self.is_leaving:
            return 0
        most = self.family.how.recycle_after
        return SENT_MAX if most is None else most - self.answered - len(self.given)

    def give(self, job: Job, now: float) -> bool:
        task = job.task
        body = child_messages.encode_task(task.attempt, str(task.queue.path), task.payload)
        job.number = next(self.family.numbers)
        try:
            child_messages.send(self.end, job.number, task.id, body, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False  # no room
        except OSError as error:
            if shortages.is_short(error):
                self.family.fall_short(error)
            return False  # or the child has just died, which will be heard of
        if not self.given:
            self._begin(job, now)
        self.given.append(job)
        return True

    def _begin(self, job: Job, now: float) -> None:
        job.began = now
        if self.family.is_told_apart:
            self.family.begin_attempt(self.streams, job.task)

    def read(self) -> None:
        """Take in the answers that the child has written so far."""
        for _ in range(SENT_MAX):
            try:
                message = child_messages.receive(self.end, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                break  # it has died, which will be heard of
            except child_messages.Garbled as error:
                self._distrust(f"it sent what is no answer ({error})")
                continue
            if message is None:
                break
            if self.distrusted:
                continue
            if not self.is_ready:
                self._found(message)
            elif message.task:
                self._answered(message)
            else:
                self._rung(message.number)
        self.look()
        self.weigh()

    def weigh(self) -> None:
        """Let it leave if it has more memory than it may keep: looked at once it has answered another task."""
        bytes_max = self.family.how.recycle_rss_bytes
        if bytes_max is None or self.is_leaving or self.distrusted or self._weighed == self.answered:
            return
        self._weighed = self.answered
        size = resident_bytes(self.process.pid)
        if size > bytes_max:
            self._leave(size)

    def _leave(self, size: int | None = None) -> None:
        """Tell the child that no more tasks come. Others get what it has not received. `size`: its memory (bytes)."""
        self.is_leaving = True
        self.family.loop.recycled(self.answered, size)
        left = self.take_back()
        self.end.shutdown(socket.SHUT_WR)  # that is the end of its messages
        if not self.given:
            self.kill_at = self.family.now() + CLOSE_S
        self.family.loop.returned(left, "")

    def look(self) -> None:
        """Take in the answers in memory, told of or not, as far as they come next."""
        while (message := self._next()) is not None and not self.distrusted:
            job = self.given[0] if self.given else None
            if job is None or job.number != message.number:
                return  # it comes behind one that is on its way as a message; else the ring shows what is wrong
            self._take(message)

    def _next(self) -> child_messages.Message | None:
        """Return the child's next answer from shared memory; None if the child has written none."""
        answer = None if self.answers is None else self.answers.next()
        try:
            return None if answer is None else child_messages.unpacked(answer)
        except child_messages.Garbled as error:
            self._distrust(f"it sent what is no answer ({error})")
            return None

    def _take(self, message: child_messages.Message) -> None:
        assert self.answers is not None
        self.answers.taken()
        self._answered(message)

    def _rung(self, count: int) -> None:
        """Take in that so many answers are in memory."""
        self.look()
        # Also if it holds nothing: for what it is given right now it need not ring.
        self.look_at = self.family.now() + answer_memory.LOOK_S
        if self.answers is None or self.answers.count >= count or self.distrusted:
            return
        if (message := self._next()) is not None:
            self._take(message)  # it is not for the task that it is at
        self._distrust("it sent what is no answer (not all of it is there)")

    def _found(self, message: child_messages.Message) -> None:
        if message.number or message.body is None:
            self._distrust("it answered for a task before it had found its handler")
        else:
            self.family.found(self, orjson.loads(message.body))

    def _answered(self, message: child_messages.Message) -> None:
        job = self.given[0] if self.given else None
        if job is None or (job.number, job.task.id) != (message.number, message.task):
            self._distrust(f"it answered for task {message.task or 'none'}, which it was not at")
            return
        memory = Memory.ENOUGH
        if message.body is None:
            why = "its answer was lost: the worker had no file descriptor free to receive it"
            verb, value, seconds = "fail", why, max(0.0, self.family.now() - job.began)
        else:
            try:
                verb, value, seconds, job.used, memory = child_messages.decode_answer(message.body)
            except child_messages.Garbled as error:
                self._distrust(f"it sent what is no answer ({error})")
                return
        self.given.popleft()
        self.answered += 1
        if self.family.is_told_apart:
            for stream in self.streams:
                stream.drain()
                stream.ended()
        if self.given:
            self._begin(self.given[0], self.family.now())
        elif self.is_leaving:
            self.kill_at = self.family.now() + CLOSE_S
        elif self.answered == self.family.how.recycle_after:
            self._leave()
        self.family.loop.done(job, verb, value, seconds, Cause(memory))

    def take_back(self) -> list[Job]:
        """Return what it has not received, in order. The child may be receiving meanwhile, any of it."""
        numbers = set()
        while True:
            try:
                message = child_messages.receive(self.theirs, socket.MSG_DONTWAIT)
            except OSError:
                break
            if message is None:
                break
            numbers.add(message.number)
        back = [job for job in self.given if job.number in numbers]
        self.given = deque(job for job in self.given if job.number not in numbers)
        if self.given and self.given[0].began == math.inf:  # the one before it came back, and the child took this
            self._begin(self.given[0], self.family.now())
        return back

    def _distrust(self, why: str) -> None:
        """End it. Nothing can be known of the tasks that it has received: they fail when it has exited."""
        if self.distrusted:
            return
        self.distrusted = f"the handler's process was ended, for {why}"
        left = self.take_back() if self.is_ready else []
        self.process.kill(signal.SIGKILL)
        self.family.loop.returned(left, "")

    def _ended(self) -> None:
        """Settle what an exited child did, and fail the attempt that it was executing."""
        self.read()
        left = self.take_back() if self.is_ready else []
        for stream in self.streams:
            stream.drain_to_end()
        if self.given:
            self.process.kill(signal.SIGKILL)  # what is left of what it has started: the task is not done
        self.process.reap(self.family.now() + KILLED_S)
        self.close()
        blamed = list(self.given)  # one at most, as long as it is trusted
        number = blamed[0].number if blamed else NO_TASK
        tails = [stream.tail_of(number) for stream in reversed(self.streams)]
        self.given.clear()
        why, memory = self.distrusted, Memory.ENOUGH
        for job in blamed:
            job.killed = (self.process.status or 0) < 0
            why = why or job.why
        if not why:
            printed = b"\n".join(tails).decode(errors="replace")
            ended, memory = self.family.described(self.process, printed)
            why = f"the handler's process ended: {ended}"
        self.family.lost(self, blamed, output.reason(why, *tails), Cause(memory), left)

    def close(self) -> None:
        """Close the worker's side of the child's connection."""
        for stream in self.streams:
            stream.ended()
            stream.close()
        if self.is_watched:
            self.is_watched = False
            self.family.mailbox.forget(self.end.fileno())
        self.end.close()
        self.theirs.close()
        if self.answers is not None:
            self.answers.close()
            self.answers = None


def _is_open(child: _Child, late: float) -> bool:
    """Return whether a child may be given something: not if its task began before `late`, or is being ended."""
    if not child.is_ready or child.distrusted or child.tasks_left <= 0:
        return False
    given = child.given
    return not given or (given[0].began > late and not given[0].doomed)


class Children(ProcessExecutor):
    """Runs a handler in child processes, one for each slot at most, which are started as tasks wait for them.

    The first one is started at once, for it tells whether the handler can be found. Where the system allows no further
    process or descriptor, those that there are go on, and others are tried again after a pause. One that died is reaped
    before its slot is free. The loop is told when no child can find the handler or be started, and of the tasks that
    one that died had not begun.
    """

    def __init__(self, how: How, loop: Loop) -> None:
        super().__init__(how, loop)
        self.is_told_apart = self.keep_output is not None or how.output == "group" or how.has_tags
        """Whether it matters which task something was printed by."""
        self.numbers = count(1)
        """Of the givings of tasks to children."""
        self._children: list[_Child] = []
        self._unready = 0
        self._closing = self._is_stopping = False
        self.flag = os.memfd_create("stopping")
        os.pwrite(self.flag, marks.FLAGS, 0)
        self.program = python("child")
        self.listed: list[int] = []
        """The descriptor of an executor's list of functions, if the handler has one."""
        self.setup: dict[str, Any] = {}

    def start(self) -> None:
        super().start()
        handler = self.how.handler
        if "listed" in handler:
            self.listed, handler = [handler["listed"]], {"listed": LISTED}
        self.setup = {"argv": sys.argv, "handler": handler}
        self._add()
        most = shortages.processes_max()
        if most is not None and most < self.most:
            self.output_writer.say(
                f"starting no more than {counted(most, 'process', 'processes')} instead of {self.most:,}: "
                "the system's limit of open files (ulimit -n) allows no more."
            )
            self.most = most

    @property
    def slots(self) -> int:
        """Return how many tasks can be at work: in the present children, and in those that may be started now."""
        return min(self.most, len(self._children) + (0 if self.shortage.is_on else STARTING_MAX))

    def free_slot(self) -> int:
        """Return the lowest slot that no child has. There is one whenever a child is started."""
        taken = {child.slot for child in self._children}
        return next(slot for slot in range(self.how.slots) if slot not in taken)

    def prepare(self, waiting: int) -> None:
        wanted = min(self.most, waiting + sum(len(child.given) for child in self._children))
        starting = sum(not child.is_ready for child in self._children)
        for _ in range(min(wanted - len(self._children), STARTING_MAX - starting)):
            if self.shortage.is_on or not self._add():
                return

    def _add(self) -> bool:
        """Start another child. Return False if the system refuses that."""
        try:
            self._children.append(_Child(self))
        except OSError as error:
            if shortages.is_short(error):
                self.fall_short(error)
            elif not self._children:
                self.loop.refused(shortages.explain(error, _NO_CHILD, "starting a process"))
            return False
        self.shortage.over()
        return True

    def fall_short(self, error: OSError) -> None:
        """Go on with the children that there are, and try again after a pause; end if there are none for long."""
        idle_files.make_room(error)  # for the next try
        if self.shortage.met():
            count = counted(len(self._children), "process", "processes")
            then = f"The worker goes on with no more than {count} instead of {self.most:,}, and tries again."
            self.output_writer.say(shortages.words(error, _NO_CHILD, then))
        elif not self._children and self.shortage.is_hopeless(error):
            self.loop.refused(shortages.explain(error, _NO_CHILD, "starting a process"))

    @property
    def due_at(self) -> float:
        return min(super().due_at, min((min(one.look_at, one.kill_at) for one in self._children), default=math.inf))

    def keep_time(self, now: float) -> None:
        self.supervisors.keep_time(now)
        for child in self._children:
            if now >= child.look_at:
                child.look_at = math.inf
                child.look()
                child.weigh()
            if now >= child.kill_at:
                child.kill_at = math.inf
                child.process.kill(signal.SIGKILL)
        if self.shortage.pass_by(now) and not (self._children or self._is_stopping or self._closing):
            self._add()

    def is_ready(self) -> bool:
        return any(child.is_ready for child in self._children)

    def room(self, each: int) -> int:
        each = 1 if self.is_told_apart else min(each, SENT_MAX)
        return sum(max(0, min(each - len(child.given), child.tasks_left)) for child in self._open())

    def give(self, job: Job) -> bool:
        now = self.now()
        chosen: _Child | None = None
        least = math.inf
        for child in self._children:
            if len(child.given) < least and _is_open(child, now - STALL_S):
                chosen, least = child, len(child.given)
        return chosen is not None and chosen.give(job, now)

    def _open(self) -> list[_Child]:
        """Return the children to give something to."""
        late = self.now() - STALL_S
        return [child for child in self._children if _is_open(child, late)]

    def at_work(self) -> list[Job]:
        return [child.given[0] for child in self._children if child.given]

    def held(self) -> list[Job]:
        return [job for child in self._children for job in child.given]

    def take_back(self, slower_than_s: float = -1.0) -> list[Job]:
        now = self.now()
        slow = [
            child for child in self._children if len(child.given) > 1 and now - child.given[0].began > slower_than_s
        ]
        return [job for child in slow for job in child.take_back()]

    def end(self, job: Job, number: int) -> None:
        child = next((child for child in self._children if child.given and child.given[0] is job), None)
        if child is None:
            return
        # What it has not received goes back first: else it might have ended this task, and be killed at the next.
        left = child.take_back()
        if left:
            self.loop.returned(left, "")
        if not any(job is one for one in child.given):
            return  # the child had not begun it: it has come back, too
        doomed = job.doomed
        if doomed != "lost":
            job.doomed = ""  # an answer that is there already counts for what it says
        child.read()
        if child.given and child.given[0] is job:
            job.doomed = doomed
            child.process.kill(number)

    def stopping(self) -> None:
        self._is_stopping = True
        os.pwrite(self.flag, b"\1", marks.STOPPING_AT)

    def close(self) -> None:
        self._closing = True
        deadline = self.now() + CLOSE_S
        for child in self._children:
            if child.is_ready:
                child.take_back()  # the loop gives these back: the child must not begin them any more
            else:
                child.process.kill(signal.SIGTERM)  # it is still importing: nothing of it is needed
            child.end.shutdown(socket.SHUT_WR)  # that is the end of its messages
        while self._children and self.now() < deadline:
            self.mailbox.wait(deadline - self.now())
        for child in self._children:
            child.process.kill(signal.SIGKILL)
        deadline = self.now() + KILLED_S
        for child in self._children:
            child.process.reap(deadline)
            child.close()
        self.supervisors.close()
        os.close(self.flag)
        super().close()

    def found(self, child: _Child, error: str) -> None:
        """Take in that a child has found its handler, or why not."""
        if error:
            self.loop.refused(error)
        else:
            child.is_ready = True
            self._unready = 0

    def lost(self, child: _Child, blamed: list[Job], why: str, cause: Cause, left: list[Job]) -> None:
        """Report a child that has died, and replace it. `why`: in words, for those who read the reason of a failure."""
        self._children.remove(child)
        for job in blamed:
            self.loop.done(job, "fail", why, max(0.0, self.now() - job.began), cause)
        self.loop.returned(left, "" if self._closing or blamed or child.is_leaving else why)
        if self._closing:
            return
        if not child.is_ready:
            self._unready += 1
            if self._unready >= UNREADY_MAX:
                self.loop.refused(why)
                return
        if not self._children and not self._is_stopping:  # others are replaced when tasks wait for them
            self._add()
