"""GPUs: divided among the processes of a worker, each of which knows the number of its slot."""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from fsqueue import InvalidArgument, Queue, Worker
from fsqueue.cluster import slurm
from fsqueue.worker import devices
from tests.support import QueueFactory
from tests.worker import tasks
from tests.worker.support import drained, python, shell_until

SHOW = "import os, json; print(json.dumps([os.environ.get(n) for n in ('FSQUEUE_SLOT', 'CUDA_VISIBLE_DEVICES')]))"


@pytest.fixture(autouse=True)
def without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*devices.VARIABLES, *(name for name in os.environ if name.startswith("SLURM"))]:
        monkeypatch.delenv(name, raising=False)


def smi(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(slurm, "ask", lambda *command: "\n".join(lines) if command == ("nvidia-smi", "-L") else None)


@pytest.mark.parametrize(
    ("environment", "each", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 1, [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]),
        ({"CUDA_VISIBLE_DEVICES": " 7, 2 ,5,1,9"}, 2,
         [{"CUDA_VISIBLE_DEVICES": "7,2"}, {"CUDA_VISIBLE_DEVICES": "5,1"}]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937,MIG-GPU-1a2b/3/0"}, 1,
         [{"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, {"CUDA_VISIBLE_DEVICES": "MIG-GPU-1a2b/3/0"}]),
        ({"ZE_AFFINITY_MASK": "0.0,0.1"}, 1, [{"ZE_AFFINITY_MASK": "0.0"}, {"ZE_AFFINITY_MASK": "0.1"}]),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, 1, [{"HIP_VISIBLE_DEVICES": "2"}, {"HIP_VISIBLE_DEVICES": "3"}]),
    ],
)  # fmt: skip
def test_each_process_has_its_own_devices(
    environment: dict[str, str], each: int, expected: list[dict[str, str]]
) -> None:
    assert devices.shares(environment, 2, each) == expected


def test_what_amd_counts_within_the_first_variable_begins_at_zero_in_each_share() -> None:
    """Else the process of slot 1 would ask for the second of its one device, and find none."""
    all_of_slurm = {"CUDA_VISIBLE_DEVICES": "4,5", "ROCR_VISIBLE_DEVICES": "4,5", "GPU_DEVICE_ORDINAL": "4,5"}
    assert devices.shares(all_of_slurm, 2, 1)[1] == {
        "CUDA_VISIBLE_DEVICES": "5", "ROCR_VISIBLE_DEVICES": "5", "HIP_VISIBLE_DEVICES": "0", "GPU_DEVICE_ORDINAL": "0",
    }  # fmt: skip
    within = {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "3,1"}
    assert devices.shares(within, 2, 1) == [
        {"ROCR_VISIBLE_DEVICES": "7", "HIP_VISIBLE_DEVICES": "0"},
        {"ROCR_VISIBLE_DEVICES": "5", "HIP_VISIBLE_DEVICES": "0"},
    ]


@pytest.mark.parametrize("text", ["", "0", "0,0", "-1", "-2,0,1", "NoDevFiles", "0,-1,1", "none"])
def test_too_few_are_refused_before_anything_is_leased(
    queue: Queue, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    with pytest.raises(InvalidArgument, match=r"2 process.* need 2, but CUDA_VISIBLE_DEVICES names [01]: .*touched"):
        Worker(queue, command=["true"], processes=2, gpus_per_task=1)


def test_without_variables_the_tool_is_asked_and_a_gpu_in_instances_counts_as_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smi(
        monkeypatch,
        "GPU 0: NVIDIA A100 (UUID: GPU-aaaa)",
        "  MIG 3g.20gb     Device  0: (UUID: MIG-bbbb)",
        "  MIG 3g.20gb     Device  1: (UUID: MIG-cccc)",
        "GPU 1: NVIDIA A100 (UUID: GPU-dddd)",
    )
    found = [share["CUDA_VISIBLE_DEVICES"] for share in devices.shares({}, 3, 1)]
    assert found == ["MIG-bbbb", "MIG-cccc", "GPU-dddd"]


def test_a_job_without_gpus_takes_none_of_its_node_and_one_with_some_takes_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smi(monkeypatch, *(f"GPU {n}: NVIDIA (UUID: GPU-{n})" for n in range(4)))
    monkeypatch.setattr(slurm, "in_job", lambda: True)
    with pytest.raises(InvalidArgument, match="need 1, but 0 can be found"):
        devices.shares({}, 1, 1)
    assert devices.shares({"SLURM_JOB_GPUS": "1,3"}, 2, 1) == [
        {"CUDA_VISIBLE_DEVICES": "GPU-1"},
        {"CUDA_VISIBLE_DEVICES": "GPU-3"},
    ]
    with pytest.raises(InvalidArgument, match="0 can be found"):  # which of the four are the job's?
        devices.shares({"SLURM_GPUS_ON_NODE": "2"}, 2, 1)


def test_nothing_is_found_where_there_is_no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "ask", lambda *command: None)
    with pytest.raises(InvalidArgument, match="0 can be found"):
        devices.shares({}, 1, 1)


@pytest.mark.parametrize(("gpus", "each", "slots"), [("0,1,2", 1, 3), ("0,1,2", 2, 1), ("0,1,2,3,4,5,6,7", 1, 4)])
def test_auto_starts_no_more_processes_than_there_are_gpus_for(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, gpus: str, each: int, slots: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr(slurm, "processors", lambda: 4)
    worker = Worker(queue, command=["true"], processes="auto", gpus_per_task=each)
    assert worker._how.slots == slots


def test_auto_does_not_hide_that_there_are_too_few_gpus_for_one(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(InvalidArgument, match="need 2, but CUDA_VISIBLE_DEVICES names 1"):
        Worker(queue, command=["true"], processes="auto", gpus_per_task=2)


def test_threads_have_no_gpus_of_their_own(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="Threads share"):
        Worker(queue, tasks.nothing, threads=2, gpus_per_task=1)


def seen(directory: Path) -> dict[str, list[tuple[str, str, float, float]]]:
    """What the tasks wrote: by share its slot, the process, and from when to when it was at work."""
    found = defaultdict(list)
    for path in directory.iterdir():
        share, slot, pid, began, ended = path.read_text().split("|")
        found[share].append((slot, pid, float(began), float(ended)))
    return found


def check(directory: Path, count: int) -> None:
    """No two that ran at the same time had one share, and all did with one slot."""
    found = seen(directory)
    assert sum(map(len, found.values())) == count
    assert set(found) <= {"a,b", "c,d", "e,f"}
    for number, share in enumerate(("a,b", "c,d", "e,f")):
        runs = sorted(found.get(share, []), key=lambda run: run[2])
        assert {slot for slot, *_ in runs} <= {str(number)}
        for before, after in pairwise(runs):
            assert before[1] == after[1] or before[3] <= after[2]


def others(directory: Path) -> Path:
    """Where tasks note that they have begun. Each waits until one more has, so that no two of them come in turn."""
    (directory / "begun").mkdir()
    return directory / "begun"


@pytest.mark.once
def test_commands_at_work_share_no_device(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b,c,d,e,f")
    (tmp_path / "seen").mkdir()
    queue = queue_factory(max_attempts=1)
    queue.insert_many(range(12))
    script = f"""b=$(date +%s.%N); cd {others(tmp_path)}; before=$(ls | wc -l); touch "$1"
        {shell_until("n=$(ls | wc -l); [ $n -ge $((before + 2)) ] || [ $n = 12 ]")}
        echo "$CUDA_VISIBLE_DEVICES|$FSQUEUE_SLOT|$$|$b|$(date +%s.%N)" >{tmp_path}/seen/"$1"; exit $(($1 % 2))"""
    worker = Worker(queue, command=["sh", "-c", script, "sh", "{}"], processes=3, gpus_per_task=2)
    assert worker.run() == drained(completed=6, failed=6)
    check(tmp_path / "seen", 12)
    assert len(seen(tmp_path / "seen")) == 3


@pytest.mark.once
def test_handlers_share_no_device_and_one_that_replaces_another_has_its_share(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third task kills its process; the devices were known when the handler's module was imported."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b,c,d,e,f")
    (tmp_path / "seen").mkdir()
    queue, begun = queue_factory(max_attempts=1), others(tmp_path)
    queue.insert_many(
        {"path": str(tmp_path / "seen" / str(n)), "begun": str(begun), "all": 12, "dies": n % 3 == 0} for n in range(12)
    )
    worker = Worker(queue, "tests.worker.gpus:show", processes=3, gpus_per_task=2, stop_after_failures=99)
    assert worker.run() == drained(completed=8, failed=4)
    check(tmp_path / "seen", 12)


@pytest.mark.once
def test_a_slot_is_known_without_gpus(queue: Queue) -> None:
    queue.insert_many([1, 2])
    Worker(queue, command=python(SHOW), result_from_stdout=True).run()
    assert [info.result for info in queue.tasks(state="completed")] == [["0", None]] * 2
