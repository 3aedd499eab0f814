"""Divide the GPUs that this process may use among the processes of a worker (docs/gpus.md, "GPUs").

The environment says which GPUs these are: `CUDA_VISIBLE_DEVICES` or one of the other variables below, as a scheduler or
the user set it. If none is set, NVIDIA's own tool is asked. Nothing opens a device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fsqueue.cluster import slurm
from fsqueue.errors import InvalidArgument
from fsqueue.format.wording import counted

SLOT = "FSQUEUE_SLOT"
"""The number of the slot that a process has, from 0 on. No two processes at work have the same."""
CUDA, ROCR, HIP, LEVEL_ZERO = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
ORDINAL = "GPU_DEVICE_ORDINAL"
VARIABLES = (CUDA, ROCR, HIP, LEVEL_ZERO, ORDINAL)
"""Of NVIDIA, AMD (twice: the second counts within the first), Intel, and OpenCL on AMD. Slurm may set several."""
WITHIN_ROCR = (HIP, ORDINAL)
_NONE = re.compile("-[0-9]+|NoDevFiles|none|void")
"""Words for no device. What follows one of them in a list is ignored, as by CUDA."""
_UUID = re.compile(r"\(UUID: ((?:GPU|MIG)-[^)\s]+)\)")


def shares(environment: Mapping[str, str], processes: int, each: int) -> list[dict[str, str]]:
    """Return for each of so many processes the variables that show it `each` devices, and no other process these.

    InvalidArgument if there are not enough.
    """
    lists = _lists(environment)
    name, found = _found(environment, lists)
    wanted = processes * each
    if len(found) < wanted:
        unset = ", ".join(VARIABLES[:4])
        where = f"{name} names {len(found)}" if name else f"{len(found)} can be found ({unset} unset)"
        raise InvalidArgument(
            f"{counted(processes, 'process', 'processes')} with {counted(each, 'GPU')} each would need {wanted}, but "
            f"{where}: ask for more GPUs, or start fewer processes (-j). No task was touched."
        )
    lists = lists or {CUDA: found}
    made = []
    for slot in range(processes):
        share = {key: ",".join(some[slot * each : (slot + 1) * each]) for key, some in lists.items()}
        if ROCR in lists:  # AMD counts within it; without HIP's own variable, its runtime takes CUDA's for that
            share |= dict.fromkeys([HIP, *(key for key in (ORDINAL,) if key in lists)], ",".join(map(str, range(each))))
        made.append(share)
    return made


def count(environment: Mapping[str, str]) -> int:
    """Return how many devices there are to divide."""
    return len(_found(environment, _lists(environment))[1])


def _found(environment: Mapping[str, str], lists: Mapping[str, list[str]]) -> tuple[str, list[str]]:
    """Return the devices, and the variable that names them: "" if none is set. Of several the shortest list counts."""
    return min(lists.items(), key=lambda item: len(item[1]), default=None) or ("", _asked(environment))


def _lists(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the devices by variable, of the variables that are set."""
    lists = {name: _devices(environment[name]) for name in VARIABLES if name in environment}
    outer = lists.get(ROCR)
    for name in WITHIN_ROCR if outer is not None else ():
        inner = lists.get(name)
        if inner is not None and all(one.isdecimal() and int(one) < len(outer or ()) for one in inner):
            lists[ROCR] = [(outer or [])[int(one)] for one in inner]
            break
    if outer is not None:
        for name in WITHIN_ROCR:
            if name in lists:
                lists[name] = [str(number) for number in range(len(lists[ROCR]))]
    return lists


def _devices(text: str) -> list[str]:
    """Return the devices of a list, each once."""
    found: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        if not word or _NONE.fullmatch(word):
            break
        found.append(word)
    return list(dict.fromkeys(found))


def _asked(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs, or their MIG instances, that NVIDIA's own tool shows this process: as names that hold anywhere.

    In a Slurm job that has no GPUs there are none: those of the node belong to other jobs.
    """
    numbers = _devices(environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or "")
    count = environment.get("SLURM_GPUS_ON_NODE", "")
    if slurm.in_job() and not numbers and not count.isdecimal():
        return []
    instances: list[list[str]] = []  # of each GPU: itself, or its MIG instances
    for line in (slurm.ask("nvidia-smi", "-L") or "").splitlines():
        for name in _UUID.findall(line):
            if name.startswith("GPU-"):
                instances.append([name])
            elif instances:
                instances[-1] = [one for one in instances[-1] if one.startswith("MIG-")] + [name]
    if slurm.in_job() and len(instances) > (len(numbers) or int(count)):  # the node's, not the job's
        chosen = [int(number) for number in numbers if number.isdecimal()]
        instances = [instances[number] for number in chosen if number < len(instances)]
    return [name for some in instances for name in some]
