"""Jobs that submit their successors, broken on purpose."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "a job submits a successor without looking for one",
        "a job that was requeued has two of them",
        "campaign",
        (
            (
                "due",
                "if own is None or any(waits for job, waits in slots[own[0]] if job != own[1]): return empty",
                "if own is None: return empty",
            ),
        ),
    ),
    Mutation(
        "a job that runs takes itself for its successor",
        "squeue shows it as waiting for a moment, and it has none",
        "campaign-calm",
        (
            (
                "due",
                "if own is None or any(waits for job, waits in slots[own[0]] if job != own[1]): return empty",
                "if own is None or any(waits for job, waits in slots[own[0]]): return empty",
            ),
        ),
    ),
    Mutation(
        "jobs of one slot are not kept apart",
        "two of them run, when two jobs have filled an empty slot, or one was taken late",
        "campaign-commands",
        (("Slurm.submission", "f'{depends_on},singleton' if depends_on else 'singleton'", "depends_on"),),
    ),
    Mutation(
        "a campaign has a slot more than it may have jobs",
        "one job too many runs",
        "campaign-calm",
        (("Campaign.slot_jobs", "range(self.slots)", "range(self.slots + 1)"),),
    ),
    Mutation(
        "a slot that lost its jobs stays empty",
        "a job died before it had a successor, and with each such death there is one less",
        "campaign",
        (("due", "return [own[0], *empty]", "return [own[0]]"),),
    ),
    Mutation(
        "a scheduler that does not answer has no jobs",
        "a job has a successor already, and submits another one",
        "campaign-commands",
        (("Filling.is_done", "if jobs is None: ...", "jobs = jobs or {}"),),
    ),
    Mutation(
        "a job submits once",
        "its submission was refused, and it has no successor",
        "campaign-commands",
        (("Filling.is_done", "return not is_own", "return True"),),
    ),
    Mutation(
        "a job does not ask whether its campaign was stopped",
        "it was submitted when the jobs that wait were listed already, and goes on for ever",
        "campaign-stop-calm",
        (
            ("why_leave", "if found.stops != campaign.stops: ...", "pass"),
            ("begin_job", "if is_stopped(campaign): ...", "pass"),
            ("Filling.is_done", "if is_stopped(self.campaign): return True", "pass"),
        ),
    ),
    Mutation(
        "after a submission no job asks whether its campaign was stopped",
        "the stop has listed the jobs just before, and one stays that nobody cancels",
        "campaign-stop-late",
        (("Filling.is_done", "if is_stopped(self.campaign): self.controller.cancel(...); return True", "pass"),),
    ),
    Mutation(
        "a stop is written down when the jobs were cancelled",
        "a job has submitted another one in between, which stays",
        "campaign-stop-late",
        (
            ("stop", "stops.stop(queue.store)", "pass"),
            (
                "stop",
                "is_done = is_done and (not now or controller.cancel(running, only_waiting=False))",
                """
                is_done = is_done and (not now or controller.cancel(running, only_waiting=False))
                stops.stop(queue.store)
                """,
            ),
        ),
    ),
    Mutation(
        "a job with nothing to do submits its successor",
        "jobs come for ever when all is done",
        "campaign-calm",
        (("why_leave", "if found.is_over: ...", "pass"),),
    ),
    Mutation(
        "jobs that used their time are not counted",
        "no task fits the time limit, and jobs come for ever",
        "campaign-too-long",
        (("after", "fruitless += 1", "pass"),),
    ),
    Mutation(
        "a paused queue has jobs",
        "they come one after the other, and none may lease a task",
        "campaign-paused",
        (("why_leave", "if found.is_paused: ...", "pass"),),
    ),
]
