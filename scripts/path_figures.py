"""What it costs to resolve paths from an open directory: `scripts/bench-paths`.

Each operation is done by bare calls with the whole path (the floor: they follow links), by a Filesystem with openat2(2)
and by one that goes component by component, by turns in one run. The figure of each is the least of its rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable

from fsqueue.filesystem import Filesystem, beneath

ROUNDS, EACH = 60, 200
GEN = "1-0123456789abcdef"


def bare(root: str) -> dict[str, Callable[[], object]]:
    """The operations by the whole path."""
    shard, staging = f"{root}/{GEN}/queue/00", f"{root}/{GEN}/staging"

    def read() -> None:
        fd = os.open(f"{shard}/file", os.O_RDONLY | os.O_CLOEXEC)
        os.fstat(fd)
        os.pread(fd, 1 << 16, 0)
        os.close(fd)

    def missing() -> None:
        try:
            os.close(os.open(f"{shard}/missing", os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            pass

    def rename() -> None:
        os.rename(f"{shard}/a", f"{shard}/b")
        os.rename(f"{shard}/b", f"{shard}/a")

    def publish() -> None:
        os.close(os.open(f"{staging}/new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666))
        os.rename(f"{staging}/new", f"{shard}/new")
        os.unlink(f"{shard}/new")

    return {
        "read a file": read,
        "look for a file that is missing": missing,
        "rename within a directory, twice": rename,
        "create, rename, unlink": publish,
        "list a directory": lambda: os.listdir(shard),
        "stat": lambda: os.stat(f"{shard}/file", follow_symlinks=False),
    }


def safe(root: str, way: Callable[..., int]) -> dict[str, Callable[[], object]]:
    """The same through a Filesystem that opens paths in this way."""
    fs = Filesystem(root, shared=False)
    fs._open_beneath = way
    shard, staging = f"{root}/{GEN}/queue/00", f"{root}/{GEN}/staging"

    def rename() -> None:
        fs.rename(f"{shard}/a", f"{shard}/b")
        fs.rename(f"{shard}/b", f"{shard}/a")

    def publish() -> None:
        fs.close(fs.create(f"{staging}/new"))
        fs.rename(f"{staging}/new", f"{shard}/new")
        fs.unlink(f"{shard}/new")

    calls: list[Callable[[], object]] = [
        lambda: fs.read(f"{shard}/file"),
        lambda: fs.exists(f"{shard}/missing"),
        rename,
        publish,
        lambda: fs.names(shard),
        lambda: fs.stat(f"{shard}/file"),
    ]
    return dict(zip(bare(root), calls, strict=True))


def measure(root: str, entries: int) -> dict[str, dict[str, float]]:
    """By operation and way: the least time of one, in microseconds."""
    for directory in (f"{root}/{GEN}/queue/00", f"{root}/{GEN}/staging"):
        os.makedirs(directory)
    for name in ("a", *(f"e{number}" for number in range(entries))):
        os.close(os.open(f"{root}/{GEN}/queue/00/{name}", os.O_CREAT | os.O_WRONLY))
    with open(f"{root}/{GEN}/queue/00/file", "wb") as file:
        file.write(b"x" * 500)
    ways = {"bare": bare(root), "openat2": safe(root, beneath.openat2), "components": safe(root, beneath.walk)}
    if not beneath.openat2_works():
        del ways["openat2"]
    least: dict[str, dict[str, float]] = {name: dict.fromkeys(ways, float("inf")) for name in ways["bare"]}
    for _ in range(ROUNDS):
        for way, calls in ways.items():
            for name, call in calls.items():
                begin = time.perf_counter()
                for _ in range(EACH):
                    call()
                least[name][way] = min(least[name][way], (time.perf_counter() - begin) / EACH * 1e6)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench-paths", description=__doc__.partition("\n")[0])
    parser.add_argument("directory", nargs="?", help="where to measure (default: the system's directory for such)")
    parser.add_argument("--entries", type=int, default=16, help="files in the directory that is listed (16)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    place = tempfile.mkdtemp(prefix="fsqueue-paths-", dir=args.directory)
    try:
        least = measure(f"{place}/root", args.entries)
    finally:
        shutil.rmtree(place)
    if args.json:
        json.dump(least, sys.stdout, indent=1)
        print()
        return
    print(f"{'microseconds':34s}" + "".join(f"{way:>14s}{'':8s}" for way in next(iter(least.values()))))
    for name, ways in least.items():
        print(f"{name:34s}" + "".join(f"{us:14.1f} ({us / ways['bare']:4.2f}x)" for us in ways.values()))


if __name__ == "__main__":
    main()
