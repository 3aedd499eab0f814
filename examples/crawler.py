"""A crawler: pages that link to each other in circles, each of them visited once, also if workers are killed meanwhile.

    python examples/crawler.py site/ start.html /scratch/me/crawl --workers 3 --kill 2

The first argument is a directory of pages, in place of the network; the second the page to begin with; the third a new
directory for a group. A page goes through three queues. Each step is one update, so no page is lost between two queues,
or goes on twice, wherever a worker dies:

- `fetch`: store the page, insert it into `extract`, and put the task back for a day. So the task keeps its key, the
  page's name, and no link to the page inserts a second one. After a day the page would be visited again.
- `extract`: insert the links of the page into `fetch`. Those whose key is taken are left out. Insert it into `index`.
- `index`: complete the task with the number of the page's words.

`--kill N` kills N workers at random, with SIGKILL; the program starts others in their place.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fsqueue

AGAIN_S = 86_400
"""When a page is visited again."""
LINK = re.compile(r'href="([\w.-]+)"')
STAGES = "fetch|extract|index"


def fetch(group: fsqueue.Group, task: fsqueue.LeasedTask, site: Path) -> None:
    """Store a page where `extract` finds it."""
    page = task.payload
    with group.update() as update:
        if (site / page).is_file():
            _stored(group, page).write_bytes((site / page).read_bytes())
            update.insert("extract", page)
        else:
            update.insert("broken", page)
        update.release(task, AGAIN_S)


def extract(group: fsqueue.Group, task: fsqueue.LeasedTask, site: Path) -> None:
    """Follow the links of a page."""
    page = task.payload
    with group.update() as update:
        for link in sorted(set(LINK.findall(_stored(group, page).read_text()))):
            update.insert("fetch", link, key=link)
        update.insert("index", page)
        update.complete(task)


def index(group: fsqueue.Group, task: fsqueue.LeasedTask, site: Path) -> None:
    """Count the words of a page."""
    task.complete({"page": task.payload, "words": len(_stored(group, task.payload).read_text().split())})


def _stored(group: fsqueue.Group, page: str) -> Path:
    return group.path.with_name(f"{group.path.name}-pages") / page


def worker(place: str, site: str) -> None:
    """Work on all stages until killed."""
    group = fsqueue.Group(place)
    steps: dict[str, Callable[[fsqueue.Group, fsqueue.LeasedTask, Path], None]]
    steps = {"fetch": fetch, "extract": extract, "index": index}
    for task in group.matching(STAGES).poll(until="forever"):
        try:
            steps[task.queue.path.name](group, task, Path(site))
        except (fsqueue.UpdateConflict, fsqueue.LeaseLost) as lost:  # this process was so slow that another one has it
            print(lost, file=sys.stderr)


def counts(group: fsqueue.Group) -> tuple[int, list[int]]:
    """Return how many tasks are to be done now, and how many came into each queue."""
    every = [group[name].status() for name in STAGES.split("|")]
    return sum(each.waiting + each.leased for each in every), [each.inserted for each in every]


def main(site: str, start: str, place: str, workers: int, kills: int) -> fsqueue.Group:
    """Crawl a site from a page on, by worker processes, some of which are killed."""
    group = fsqueue.Group.create(place, lease_s=5)
    _stored(group, "").mkdir()
    group["fetch"].insert(start, key=start)

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, "worker", place, site])

    at_work = [begin() for _ in range(workers)]
    moments = sorted(random.sample(range(1, 10 * kills + 1), kills))
    before: tuple[int, list[int]] | None = None
    while True:
        now = counts(group)
        while moments and now[1][-1] >= moments[0]:  # another random number of pages has come to the last stage
            moments.pop(0)
            victim = random.randrange(len(at_work))
            at_work[victim].kill()
            at_work[victim].wait()
            at_work[victim] = begin()
        if now[0] == 0 and now == before:
            break  # no task moved on between the two looks, and none was to be done
        before = now
        time.sleep(0.1)
    for one in at_work:
        one.kill()
        one.wait()
    print(f"killed {kills - len(moments)} workers", file=sys.stderr)
    return group


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("site")
        parser.add_argument("start")
        parser.add_argument("place")
        parser.add_argument("--workers", type=int, default=3)
        parser.add_argument("--kill", type=int, default=0)
        given = parser.parse_args()
        found = main(given.site, given.start, given.place, given.workers, given.kill)
        pages = [one.result for one in found["index"].results()]
        print(f"{len(pages)} pages with {sum(page['words'] for page in pages)} words")
        print(f"broken links: {' '.join(sorted(task.payload for task in found['broken'].tasks())) or 'none'}")
