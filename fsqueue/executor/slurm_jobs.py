"""The Slurm jobs of an executor: arrays of workers, submitted while calls wait and none is there (decision 69).

`fsqueue slurm` submits them. The executor's thread calls `SlurmJobs.check` again and again. That never waits: Slurm is
asked in a thread of its own, since its commands may hang with their controller.
"""

from __future__ import annotations

import concurrent.futures
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fsqueue.arguments import whole
from fsqueue.clock import Clock, Entropy
from fsqueue.cluster.controller import Printed, answer_of
from fsqueue.cluster.slurm import SLURM
from fsqueue.errors import FsqueueError, InvalidArgument, shown
from fsqueue.filesystem import is_program
from fsqueue.filesystem.side_threads import SideThread
from fsqueue.format.models import Status
from fsqueue.format.wording import counted
from fsqueue.interruptions import suppress

logger = logging.getLogger("fsqueue")

SUBMIT_S = 90.0
"""Time that a submission may take. Slurm may have taken it nevertheless: such jobs end when the queue is drained."""
FIRST_LOOK_S = 3.0
"""Shortest time between two questions to Slurm. It doubles with each question, up to `check_s`. Sites dislike more."""
CHECK_S = 30.0
"""The longest, unless `slurm={"check_s": …}` says another one."""
ENDED_S = 3.0
"""Time between the end of all jobs, as Slurm tells it, and the next submission. By then the executor has seen which
calls they have ended."""
FRUITLESS_MAX = 3
"""Number of submissions in a row whose jobs may end before a call has ended, until no more is submitted."""
FRUITLESS_PAUSE_S = 30.0
"""Time before the next submission after the first one of these. Each one doubles it."""
REFUSED_S = (30.0, 3600.0)
"""Time for which a submission that Slurm refuses is tried again: the first one, and later ones. The first may have
options that Slurm never takes. Later ones were taken once, so a limit of the site or an outage is in the way."""
REFUSED_PAUSE_S = (1.0, 300.0)
"""The pause after the first refusal, and the longest. Each is times a random number from 0.5 to 1.5."""
FAILURES_MAX = 10**12
"""Number of attempts in a row that may fail until a job ends. A call that raises is no reason for a job to end."""
USAGE = 2
"""Exit status of `fsqueue slurm` for what no repetition mends."""

OWN = ("jobs", "load", "processes", "check_s")
"""Keys with a meaning here. All others are options of `fsqueue slurm`, ..."""
PATHS = ("log_dir", "prologue")
"""... and the values of these may be `os.PathLike`."""
RESERVED = frozenset(
    {"allow_empty", "array", "call", "clusters", "command", "dry_run", "fill", "forever", "help", "json", "match",
     "max_jobs", "now", "on", "print", "quiet", "resubmit", "result_stdout", "stdin", "stop", "stoppable",
     "stops_before", "sysexits", "tasks_per_command", "test_only", "then", "then_to", "upstream", "usage", "version",
     "wait", "worker", "wrap"}
)  # fmt: skip
"""Options that the executor sets itself, or with which jobs would do something else than its calls."""
INSTEAD = {
    "array": 'Say how many jobs there are: "jobs": N.',
    "forever": "The jobs end when the queue is drained, and the executor submits others when calls wait.",
    "wait": "The executor submits in a thread of its own, and waits for results.",
    "command": "The jobs execute the calls of the executor.",
    "wrap": "The jobs execute the calls of the executor.",
    "call": 'Name the modules that register the functions: "load": ["tiles"].',
    "clusters": "Set SLURM_CONF, or log in to the other cluster.",
    "resubmit": "The executor submits jobs again while calls wait.",
    "max_jobs": 'Say how many jobs there are: "jobs": N.',
    "fill": 'Say how many jobs there are: "jobs": N.',
}


class JobOptions:
    """What `slurm={…}` says. InvalidArgument names the key that is wrong, and what to write."""

    def __init__(self, given: object) -> None:
        if not isinstance(given, Mapping):
            raise InvalidArgument(
                f"slurm is a dict of options, not {shown(given)}. For example: "
                'slurm={"jobs": 20, "time": "1:00:00", "mem": "4G"}'
            )
        for key, value in given.items():
            _check(key, value)
        self.jobs: int = whole('slurm["jobs"]', given.get("jobs", 1))
        """Number of elements of each array."""
        self.modules = _modules(given.get("load"))
        """The modules whose functions the jobs may call; None: those of the functions that were submitted before the
        first job was."""
        self.check_s = _check_s(given.get("check_s", CHECK_S))
        """Longest time in seconds between two questions to Slurm while calls wait."""
        self.words = [f"--array=0-{self.jobs - 1}"]
        if given.get("stop_after_failures") is None:
            self.words.append(f"--stop-after-failures={FAILURES_MAX}")
        """The options of `fsqueue slurm`, all but the modules."""
        if (processes := given.get("processes")) is not None:
            number = whole('slurm["processes"]', processes)
            self.words.append(f"--jobs={number}")
        for key, value in given.items():
            if value is None or value is False or key in OWN:
                continue
            word = f"--{key.replace('_', '-')}"
            self.words.append(word if value is True else f"{word}={os.fspath(value) if key in PATHS else value}")


def _check(key: object, value: object) -> None:
    """Refuse a key that has no meaning here, or a value that is no word of a command. InvalidArgument."""
    if not (isinstance(key, str) and key.isascii() and key.isidentifier() and key == key.lower() and len(key) > 1):
        raise InvalidArgument(
            f"slurm has the key {shown(key)}, which names no option. Write the long name of an option of sbatch or of "
            '\'fsqueue run\', with _ for -: "time", "cpus_per_task".'
        )
    if refused := min((one for one in RESERVED if one.startswith(key)), default=None):  # sbatch takes abbreviations
        instead = INSTEAD.get(refused, "Leave it out: the executor decides that, or its calls would not be executed.")
        raise InvalidArgument(f'slurm cannot have the key "{key}". {instead}')
    if key in OWN or value is None:
        return
    if key in PATHS and not isinstance(value, str | os.PathLike):
        raise InvalidArgument(f'slurm["{key}"] must be a path, not {shown(value)}.')
    is_path = key in PATHS and isinstance(value, os.PathLike)
    if not is_path and (not isinstance(value, str | int | float) or (isinstance(value, str) and "\0" in value)):
        raise InvalidArgument(
            f'slurm["{key}"] must be a text, a number or True, as it stands on a command line, not {shown(value)}.'
        )


def _modules(load: object) -> list[str] | None:
    if load is None:
        return None
    if not isinstance(load, list | tuple) or not load or not all(isinstance(one, str) and one for one in load):
        raise InvalidArgument(
            f'slurm["load"] must be a list of names of modules, at least one, not {shown(load)}. For example: '
            '"load": ["tiles"]'
        )
    return [*load]


def _check_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidArgument(f'slurm["check_s"] must be a number of seconds above 0, not {shown(value)}.')
    return float(value)


class Refusal(NamedTuple):
    """Why jobs were not submitted."""

    why: str
    is_final: bool
    """Whether no repetition mends it, or one may submit jobs twice."""


class SlurmJobs:
    """Submits arrays of workers of one queue, one after the other, while calls wait. InvalidArgument without sbatch.

    path: the queue, as `fsqueue slurm` takes it. status: returns how many tasks the queue has, by their states.
    """

    def __init__(self, path: str, options: JobOptions, status: Callable[[], Status]) -> None:
        if not is_program(SLURM.submit_command):
            raise InvalidArgument(
                "slurm submits jobs, and Slurm's sbatch is not found on this host. Run this on a host where jobs are "
                "submitted, or leave slurm out, and give the executor workers of its own: workers=N."
            )
        self._path, self._options, self._status = path, options, status
        self._clock, self._random = Clock().monotonic, Entropy().random
        self._changed = threading.Lock()
        """Held for moments. Protects the modules, the job, and whether more are submitted."""
        self._modules = options.modules or []
        self._has_begun = options.modules is not None
        """Whether the jobs' modules are fixed."""
        self._job: str | None = None
        """The id of the latest array, until all of it has ended."""
        self._is_over = False
        self._thread: SideThread | None = None
        self._error: Exception | None = None
        self._due_at, self._pause_s = -math.inf, FIRST_LOOK_S
        self._looked_at = -math.inf
        self._was_idle = True
        self._ends = self._ends_before = 0
        """How many calls have ended, and how many had when the latest array was submitted."""
        self._ended_at: float | None = None
        """When Slurm has told that all jobs of the latest array have ended."""
        self._fruitless = 0
        self._last_end = ""
        self._refused_since: float | None = None
        self._refused_pause_s = REFUSED_PAUSE_S[0]
        self._has_been_taken = False

    def need(self, module: str, name: str) -> None:
        """Have the jobs load a module before a call of a function in it is inserted. InvalidArgument if they do not."""
        with self._changed:
            if module in self._modules:
                return
            if not self._has_begun:
                self._modules.append(module)
                return
            loaded = ", ".join(self._modules)
        raise InvalidArgument(
            f"The executor's Slurm jobs load {loaded}, and {name} is in {module}. Name all modules before the first "
            f'call: slurm={{"load": [..., "{module}"]}}'
        )

    def check(self, has_calls: bool, ends: int) -> Exception | None:
        """Begin to ask Slurm, or to submit, if that is due. Return why no more is submitted, if that is so.

        has_calls: whether calls are in the queue, and have not ended. ends: how many have ended so far.
        """
        now = self._clock()
        if self._error is not None or (self._thread is not None and self._thread.is_alive()):
            return self._error
        if not has_calls:
            self._was_idle, self._fruitless, self._refused_since = True, 0, None
            return None
        if self._was_idle:  # by now the jobs may have drained the queue, and ended
            self._was_idle, self._pause_s = False, FIRST_LOOK_S
            self._due_at = min(self._due_at, self._looked_at + FIRST_LOOK_S)
        self._ends = ends
        if now >= self._due_at:
            self._thread = SideThread("fsqueue-executor-slurm", self._step)
            with suppress(OSError):  # no further thread is allowed now: the next check tries again
                self._thread.start()
        return None

    def end(self) -> None:
        """Submit no more, and cancel jobs that wait in Slurm. Those that run end when the queue is drained."""
        with self._changed:
            job, self._job, self._is_over = self._job, None, True
        if job is not None:
            SLURM.cancel([job], only_waiting=True)
        self._wait_for_step()  # it cancels what it is just submitting

    def leave(self) -> None:
        """At the end of this process, which leaves calls in the queue: see that an array is there to execute them."""
        self._wait_for_step()
        if self._error is None and (self._job is None or self._ended_at is not None) and self._has_waiting():
            refusal = self._submit()
            if refusal is not None:
                logger.warning(
                    "calls are left in the queue %s, and no job of Slurm was submitted to execute them: %s. Start "
                    "workers with 'fsqueue slurm' or 'fsqueue run'.", self._path, refusal.why
                )  # fmt: skip
        with self._changed:
            self._is_over = True

    def _wait_for_step(self) -> None:
        """Wait until the thread has taken the step that it is at."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(SUBMIT_S)

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Ask Slurm whether jobs are there, or submit others."""
        try:
            self._due_at = self._next_due()
        except Exception as error:
            logger.error("an executor cannot submit jobs to Slurm", exc_info=True)
            self._error = concurrent.futures.BrokenExecutor(f"The executor cannot submit jobs to Slurm: {error!r}.")

    def _next_due(self) -> float:
        """Take the step that is due, and return when the next one is."""
        job = self._job
        if job is not None and self._ended_at is None:
            is_over = SLURM.is_over(job)
            self._looked_at = now = self._clock()
            if is_over is None:
                logger.warning("an executor waits for Slurm, which does not tell whether job %s is there", job)
            if not is_over:
                self._pause_s = min(2 * self._pause_s, max(self._options.check_s, FIRST_LOOK_S))
                return now + min(self._pause_s, self._options.check_s)
            run = SLURM.run_of(job)
            self._last_end = "" if run is None else f" Job {job}: {run.state}, exit status {run.exit_status}."
            self._ended_at = now
            return now + ENDED_S
        if job is not None:
            self._job = self._ended_at = None
            self._fruitless = self._fruitless + 1 if self._ends == self._ends_before else 0
            if self._fruitless >= FRUITLESS_MAX:
                self._error = concurrent.futures.BrokenExecutor(
                    f"The executor's Slurm jobs have ended {counted(self._fruitless, 'time')} in a row, and no call "
                    f"has ended meanwhile.{self._last_end} Calls that had not begun are cancelled. Look at the logs of "
                    "the jobs, mend the cause, and make another executor."
                )
            if self._fruitless:
                logger.warning("an executor's Slurm jobs have ended before a call has.%s", self._last_end)
                return self._clock() + FRUITLESS_PAUSE_S * 2.0 ** (self._fruitless - 1)
        if not self._has_waiting():
            return self._clock() + min(FIRST_LOOK_S, self._options.check_s)
        refusal = self._submit()
        now = self._clock()
        if refusal is not None:
            return self._refused(refusal, now)
        self._looked_at, self._pause_s = now, FIRST_LOOK_S
        return now + min(FIRST_LOOK_S, self._options.check_s)

    def _has_waiting(self) -> bool:
        """Return whether a task of the queue waits for a worker, or will. If that cannot be told, one may."""
        try:
            found = self._status()
        except FsqueueError as error:
            logger.warning("an executor cannot see whether calls wait: %s", error)
            return True
        return found.waiting + found.delayed > 0

    def _submit(self) -> Refusal | None:
        """Submit an array. Return why that was not done, if it was not."""
        with self._changed:
            if self._is_over:
                return None
            self._has_begun = True
            load = [word for module in self._modules for word in ("--load", module)]
        self._ends_before = self._ends
        words = [sys.executable, "-P", "-m", "fsqueue", "slurm", self._path, "--allow-empty"]
        answer = answer_of([*words, *self._options.words, *load], _environment(), SUBMIT_S)
        if answer is None:
            return Refusal(f"fsqueue slurm could not be started, or did not answer within {SUBMIT_S:g} s", False)
        job = SLURM.job_in(answer.said)
        if job is None and answer.status == 0:
            return Refusal(f"it may have taken them, but its answer names no job: {shown(answer.said.strip())}", True)
        if job is None:
            return Refusal(_complaint(answer), answer.status == USAGE)
        logger.info("an executor has submitted job %s: %s", job, answer.complaint.strip())
        if not self._has_taken(job):
            SLURM.cancel([job], only_waiting=True)
        self._has_been_taken, self._refused_since = True, None
        return None

    def _has_taken(self, job: str) -> bool:
        """Note a job that was submitted. False if the executor has ended meanwhile."""
        with self._changed:
            self._job = None if self._is_over else job
            return not self._is_over

    def _refused(self, refusal: Refusal, now: float) -> float:
        """Return when to submit again after a refusal. After some time note the error."""
        if self._refused_since is None:
            self._refused_since, self._refused_pause_s = now, REFUSED_PAUSE_S[0]
        pause_s = self._refused_pause_s * (0.5 + self._random())
        self._refused_pause_s = min(2 * self._refused_pause_s, REFUSED_PAUSE_S[1])
        if refusal.is_final or now + pause_s - self._refused_since > REFUSED_S[self._has_been_taken]:
            self._error = concurrent.futures.BrokenExecutor(
                f"The executor's jobs could not be submitted to Slurm: {refusal.why}. Calls that had not begun are "
                "cancelled."
            )
        else:
            logger.warning("Slurm has not taken an executor's jobs; they are submitted again: %s", refusal.why)
        return now + pause_s


def _environment() -> dict[str, str]:
    """Return the variables with which jobs are submitted. Workers find the modules beside the running script, too."""
    environment = SLURM.environment(os.environ)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    beside = os.path.dirname(os.path.abspath(script)) if isinstance(script, str) else ""
    if beside and beside in sys.path:
        rest = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{beside}:{rest}" if rest else beside
    return environment


def _complaint(answer: Printed) -> str:
    """Return what sbatch, or `fsqueue slurm`, has complained of."""
    lines = [line.strip() for line in answer.complaint.splitlines() if line.strip()]
    theirs = [line for line in lines if not line.startswith(("fsqueue: sbatch has refused", "Usage:", "Try "))]
    return " ".join(theirs or lines) or f"exit status {answer.status}"
