"""What the plain path executes: opcodes of a lease, a completion, a loop's turn and an insert, the same at each run.

No number may grow. Whoever makes one smaller writes that down here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.house.source import TOP

MOST = {
    "lease": 811,
    "complete": 540,
    "complete with a result": 630,
    "insert": 1168,
    "loop": 1009,
    "loop with results": 1093,
}
"""Maximum number of opcodes of CPython 3.11, of most calls. Of later versions a quarter more are allowed."""
COUNTING = """
import sys
from fsqueue import Queue
queue = Queue.create(sys.argv[1], durability="none")
queue.insert_many({"payload": "x" * 180} for _ in range(2000))
held, looped = [], Queue.create(sys.argv[1] + "2", durability="none")
looped.insert_many({"payload": "x" * 180} for _ in range(2000))
loop = iter(looped.poll())
answered = Queue.create(sys.argv[1] + "3", durability="none")
answered.insert_many({"payload": "x" * 180} for _ in range(2000))
answering = iter(answered.poll())
def lease(): held.append(queue.lease(n=1, lease_s=600)[0])
steps = {
    "lease": lease, "complete": lambda: held.pop().complete(),
    "again": lease, "complete with a result": lambda: held.pop().complete({"y": 1}),
    "insert": lambda: queue.insert({"payload": "x" * 180}), "loop": lambda: next(loop).complete(),
    "loop with results": lambda: next(answering).complete({"y": 1}),
}
opcodes = {name: [0] * 80 for name in steps}
def count(name, step):
    def trace(frame, event, arg):
        frame.f_trace_opcodes = True
        opcodes[name][turn] += event == "opcode"
        return trace
    sys.settrace(trace)
    step()
    sys.settrace(None)
for turn in range(80):
    for name, step in steps.items():
        count(name, step) if turn >= 60 else step()
each = {name: sorted(opcodes[name][60:])[5:15] for name in steps}  # one of them writes a checkpoint
each["insert"] = sorted(opcodes["insert"][60:])[:10]  # some ring the doorbell: how many goes by the time
print(*(f"{name}:{sum(each[name]) // 10}" for name in steps), sep="\\n")
"""


def test_the_plain_path_executes_no_more_than_it_did(tmp_path: Path) -> None:
    environment = {**os.environ, "FSQUEUE_CHECK": "0"}
    command = [sys.executable, "-c", COUNTING, str(tmp_path / "q")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=TOP, env=environment)
    found = {name: int(number) for name, number in (line.split(":") for line in done.stdout.splitlines())}
    allowed = 1 if sys.version_info[:2] == (3, 11) else 1.25
    assert {name: found[name] for name, most in MOST.items() if found[name] > most * allowed} == {}
