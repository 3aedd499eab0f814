"""Tell many stories, or one again.

    python -m tests.simulation --schedules 100000 --jobs 2      # many, of all scenarios, from seed 0 on
    python -m tests.simulation --minutes 30 --first 1000000     # as many as there is time for
    python -m tests.simulation 4711 --scenario cut -v           # one again, call by call
    python -m tests.simulation 4711 --scenario cut --keep "a task is lost"   # keep it: as calls and faults, in a file
    python -m tests.simulation --kept tests/simulation/kept/cut-4711.json -v # one that was kept, call by call

A story that goes wrong is written to a file in `.kept/`; the line that moves it into the corpus is printed, too.
Exits with 0 if nothing was found, with 1 otherwise; each finding comes with the command that replays it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.corpus import CORPUS, keep, tell_kept
from tests.simulation.retelling import Retold
from tests.simulation.runner import Told, replay_command, tell_many
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import Story, tell
from tests.simulation.wiring import simulated_machine


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", nargs="?", type=int, help="tell this story again")
    parser.add_argument(
        "--scenario", action="append", choices=sorted(SCENARIOS), help="this kind of story (repeatable)"
    )
    parser.add_argument("--schedules", type=int, default=10_000, help="how many stories (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, help="stop after so long (and then as many stories as there is time for)"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the tenth finding")
    parser.add_argument("--keep", metavar="TEXT", help="with a seed: keep the story in the corpus; it showed this")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="tell this story of the corpus")
    parser.add_argument("-v", "--verbose", action="store_true", help="with a seed or a file: every call")
    arguments = parser.parse_args()
    if arguments.keep is not None and (arguments.seed is None or len(arguments.scenario or ()) != 1):
        parser.error("--keep needs a seed and one --scenario")
    if arguments.kept is not None:
        return again_from(arguments.kept, arguments.verbose)
    names = arguments.scenario or list(SCENARIOS)
    if arguments.keep is not None:
        [name] = names
        with simulated_machine():
            print(keep(name, arguments.seed, arguments.keep, CORPUS / f"{name}-{arguments.seed}.json"))
    if arguments.seed is not None:
        return again(names, arguments.seed, arguments.verbose)
    begun = time.monotonic()
    total = Told()
    limit = sys.maxsize if arguments.minutes else arguments.schedules
    for told in tell_many(names, arguments.first, limit, arguments.jobs, arguments.minutes):
        for scenario, seed, wrong in told.wrong:
            print(f"\n{replay_command(scenario, seed)}\n    " + "\n    ".join(wrong[:4]), flush=True)
        total.add(told)
        if len(total.wrong) >= 10 and not arguments.keep_going:
            break
    seconds = time.monotonic() - begun
    print(
        f"{total.stories:,} schedules, {total.steps:,} calls, {sum(total.faults.values()):,} faults in {seconds:.0f} s "
        f"({seconds / max(total.stories, 1) * 1000:.2f} ms each): {len(total.wrong)} went wrong"
    )
    print("faults: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(total.faults.items())))
    kinds = Counter(scenario for scenario, _, _ in total.wrong)
    if kinds:
        print("wrong: " + ", ".join(f"{name} {count}" for name, count in kinds.items()))
    return 1 if total.wrong else 0


def again(names: list[str], seed: int, verbose: bool) -> int:
    """One story, told to the reader."""
    bad = False
    with simulated_machine():
        for name in names:
            story = tell(SCENARIOS[name], seed, trace=verbose)
            show(f"{name} {seed}", story)
            bad |= bool(story.wrong)
    return 1 if bad else 0


def again_from(path: Path, verbose: bool) -> int:
    """One story of the corpus, told to the reader."""
    with simulated_machine():
        story = tell_kept(path, trace=verbose)
        show(path.stem, story)
    print(f"It showed: {story.kept.showed}")
    return 1 if story.wrong else 0


def show(title: str, story: Story) -> None:
    if story.world.trace is not None:
        print("\n".join(story.world.trace))
    print(f"{title}: {len(story.history.calls)} calls of verbs, {story.world.disk.step} of the system")
    for fault in story.world.faults:
        print(f"    fault at {fault}")
    for kept in story.not_reached if isinstance(story, Retold) else ():
        print(f"    not reached: {kept.kind} at {kept.place}")
    for text in story.wrong:
        print(f"    WRONG {text}")


if __name__ == "__main__":
    sys.exit(main())
