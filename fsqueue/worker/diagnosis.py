"""Say what else is to blame for a failure: a script that cannot be executed, or the limit of memory (ulimit -v)."""

from __future__ import annotations

import os
import re
import resource
import signal

from fsqueue.filesystem import program_fault

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""With these, shells and env(1) say that they could not execute a program."""
_MEMORY = re.compile(
    r"MemoryError|bad_alloc|OutOfMemory|(?:out of|insufficient|virtual) memory|memory exhausted"
    r"|(?:can ?not|could not|failed to|unable to) (?:allocate|map|mmap|reserve)(?: \w+){0,2} "
    r"(?:memory|segment|space|stack|heap|vector)",
    re.IGNORECASE,
)
"""Matches what programs print that got no memory."""
_FOUND_WANTING = re.compile(
    r"(?P<program>[^\s:]*/[^\s:]+): (?:not found|bad interpreter|cannot execute|exec format error|permission denied"
    r"|no such file)",
    re.IGNORECASE,
)
"""Matches the program that a shell could not execute."""
_OF_MEMORY = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
"""How programs die that do not look whether they got memory."""


def address_space() -> str:
    """Return how much memory a process of this worker may have, in words; "" without a limit."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "" if most == resource.RLIM_INFINITY else f"{most / 2**30:.1f} GiB"


def memory(said: str, status: int | None = None) -> str:
    """Return what to add to a failure in which memory seems to lack: " (…)", or "" if nothing limits it by ulimit -v.

    `said`: what was printed or raised; `status`: how the process ended.
    """
    most = address_space()
    if not most or not (_MEMORY.search(said) or (status is not None and -status in _OF_MEMORY)):
        return ""
    return f" (ulimit -v allows each process {most} of memory: raise it, or remove it)"


def not_executed(program: str, status: int | None, printed: str) -> str:
    """Return why a program could not execute a script, or its interpreter: " (…)", or "" if that is not the case.

    `program`: the command's own, which was executed; `printed`: the end of its standard error.
    """
    if status not in (NOT_EXECUTABLE, NOT_FOUND):
        return ""
    fault = program_fault(program, has_begun=True)
    if not fault and (found := _FOUND_WANTING.search(printed)) is not None:
        program = found["program"]
        fault = program_fault(program)
    return f" ({os.path.basename(program)}: {fault})" if fault else ""
