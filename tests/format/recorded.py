"""Movement logs that the simulator's stories have left, and random ones; and what a replay of each comes to.

`recorded_logs.json.gz` has the logs, each with a digest of its states. Those come from a replay that judged a record
and changed the state in two places, with other code for records of its own process. `python -m tests.format.recorded`
makes the file anew, with the replay as it is.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from fsqueue.format import checkpoints, movements
from fsqueue.format.replay import ReplayState
from fsqueue.format.task_states import Lease

FILE = Path(__file__).parent / "recorded_logs.json.gz"
SEEDS = (0, 1)
RARE = {"cancel", "revoke", "abort", "replace", "depends"}
"""Of a scenario's logs those are kept that have these kinds of records."""
CLOCK = (
    b'{"op":"clock","at":1,"tasks":[[0,1]],"since":[7]}\n{"op":"lease","at":3,"lease":"z","tasks":[[0,1]],"until":9}\n'
)
"""What some of them end with. In no story that is told here a log's time is corrected."""
RANDOM = 200
"""How many random logs there are."""
LOG_BYTES = range(100, 4000)
"""Length of the logs that are kept."""
OF_TASKS = ("state", "since", "attempts", "version")
OF_LOG = (
    "count", "remaining", "done", "available_at", "base_version", "opened", "inserts", "sealed", "inserted_at",
    "finished", "gone", "at", "damaged", "disputed", "is_ranked", "priorities", "places", "payloads", "errors",
    "blamed", "results", "used", "took", "counts", "frozen",
)  # fmt: skip
IN_NO_ORDER = ("solo", "ended", "ids", "insert_ids", "touched")


def told(state: ReplayState) -> dict[str, Any]:
    """All that a state says of its tasks, their leases, and the updates that are not decided."""
    found = {name: getattr(state, name) for name in OF_LOG}
    found |= {name: list(getattr(state, name)) for name in OF_TASKS}
    found |= {name: sorted(getattr(state, name)) for name in IN_NO_ORDER}
    found["holder"] = [holder and holder.id for holder in state.holder]
    found["names"] = [*state.names]
    found["leases"] = {each.id: _of_lease(each) for each in state.leases.values()}
    found["shared"] = {index: [each.at, each.updates] for index, each in state.shared.items()}
    found["prepared"] = {
        each.update: [each.file, each.patience_ms, each.at, len(each.records), each.tasks, each.verdicts]
        for each in state.prepared.values()
    }
    found["stretch"] = [state.stretch.since, state.stretch.sum]
    found["next"] = [state.next_time(), [state.charged(index) for index in range(state.count)]]
    found["acted"] = [[offset, record["op"]] for offset, record in state.acted]
    return found


def _of_lease(lease: Lease) -> list[Any]:
    return [lease.at, lease.span, lease.is_alone, lease.worker, lease.tasks]


def digest(state: ReplayState) -> str:
    text = json.dumps(told(state), sort_keys=True).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:12]


def digests(data: bytes) -> list[str]:
    """Of the state behind each line; of all lines at once, by the way of readers of whole logs; and of what a process
    comes to that begins at the last checkpoint.
    """
    state, found, offset = ReplayState(), [], 0
    for line in data.splitlines(keepends=True):
        offset += state.replay(line, offset)
        found.append(digest(state))
    at_once, inserts = ReplayState(), dict[int, dict[str, Any]]()
    at_once.apply_all(records(data), inserts)
    found.append(digest(at_once) + str(sorted(inserts)))
    begun = checkpoints.last_trusted(lambda size, offset: data[offset : offset + size], len(data))
    late = ReplayState.from_checkpoint(begun) if begun is not None else None
    if begun is not None and late is not None:
        late.replay(data[begun.end :], begun.end)
        found.append(digest(late))
    return found


def records(data: bytes) -> list[tuple[int, dict[str, Any]]]:
    found, offset = [], 0
    for line in data.splitlines(keepends=True):
        record = movements.parse(line[:-1])
        if record is not None and line.endswith(b"\n") and not line.startswith(checkpoints.MARK):
            found.append((offset, record))
        offset += len(line)
    return found


def loaded() -> list[tuple[str, bytes, str]]:
    """The scenario of each log, the log, and the digest of its digests."""
    with gzip.open(FILE, "rt") as file:
        return [(name, text.encode("latin-1"), expected) for name, text, expected in json.load(file)]


def together(data: bytes) -> str:
    return hashlib.sha256("".join(digests(data)).encode()).hexdigest()[:16]


def main() -> None:
    from tests.simulation.scenarios import SCENARIOS
    from tests.simulation.stories import tell
    from tests.simulation.wiring import simulated_machine

    found: dict[bytes, str] = {}
    for name, scenario in SCENARIOS.items():
        mine: dict[frozenset[str], bytes] = {}
        for seed in SEEDS:
            with simulated_machine():
                logs = tell(scenario, seed).world.disk.logs
            for files in logs.values():
                for file in files:
                    data = bytes(file.data)
                    kinds = frozenset(record["op"] for _, record in records(data))
                    if len(data) in LOG_BYTES:
                        mine[kinds] = min(mine.get(kinds, data), data, key=len)
        for kinds in sorted(mine, key=lambda kinds: (len(kinds & RARE), len(kinds)))[-3:]:
            found[mine[kinds]] = name
    for data in _random(RANDOM):
        found.setdefault(data, "random")
    rows = [[name, data.decode("latin-1"), together(data)] for data, name in found.items()]
    with gzip.GzipFile(FILE, "wb", 9, mtime=0) as file:
        file.write(json.dumps(rows).encode())
    print(len(rows), "logs,", sum(len(data) for data in found), "bytes,", FILE.stat().st_size, "compressed")


def _random(number: int) -> list[bytes]:
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from tests.format.test_replay_properties import logs

    found: list[bytes] = []

    @seed(1)
    @settings(max_examples=number, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(logs(most=40))
    def collect(data: bytes) -> None:
        found.append(data + CLOCK if len(found) % 4 == 0 else data)

    collect()
    return found


if __name__ == "__main__":
    main()
