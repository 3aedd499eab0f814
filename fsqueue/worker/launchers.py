"""Tell whether commands run on other nodes than their worker, or may go on after its death.

On other nodes, their results need a place that all nodes see.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsqueue.cluster import slurm

_LAUNCHER = re.compile(
    r"(?:^|[\s;&|(`'\"/])"
    r"(?:srun|(?:mpirun|mpiexec)(?:\.(?:openmpi|mpich|hydra|slurm|lsf|mpt)|_rsh|_mpt)?|orterun|prun|prterun|oshrun|aprun"
    r"|jsrun|lrun|ibrun|ccc_mprun)"
    r"(?=$|[\s;&|)])"
)
"""Matches a program that starts processes on other nodes, alone or in a script."""

_ELSEWHERE = re.compile(
    r"(?:^|[\s;&|(`'\"/])"
    r"(?:ssh|rsh|mosh|pdsh|clush|oarsh|docker|nerdctl|ctr|crictl|kubectl|sbatch|salloc|qsub|qrsh|bsub|blaunch|pbsdsh"
    r"|condor_submit|oarsub|pjsub|llsubmit|msub|ccc_msub|systemd-run|machinectl|tmux|at)"
    r"(?=$|[\s;&|)])"
)
"""Matches another program whose work is done by processes that are not below it, alone or in a script."""


def names_launcher(command: Sequence[str]) -> bool:
    """Tell whether a command, or a script in it, names a program that starts processes on other nodes."""
    return any(_LAUNCHER.search(word) for word in command)


def may_leave_node(command: Sequence[str]) -> bool:
    """Tell whether a command may run on other nodes: it says so, or one worker has a job of several nodes to itself.

    A hint: what another program starts elsewhere cannot be seen from here.
    """
    return names_launcher(command) or slurm.is_alone_on_nodes()


def may_outlive_worker(command: Sequence[str]) -> bool:
    """Tell whether a command's work may go on when all processes below the worker have ended.

    It says so, or may run on other nodes. A hint: what a script that it names starts cannot be seen from here.
    """
    return may_leave_node(command) or any(_ELSEWHERE.search(word) for word in command)
