"""Measure a rate over all processes: see scripts/measure-rate."""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.process
import sys
import tempfile
import time

from fsqueue import Queue
from fsqueue.format import layout

KILLED_EACH_S = 3.0


def work(path: str) -> None:
    """Lease and complete tasks until killed."""
    queue = Queue(path)
    while True:
        for task in queue.lease(2, wait_s=1):
            task.complete()


def main() -> int:
    """Run the processes, and print what they have leased."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rate", type=layout.lease_rate, help="as 5/s, 90/m")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--dir", help="where to make the queue")
    given = parser.parse_args()
    rate: layout.LeaseRate = given.rate
    with tempfile.TemporaryDirectory(dir=given.dir) as place:
        queue = Queue.create(f"{place}/q", lease_s=3600)
        queue.insert_many(range(int(rate.per_s * (given.seconds + 60) * 1.5) + 100))
        queue.change_settings(rate=rate.text)

        def start() -> multiprocessing.process.BaseProcess:
            worker = multiprocessing.get_context("spawn").Process(target=work, args=(str(queue.path),))
            worker.start()
            return worker

        workers = [start() for _ in range(given.processes)]
        try:
            time.sleep(4 + 1 / rate.per_s)  # until the bucket has no more than what comes in
            before, began, killed = queue.status(), time.monotonic(), 0
            while (left_s := began + given.seconds - time.monotonic()) > 0:
                time.sleep(min(KILLED_EACH_S, left_s))
                workers[0].kill()
                workers[0].join()
                workers = [*workers[1:], start()]
                killed += 1
            after, took_s = queue.status(), time.monotonic() - began
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
    leased = after.completed + after.leased - before.completed - before.leased
    wanted = rate.per_s * took_s
    print(
        f"rate={rate.text}, {given.processes} processes, {killed} killed: {leased:,} leased in {took_s:.1f} s, "
        f"which is {leased / wanted:.1%} of {wanted:,.1f}"
    )
    return int(leased > max(1.1 * wanted, wanted + 1))


if __name__ == "__main__":
    sys.exit(main())
