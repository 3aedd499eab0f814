"""What happened in a queue over time, in equal pieces, and how long the work took: numbers for charts.

It reads what `activity` reads, in the same bounds: of more files a random sample stands for all (docs/status.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fsqueue.format.models import AsDict
from fsqueue.storage.store import Store
from fsqueue.views.activity import COMPLETIONS, FINISHED, INSERTED, LEASES, Listed, Survey


@dataclass(frozen=True, slots=True)
class Timeline(AsDict):
    """How many tasks were inserted, leased, completed and given up in each piece of a window. An estimate and a hint.

    The first piece begins at `begin` (Unix seconds on the file server's clock), each takes `step_s`. A number is None
    if what happened then is not known: the queue keeps no history, or more happened since than is read.

    `work_s`: pairs of a duration in seconds and a number of tasks: how long the work on tasks took that were completed
    in the window, in what was read, by duration. `share`: the part of the files that was read; below 1, the numbers are
    estimates.
    """

    begin: float
    step_s: float
    inserted: list[int | None]
    leased: list[int | None]
    completed: list[int | None]
    given_up: list[int | None]
    work_s: list[tuple[float, int]] = field(default_factory=list)
    share: float = 1.0


def timeline(store: Store, window_ms: int, pieces: int) -> Timeline:
    """Return what happened in the last `window_ms` milliseconds, in `pieces` equal pieces. OSError, QueueNotFound."""
    store.verify_place()
    while True:
        survey = Survey(store, window_ms, Listed.of(store))
        if not store.verify_place():  # what is seen while a queue is purged does not matter
            break
    begin = survey.now - window_ms
    known_from = survey.since if store.settings.keep_history else survey.now
    counts = {kind: [0.0] * pieces for kind in (INSERTED, LEASES, COMPLETIONS, FINISHED)}
    work: Counter[int] = Counter()
    for part in survey.parts:
        for unit in part.units:
            for kind, pieces_of in counts.items():
                for at, tasks in unit.events[kind].items():
                    at = min(at, survey.now - 1)  # other hosts' clocks differ
                    if at >= begin:
                        pieces_of[(at - begin) * pieces // window_ms] += tasks * part.scale
            for (_, _, worked), tasks in unit.leases.items():
                work[max(0, worked)] += tasks
    step = window_ms / pieces
    unknown = [begin + (number + 1) * step <= known_from for number in range(pieces)]

    def rounded(numbers: list[float]) -> list[int | None]:
        return [None if hidden else round(number) for number, hidden in zip(numbers, unknown, strict=True)]

    ended = [all_ - done for all_, done in zip(counts[FINISHED], counts[COMPLETIONS], strict=True)]
    return Timeline(
        begin / 1000,
        step / 1000,
        rounded(counts[INSERTED]),
        rounded(counts[LEASES]),
        rounded(counts[COMPLETIONS]),
        rounded(ended),
        [(ms / 1000, tasks) for ms, tasks in sorted(work.items())],
        min(1 / part.scale for part in survey.parts),
    )
