"""The long run: `python -m tests.storms updates SECONDS [SEED]`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests import tally
from tests.storms import hops, updates
from tests.storms.rounds import play_apart

STORMS = {storm.name: storm for storm in (updates.STORM, hops.STORM)}


def main() -> int:
    """Play rounds until the time is over; 1 if anything broke."""
    parser = argparse.ArgumentParser(description="Storms of updates and of hops (docs/testing.md).")
    parser.add_argument("storm", choices=STORMS)
    parser.add_argument("seconds", type=float)
    parser.add_argument("seed", type=int, nargs="?", default=random.randrange(10**6))
    parser.add_argument("--faults", type=int, default=40, help="in a round [40]")
    options = parser.parse_args()
    print(f"{options.storm}: from seed {options.seed}", flush=True)
    storm, place = STORMS[options.storm], Path(tempfile.mkdtemp(prefix=f"storm-of-{options.storm}-"))
    total: Counter[str] = Counter()
    broken, begun, seed = 0, time.monotonic(), options.seed
    while time.monotonic() - begun < options.seconds:
        try:
            total.update(play_apart(storm, place, seed, options.faults))
        except (AssertionError, TimeoutError) as error:
            broken += 1
            print(error, flush=True)
        total["rounds"] += 1
        seed += 1
    tally.note(f"storm of {options.storm}", total)
    print(f"{options.storm}, seeds {options.seed} to {seed - 1}: {dict(total)}; {broken} rounds broke")
    if not broken:
        place.rmdir()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
