"""Each system call that the loop of a worker can reach stands in decision 34, with the reason why it may be made."""

from __future__ import annotations

import ast
import re

from tests.house.source import TOP, nodes

IN_THE_LOOP = (
    "answer_memory", "batches", "child_messages", "child_processes", "command_processes", "commands", "events", "jobs",
    "loop", "output",
    "placeholders", "spawning", "supervision",
)  # fmt: skip
"""The modules of `fsqueue.worker` with code that runs in the loop."""
MODULES = {
    "os", "socket", "signal", "resource", "threading", "select", "selectors", "subprocess", "time", "shutil",
    "supervisor",
}  # fmt: skip
NO_CALLS = {
    "os.cpu_count", "os.fsdecode", "os.fsencode", "os.getpid", "os.strerror", "os.waitstatus_to_exitcode",
    "signal.Signals", "socket.CMSG_SPACE", "resource.struct_rusage", "supervisor.encode_command",
}  # fmt: skip
"""They ask the system for nothing, or for what it always knows."""


def calls() -> set[str]:
    return {
        f"{node.func.value.id}.{node.func.attr}"
        for module in IN_THE_LOOP
        for node in nodes(TOP / "fsqueue" / "worker" / f"{module}.py")
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in MODULES
    }


def test_the_table_names_the_calls_of_the_loop_and_no_others() -> None:
    page = (TOP / "docs" / "decisions" / "0034-what-the-loop-may-wait-for.md").read_text()
    rows = re.findall(r"^\| (`\w+\.\w+`.*?) \|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+\.\w+)`", row)} == calls() - NO_CALLS


def test_the_loop_opens_no_file_and_removes_none() -> None:
    """What does is in a thread: results, outputs, queues."""
    assert not {"os.open", "os.unlink", "os.rename", "os.mkdir", "os.rmdir", "os.stat", "os.listdir"} & calls()
