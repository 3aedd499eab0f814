"""Handlers for the tests of workers, which children import by name."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fsqueue
from tests.waiting import until

NUMBER = 7
LONG_S = 600.0
"""A handler waits longer than its test does."""


def until_there(path: str) -> None:
    until(Path(path).exists, path, LONG_S)


def nothing(payload: Any) -> None:
    pass


def fields(tile: int, zoom: int = 1) -> Any:
    return [tile, zoom]


def no_utf8(payload: Any) -> None:
    raise ValueError("cannot read " + os.fsdecode(b"scan-\xff.tif"))


def no_memory(payload: Any) -> None:
    bytearray(1 << 60)


def much_memory(payload: Any) -> None:
    b"x" * (1 << 30)


def double(payload: Any) -> Any:
    return {"double": payload * 2}


def busy(payload: Any) -> None:
    """Take 60 MiB, and some time."""
    taken = bytearray(60 << 20)
    assert sum(range(3_000_000)) > len(taken)
    if payload:
        raise ValueError(payload)


def large_if_bad(payload: Any) -> Any:
    """A result that is small in characters, and too large as JSON."""
    return "\x01" * 30_000 if payload == "bad" else 1


def about(payload: Any, task: Any) -> Any:
    return {"id": task.id, "attempt": task.attempt, "queue": task.queue, "stop": task.should_stop(), "pid": os.getpid()}


def obey(payload: Any) -> Any:
    """Do what the payload says: {"do": …, …}."""
    match payload["do"]:
        case "return":
            return payload.get("value")
        case "raise":
            raise ValueError(payload["text"])
        case "exit":
            sys.exit(3)
        case "vanish":
            print("going", file=sys.stderr, flush=True)
            os._exit(5)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hold":  # the interpreter's lock, in C, until another process opens this FIFO
            ctypes.PyDLL(None).open(payload["fifo"].encode(), os.O_RDONLY)
        case "sleep":
            time.sleep(payload["s"])
        case "last":
            signal.pause()
        case "touch":
            Path(payload["path"]).write_text(str(os.getpid()))
            if "lasts" in payload:
                signal.pause()
            if "go" in payload:
                until_there(payload["go"])
        case "retry":
            raise fsqueue.Retry(payload.get("delay_s"))
        case "bury":
            raise fsqueue.Bury(payload.get("why", ""))
        case "print":
            print(payload["text"])
            print(payload["text"], file=sys.stderr)
        case "bye":
            print(payload["text"])
            sys.exit("bye")
        case "fork":
            os.fork()
        case "unprintable":
            return object()
        case "large":
            return "x" * 100_000
        case "exhaust":  # leave no file descriptor free
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        case "until":
            until_there(payload["path"])
    return None


def note(payload: Any) -> None:
    """Append who did what to a file."""
    with open(payload["log"], "a") as file:
        file.write(f"{payload['n']} {os.getpid()}\n")


def until_told(payload: Any, task: Any) -> None:
    Path(payload["began"]).touch()
    until(task.should_stop, "the word to stop", LONG_S)
    raise fsqueue.Retry(0)


async def later(payload: Any) -> None:
    pass


def no_argument() -> None:
    pass


def prints(payload: Any) -> None:
    print("out")
    print("err", file=sys.stderr)


def descriptors(payload: Any) -> Any:
    """What a program would inherit that is started without closing anything."""
    listed = subprocess.run(["ls", "/proc/self/fd"], close_fds=False, stdout=subprocess.PIPE, text=True, check=True)
    return sorted(map(int, listed.stdout.split()))


def gated(payload: Any) -> Any:
    """Say that task N has begun, wait for its gate (`go-N`, or `go`), and return N."""
    where, n = Path(payload["where"]), payload["n"]
    with open(where / "began", "a") as file:
        file.write(f"{n} {os.getpid()}\n")
    until(lambda: (where / "go").exists() or (where / f"go-{n}").exists(), "the gate", LONG_S)
    if payload.get("fails"):
        raise ValueError(n)
    return n


def misattributes(payload: Any) -> Any:
    """Answer as a process would that has lost count of its tasks: for another task than the one at hand."""
    from fsqueue.worker import child_messages

    real = child_messages.send

    def send(end: Any, number: int, task: str, body: bytes, flags: int = 0) -> None:
        real(end, number + payload["off"], task + payload["other"], payload["garbage"].encode() or body, flags)

    def packed(number: int, task: str, body: bytes) -> bytes:
        return pack(number + payload["off"], task + payload["other"], payload["garbage"].encode() or body)

    pack = child_messages.packed
    child_messages.packed, child_messages.send = packed, send
    return payload["n"]


def dies_as_it_answers(payload: Any) -> Any:
    """Wait for the gate; then have this process die at a step of its answer, or tell nothing until it waits."""
    from fsqueue.worker import answer_memory, child

    child.RING_S, child.RING_AFTER = 1e6, 1 << 20
    step, count = payload.get("dies"), answer_memory._COUNT

    def die(*given: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Counting:
        size = count.size
        unpack_from = staticmethod(count.unpack_from)

        @staticmethod
        def pack_into(*given: Any) -> None:
            if step == "put, not counted":
                die()
            count.pack_into(*given)
            if step == "counted, not rung":
                die()
            if step == "garbled":
                given[0][64:] = bytes(len(given[0]) - 64)
                answer_memory._COUNT = count
                child.RING_AFTER = 1

    if step == "not put":
        child._Teller.answer = die  # type: ignore[method-assign]
    if step == "rung":
        child.RING_AFTER, ring = 1, child._Teller._ring
        child._Teller._ring = lambda teller: die(ring(teller))  # type: ignore[method-assign]
    if step in ("rung, no message", "rung, then a message"):
        send = child.child_messages.send

        def dying(*given: Any) -> None:
            send(*given)
            if step == "rung, no message" or given[2]:
                die()

        child.child_messages.send = dying
    answer_memory._COUNT = Counting  # type: ignore[assignment]
    with open(payload["log"], "a") as file:
        file.write(f"{payload['n']}\n")
    if payload["n"] == 0:
        until(lambda: Path(payload["go"]).exists(), "the gate", LONG_S)
    return "x" * 2000 if step in ("rung, no message", "rung, then a message") else payload["n"]


def stormy(payload: Any) -> Any:
    """Say which task is executed, take a while, and return it."""
    with open(payload["log"], "a") as file:
        file.write(f"{payload['n']} {os.getpid()}\n")
    if payload["s"] > 0.005:
        time.sleep(payload["s"])
    else:
        until = time.perf_counter() + payload["s"]
        while time.perf_counter() < until:
            pass
    return payload["n"]


def follow(payload: Any) -> Any:
    """Return what the payload says: {"result": …, "inserts": [[queue, payload], …]}."""
    return fsqueue.Then(payload.get("result"), [tuple(pair) for pair in payload["inserts"]])


def follow_with_key(payload: Any) -> Any:
    """Return what the payload says, each task with the key "self"."""
    return fsqueue.Then(None, [(name, fsqueue.Task(each, key="self")) for name, each in payload["inserts"]])


def follow_with(payload: Any) -> Any:
    """Return inserts that a payload cannot say."""
    later = fsqueue.Task(b"\xff", priority=3, delay_s=60)
    return fsqueue.Then(1, {"later": [("next", later)], "set": [("next", {1, 2})]}[payload])


def rings_no_more(payload: Any) -> None:
    """Ring for the first answer only; take a while, and wait for a file, if one is named."""
    from fsqueue.worker import child

    child.RING_S, child.RING_AFTER = 1e6, 1 << 20
    time.sleep(payload["s"])
    if payload.get("until"):
        until(lambda: Path(payload["until"]).exists(), "the gate", LONG_S)
