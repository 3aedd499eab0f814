"""Stories that went wrong once, kept as files: what was called, what went wrong where, and whose turn it was.

`kept/*.json` are the corpus: `test_stories` tells each of them in each run, and each must end well. `books` says what
is in a file. A story that goes wrong anew is written to `.kept/`: move it into `kept/` when what it found is mended.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.simulation.books import Kept, KeptFault, Role
from tests.simulation.retelling import Retold, record, retell, shortened, what_happened
from tests.simulation.scenarios import SCENARIOS

CORPUS = Path(__file__).parent / "kept"
FOUND = Path(os.environ.get("FSQUEUE_SIMULATION_FOUND", ".kept"))
"""Where stories are written that go wrong."""
DIGITS = (2, 3, 5, 17)
"""Of random fractions: as few as leave the story the same."""
LINE = 116


def record_shortly(scenario: str, seed: int | str, showed: str) -> Kept:
    """Tell the story of a seed, and return what to keep of it, with fractions as short as may be."""
    story = record(SCENARIOS[scenario], seed)
    story.kept.showed = showed
    happened = what_happened(story)
    for digits in DIGITS:
        kept = shortened(story.kept, digits)
        if what_happened(retell(SCENARIOS[scenario], kept)) == happened:
            return kept
    return story.kept


def keep(scenario: str, seed: int | str, showed: str, path: Path) -> Path:
    """Write the story of a seed to a file. It ends as it ends with the code that runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumped(record_shortly(scenario, seed, showed)))
    return path


def keep_found(scenario: str, seed: int | str, wrong: list[str]) -> str:
    """Write a story down that went wrong; return the line that moves it into the corpus."""
    path = keep(scenario, seed, wrong[0].splitlines()[0][:300], FOUND / f"{scenario}-{seed}.json")
    return f"mv {path} {os.path.relpath(CORPUS)}/"


def tell_kept(path: Path, trace: bool = False) -> Retold:
    """Tell the story that is in a file."""
    kept = loaded(path.read_text())
    return retell(SCENARIOS[kept.scenario], kept, trace)


def kept_for(mutation: str) -> Path | None:
    """Return the file of the story that a mutation made go wrong, if there is one."""
    path = CORPUS / f"{slug(mutation)}.json"
    return path if path.exists() else None


def slug(name: str) -> str:
    """Return a name as it can be that of a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# -- the format --------------------------------------------------------------------------------------------------


def dumped(kept: Kept) -> str:
    """Return a story as JSON that can be read, and compared line by line."""
    draws = {why: some for why, some in kept.draws.items() if some}
    parts = {
        "scenario": json.dumps(kept.scenario),
        "showed": json.dumps(kept.showed, ensure_ascii=False),
        "seed": json.dumps(kept.seed),
        "settings": json.dumps(kept.settings),
        "skews_s": json.dumps(kept.skews_s),
        "cast": _lines(json.dumps(asdict(role)) for role in kept.cast),
        "faults": _lines(json.dumps(asdict(fault)) for fault in kept.faults),
        "turns": _filled(f"{place}: {name}" for place, name in kept.turns),
        "draws": "{\n" + ",\n".join(f"  {json.dumps(why)}: {json.dumps(some)}" for why, some in draws.items()) + "\n }",
    }
    return "{\n" + ",\n".join(f' "{key}": {text}' for key, text in parts.items()) + "\n}\n"


def _lines(texts: Iterable[str]) -> str:
    inside = ",\n".join(f"  {text}" for text in texts)
    return f"[\n{inside}\n ]" if inside else "[]"


def _filled(texts: Iterable[str]) -> str:
    """Return a list of texts, several in a line."""
    words = ", ".join(json.dumps(text).replace(" ", "\0") for text in texts)
    lines = textwrap.wrap(words, LINE, break_long_words=False, break_on_hyphens=False)
    return _lines(lines).replace(",,\n", ",\n").replace("\0", " ") if lines else "[]"


def loaded(text: str) -> Kept:
    """Return the story that a file holds."""
    held: dict[str, Any] = json.loads(text)
    return Kept(
        **held
        | {
            "cast": [Role(**role) for role in held["cast"]],
            "faults": [KeptFault(**fault) for fault in held["faults"]],
            "turns": [_turn(line) for line in held["turns"]],
        }
    )


def _turn(text: str) -> tuple[str, str]:
    place, _, name = text.rpartition(": ")
    return place, name
