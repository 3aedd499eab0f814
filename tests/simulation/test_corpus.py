"""Stories that are kept: what a file says means the same story, also when the verbs have changed."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fsqueue.filesystem import Filesystem
from tests.levels import how_many
from tests.simulation import corpus, runner
from tests.simulation.books import Kept
from tests.simulation.corpus import dumped, keep, kept_for, loaded, record_shortly, slug, tell_kept
from tests.simulation.mutations import applied
from tests.simulation.retelling import record, retell, what_happened
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import Story, tell
from tests.simulation.trials import ALL
from tests.simulation.wiring import undisturbed

pytestmark = pytest.mark.once

SAMPLE = {
    "power": 6, "power-nfs": 6, "crash-nfs": 6, "storm": 6, "storm-local": 4, "cut": 4, "interrupt-nfs": 4, "stale": 4,
    "commits-nfs": 6, "commits-overwrite-power": 4, "keyed-nfs": 4, "keyed-epochs": 6, "order-nfs": 4,
    "keyed-order-nfs": 4, "full": 2, "steps": 2, "fork-both": 4,
    "commits-unclean-nfs": 2, "relay-wait": 2, "unclosed-nfs": 2,
}  # fmt: skip
"""The number of stories of each of these scenarios, when there is time. The gate has one of each."""


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    with undisturbed():
        yield


def first_difference(one: tuple[list[str], ...], other: tuple[list[str], ...]) -> tuple[Any, Any] | None:
    """Return where two stories begin to differ: a call with its answer, a fault, or a verdict; None if nowhere."""
    pairs = (pair for lists in zip(one, other, strict=True) for pair in itertools.zip_longest(*lists))
    return next((pair for pair in pairs if pair[0] != pair[1]), None)


@pytest.mark.parametrize("name", SAMPLE)
def test_what_is_kept_means_the_same_story(name: str) -> None:
    scenario = SCENARIOS[name]
    for seed in range(500, 500 + how_many(1, SAMPLE[name])):
        happened = what_happened(tell(scenario, seed))
        recorded = record(scenario, seed)
        assert first_difference(what_happened(recorded), happened) is None, "to write a story down has changed it"
        kept = loaded(dumped(recorded.kept))
        told = retell(scenario, kept)
        assert first_difference(what_happened(told), happened) is None, seed
        assert told.not_reached == []
        assert what_happened(retell(scenario, record_shortly(name, seed, ""))) == happened, seed


def one_call_more(verb: str) -> Any:
    """While this lasts, each `verb` of the filesystem layer makes one system call more than it needs."""
    original = getattr(Filesystem, verb)

    def longer(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._process.stat("/group")
        return original(self, *args, **kwargs)

    return mock.patch.object(Filesystem, verb, longer)


def outline(story: Story) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Return which verbs each worker called in turn, and what was done to the world, but for when that was."""
    called: dict[str, list[str]] = {}
    for call in story.history.calls:
        called.setdefault(call.actor, []).append(call.verb)
    called.pop("last", None)
    return sorted(called.items()), [fault.partition(": ")[2] for fault in story.world.faults]


def test_a_kept_story_outlives_a_change_that_makes_a_seed_mean_another() -> None:
    same = Counts()
    for name in ("power", "crash-nfs", "storm", "keyed-nfs", "commits-nfs", "order"):
        scenario = SCENARIOS[name]
        for seed in range(how_many(5, 12)):
            recorded = record(scenario, seed)
            before = outline(recorded)
            if not recorded.kept.faults:
                continue
            with one_call_more("names"), one_call_more("rename"):
                kept, seeded = retell(scenario, recorded.kept), tell(scenario, seed)
                assert kept.wrong == []
            assert asdict_of_cast(kept) == asdict_of_cast(recorded)
            same.add(outline(kept) == before and not kept.not_reached, outline(seeded) == before)
    assert same.stories > how_many(15, 40)
    assert same.kept >= 0.9 * same.stories, same
    assert same.seeded <= 0.5 * same.stories, same


class Counts:
    """How many stories stayed what they were: those that were kept, and those that a seed means."""

    stories = kept = seeded = 0

    def add(self, kept: bool, seeded: bool) -> None:
        self.stories += 1
        self.kept += kept
        self.seeded += seeded

    def __repr__(self) -> str:
        return f"{self.stories} stories, {self.kept} as they were kept, {self.seeded} as their seeds"


def asdict_of_cast(story: Any) -> list[dict[str, Any]]:
    kept: Kept = story.kept
    return [asdict(role) for role in kept.cast]


def test_a_fault_whose_place_is_gone_is_reported(tmp_path: Path) -> None:
    recorded = next(story for seed in range(99) if (story := record(SCENARIOS["crash"], seed)).kept.faults)
    recorded.kept.faults[0].place = "w0 1.1 rename 1000"
    told = retell(SCENARIOS["crash"], recorded.kept)
    assert told.not_reached == recorded.kept.faults[:1]
    path = tmp_path / "moved.json"
    path.write_text(dumped(recorded.kept))
    assert "not reached: kill at w0 1.1 rename 1000" in run("--kept", str(path))


def test_where_nothing_more_is_written_down_the_seed_decides() -> None:
    """A kept story that is longer than it was is the same each time."""
    recorded = record(SCENARIOS["storm"], 3)
    recorded.kept.draws = {why: draws[:1] for why, draws in recorded.kept.draws.items()}
    recorded.kept.turns = recorded.kept.turns[:3]
    first, second = (what_happened(retell(SCENARIOS["storm"], recorded.kept)) for _ in range(2))
    assert first == second


def test_a_story_that_goes_wrong_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "FOUND", tmp_path)
    monkeypatch.setattr(Story, "_drain", lambda story, last: ["it does not drain"])
    told = runner.tell_share(("crash", 7, 5))
    assert len(told.wrong) == 5
    for name, seed, wrong in told.wrong[: runner.FOUND_MOST]:
        path = tmp_path / f"{name}-{seed}.json"
        assert wrong[-1].startswith(f"mv {path} ")
        assert wrong[-1].endswith("tests/simulation/kept/")
        story = tell_kept(path)
        assert (story.kept.showed, story.wrong[0]) == ("it does not drain", "it does not drain")
    assert len(list(tmp_path.iterdir())) == runner.FOUND_MOST
    monkeypatch.undo()
    assert tell_kept(tmp_path / "crash-7.json").wrong == []


def test_the_file_of_a_mutations_story_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CORPUS", tmp_path)
    assert slug("log before task file: 2") == "log-before-task-file-2"
    assert kept_for("log before task file: 2") is None
    path = keep("calm", 1, "nothing", tmp_path / "log-before-task-file-2.json")
    assert kept_for("log before task file: 2") == path


def test_a_story_can_be_kept_and_told_again_by_hand(tmp_path: Path) -> None:
    keep("power", 8, "what it showed", tmp_path / "power-8.json")
    text = run("--kept", str(tmp_path / "power-8.json"), "-v")
    assert "what it showed" in text
    assert "the power fails" in text
    assert len(text.splitlines()) > 100


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def test_stories_of_the_corpus_are_of_scenarios_that_there_are() -> None:
    """That each can be told is in test_stories.py, which tells them all."""
    for path in corpus.CORPUS.glob("*.json"):
        kept = loaded(path.read_text())
        assert kept.scenario in SCENARIOS
        assert kept.showed
        assert dumped(kept) == path.read_text(), f"{path.name} is not as it is written"


def test_each_mutation_that_stories_catch_has_its_story() -> None:
    """So the gate would catch it: it tells each story of the corpus, and a mutation makes its own go wrong."""
    assert [one.name for one in ALL if isinstance(one.found_by, str) and kept_for(one.name) is None] == []


@pytest.mark.thorough
@pytest.mark.slow
def test_a_mutation_makes_its_kept_story_go_wrong_again() -> None:
    """If one does not any more, find another story: tell seeds of its scenario with the mutation, and keep one."""
    missed, kept = [], 0
    for mutation in ALL:
        path = kept_for(mutation.name)
        if path is not None:
            kept += 1
            with applied(mutation):
                if not tell_kept(path).wrong:
                    missed.append(path.name)
    assert kept > 100
    assert missed == []
