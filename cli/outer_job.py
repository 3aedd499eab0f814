"""Which variables of the environment belong to the Slurm job that a command is typed in: a new job must not get them.

Slurm hands a submitter's environment on to the new job, where srun reads its variables as options: workers would share
the outer step's one processor, or srun would refuse two kinds of memory limits, and none would start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SLURM = re.compile(r"SLURM_|SLURMD_|SRUN_|SBATCH_(?:CPU|MEM)_BIND|PMI_|PMI2_|PMIX_(?!MCA_)|OMPI_COMM_WORLD_")
"""Matches what Slurm and the launchers of MPI set in a job and its steps.

SBATCH_*, such as SBATCH_ACCOUNT, is what users ask sbatch for. Only the bindings among them are set by Slurm.
PMIX_MCA_* and OMPI_MCA_* are settings of users and sites.
"""
_USERS = {
    "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_SOCKET",
    "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "SLURM_DEBUG_FLAGS", "SLURM_EXIT_ERROR", "SLURM_EXIT_IMMEDIATE",
}  # fmt: skip
"""What users and sites set to reach Slurm, or to have it print otherwise. sbatch itself needs the former."""
_DEVICES = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
            "GPU_DEVICE_ORDINAL"}  # fmt: skip
"""What Slurm sets for the GPUs of a job. A new job with GPUs gets its own; one without must not see the outer job's."""
_HAS_DEVICES = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")


def job_of(environment: Mapping[str, str]) -> str:
    """Return the id of the job that this is typed in; "" outside of jobs."""
    return environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID") or ""


def variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that the outer job has set. Outside of jobs, all are the user's own."""
    if not job_of(environment):
        return []
    devices = _DEVICES if any(environment.get(name) for name in _HAS_DEVICES) else set()
    return sorted(
        name for name in environment if name in devices or (_SLURM.match(name) is not None and name not in _USERS)
    )
