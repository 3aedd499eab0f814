"""Tell whether commands run on other nodes than their worker: then their results need a place that all nodes see."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsqueue.cluster import slurm

_LAUNCHER = re.compile(r"(?:^|[\s;&|(`'\"/])(?:srun|mpirun|mpiexec(?:\.hydra)?|orterun|prun|aprun|jsrun)(?=$|[\s;&|)])")
"""Matches a program that starts processes on other nodes, alone or in a script."""


def names_launcher(command: Sequence[str]) -> bool:
    """Tell whether a command, or a script in it, names a program that starts processes on other nodes."""
    return any(_LAUNCHER.search(word) for word in command)


def may_leave_node(command: Sequence[str]) -> bool:
    """Tell whether a command may run on other nodes: it says so, or one worker has a job of several nodes to itself.

    A hint: what another program starts elsewhere cannot be seen from here.
    """
    return names_launcher(command) or slurm.is_alone_on_nodes()
