"""A campaign with every fault at every call of one of its processes, or another process's act at every call.

`campaigns` has the jobs, and judges them. Here nothing is drawn but whose turn it is, and that is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation import campaigns
from tests.simulation.faults import FAULTS
from tests.simulation.handles import Host
from tests.simulation.history import Actor
from tests.simulation.kernel import Process
from tests.simulation.slurm import KILLED, TROUBLES
from tests.simulation.stories import Scenario, Story, told
from tests.simulation.wiring import collect, undisturbed
from tests.simulation.world import NEVER

SCENARIO = Scenario(
    "struck-campaign", shared=False, hosts=1, workers=0, actions={"wait": 1.0}, tasks_before=0, campaign=True,
    settings={"shards": 1, "batch_tasks_max": 4, "max_attempts": None, "keep_history": True},
)  # fmt: skip
TASKS, TASK_S = 6, 250.0
STOPS_AT_S, MEANWHILE_S = 300.0, 20.0
"""When the stopper stops the campaign; and for how long a process stands still while another one acts."""
STOPPER = "stopper"


@dataclass(frozen=True)
class Case:
    """`fate` comes at call `at` of the process `whose`, in a campaign of so many jobs. There `act` is done by another
    process, if one is named.
    """

    slots: int
    whose: str
    fate: str
    at: int
    act: str = ""


class Struck(Story):
    """A campaign to which something happens at one call."""

    def __init__(self, case: Case, trace: bool = False) -> None:
        super().__init__(SCENARIO, f"{case.slots} {case.whose}", trace)
        self.case = case
        self.shape = case.slots, 0, TASK_S
        self.made: list[str] = []
        """What the process has called."""

    def _plan(self) -> None:
        before = self.actor("first", self.hosts[0])
        before.insert_many(self.fresh(TASKS), 4)
        before.exit()
        if self.case.whose == STOPPER:
            campaigns.employ(self, STOPPER, Host("another"), self._stop_later)
        self.switch_at = NEVER

    def _stop_later(self, actor: Actor) -> None:
        actor.work(STOPS_AT_S)
        campaigns.stop_now(self, actor)

    def pause(self, process: Process, name: str, args: tuple[Any, ...]) -> None:
        """Before each call: is it the one?"""
        self.world.pause_at = 0
        if process.name != self.case.whose:
            return
        self.made.append(name)
        if len(self.made) == self.case.at:
            if self.case.act:
                campaigns.employ(self, "other", Host("another"), lambda actor: ACTS[self.case.act](self, actor))
                self.world.sleep(process, MEANWHILE_S)
            self._befall(process, name, args)

    def _befall(self, process: Process, name: str, args: tuple[Any, ...]) -> None:
        fate, job = self.case.fate, self.slurm.job_of(process)
        if fate in TROUBLES:
            self.slurm.troubles[name] = [fate]
            self.world.fault(f"{name} is {fate}")
        elif fate == "cancelled" and job is not None:
            self.world.fault(f"job {job.number} is cancelled")
            self.slurm.end(job, "CANCELLED", KILLED)
        elif fate in ("kill", "requeue"):
            FAULTS[fate](self, process, name, args)


def _execute_all(story: Struck, actor: Actor) -> None:
    """Complete all that may be leased."""
    while tasks := actor.lease(4):
        actor.complete(tasks)


ACTS: dict[str, Callable[[Struck, Actor], None]] = {
    "stop": campaigns.stop_now,
    "pause": lambda story, actor: actor.do(campaigns.PAUSE, lambda q: q.pause()) and None,
    "execute": _execute_all,
}
"""What another process does while the process stands still."""
FATES = ("kill", "requeue", "cancelled", *(how for how in TROUBLES if how != "deaf"))
"""What may become of a job, or of one of its commands."""
CASES = {
    **{(slots, "user", fate, ""): None for slots in (1, 2) for fate in ("kill", "refused", "lost", "late")},
    **{(slots, "job1", fate, ""): None for slots in (1, 2) for fate in FATES},
    **{(2, whose, fate, ""): None for whose in ("job2", "job3") for fate in FATES},
    **{(slots, "job1", fate, act): None for slots in (1, 2) for fate in ("on", "kill", "requeue") for act in ACTS},
    **{(slots, STOPPER, fate, ""): None for slots in (1, 2) for fate in ("kill", "silent", "deaf")},
}
"""Jobs at most, whose calls, what becomes of that process, and what another one does before."""


def is_place(fate: str, name: str) -> bool:
    """Return whether this may come at such a call."""
    return fate not in TROUBLES or TROUBLES[fate] == name


def tell(case: Case, trace: bool = False) -> Struck:
    """Tell one case, to the judgement."""
    return told(SCENARIO, lambda: Struck(case, trace))


def wrong(slots: int, whose: str, fate: str, act: str, step: int) -> tuple[int, int, list[str]]:
    """Tell each `step`-th case, two at least if there are two. Return how many were told, how many jobs they had, and
    what went wrong, with the case.
    """
    count, jobs, found = 0, 0, list[str]()
    with undisturbed():
        calm = tell(Case(slots, whose, "on", NEVER))
        found += [f"where nothing happens: {text}" for text in calm.wrong]
        places = [at for at, name in enumerate(calm.made, 1) if is_place(fate, name)]
        calm.forget()
        step = max(1, min(step, len(places) // 2))
        for at in places[::step]:
            case = Case(slots, whose, fate, at, act)
            story = tell(case)
            found += [f"{case}: {text}" for text in story.wrong]
            count, jobs = count + 1, jobs + len(story.slurm.jobs)
            story.forget()
            collect(count)
    return count, jobs, found
