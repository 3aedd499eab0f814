"""scripts/test itself: what it notes, repeats and says at the end, and how it shares tests between processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import sharing, summary
from tests.house.source import NO_PLUGINS, TOP

pytestmark = pytest.mark.once

# What scripts/test starts, in place of the real ones: each writes its arguments down, and fails if a file says so.
SETUP = """
venv=$PWD/.venv
say() { printf '%s\\n' "== $*" >&2; }
die() { say "$*"; exit 1; }
setup_env() { mkdir -p "$venv/bin" && cp -n "$PWD/.venv/bin/python" "$venv/bin/python" || :; }
setup_java() { :; }
"""
PROGRAM = """#!/bin/sh
[ "$1" != -c ] || exec echo "$VERSION"
printf '%s\\n' "$(basename "$0") $*" >>"$CALLS"
[ ! -e "$BROKEN/$(basename "$0")" ] || exit 1
[ ! -e "$BROKEN/commit-meanwhile" ] || git commit -q --allow-empty-message -am ''
"""


class Clone:
    """A repository with scripts/test and nothing else of this project."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls, self.broken = path.parent / "calls", path.parent / "broken"
        self.broken.mkdir()
        self.pythons = path.parent / "pythons"
        programs = path / ".venv" / "bin"
        for directory in (path / "scripts" / "lab", programs, self.pythons):
            directory.mkdir(parents=True)
        shutil.copy(TOP / "scripts" / "test", path / "scripts" / "test")
        (path / "scripts" / "setup-env").write_text(SETUP)
        (path / ".gitignore").write_text("/.venv*/\n")
        (path / "file").write_text("first\n")
        places = [programs / name for name in ("ruff", "codespell", "mypy", "python")]
        places += [
            path / "scripts" / name
            for name in (
                "setup-chromium",
                "setup-groff",
                "setup-prometheus",
                "lab/setup",
                "test-oldest-spark",
                "check-release",
                "check-container",
            )
        ]
        for place in places:
            place.write_text(PROGRAM)
            place.chmod(0o755)
        for minor in range(11, 16):
            self.has_python(f"3.{minor}", "exit 1")
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-qm", "all")

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=self.path, check=True, capture_output=True, text=True
        ).stdout

    def has_python(self, version: str, does: str) -> None:
        """Let this machine have another Python, of which only the version is asked."""
        place = self.pythons / f"python{version}"
        place.write_text(f"#!/bin/sh\n{does}\n")
        place.chmod(0o755)

    @property
    def tested(self) -> str:
        place = self.path / ".venv" / "tested"
        return place.read_text() if place.exists() else ""

    def run(self, *arguments: str) -> tuple[int, list[str]]:
        """Return the exit code, and the programs that were called, with their arguments."""
        self.calls.write_text("")
        environment = os.environ | {"CALLS": str(self.calls), "BROKEN": str(self.broken), "PYENV_ROOT": "/nowhere",
                                    "PATH": f"{self.pythons}:{os.environ['PATH']}", "VERSION": "3.11",
                                    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
                                    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}  # fmt: skip
        done = subprocess.run(["sh", "scripts/test", *arguments], cwd=self.path, env=environment, check=False)
        return done.returncode, self.calls.read_text().splitlines()

    def break_down(self, program: str) -> None:
        (self.broken / program).touch()

    def mend(self, program: str) -> None:
        (self.broken / program).unlink()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone")


def pytest_calls(calls: list[str]) -> list[str]:
    """Return those that run tests."""
    return [call for call in calls if " pytest " in call and "--collect-only" not in call]


@pytest.mark.parametrize("level", [[], ["--all"]], ids=["gate", "all"])
def test_a_run_that_passed_notes_the_tree_that_was_tested(clone: Clone, level: list[str]) -> None:
    code, _ = clone.run(*level)
    assert code == 0
    assert clone.tested.startswith(clone.git("rev-parse", "HEAD^{tree}").strip())


@pytest.mark.parametrize("program", ["mypy", "python"])
def test_a_run_that_failed_forgets_which_tree_was_tested(clone: Clone, program: str) -> None:
    clone.run()
    assert clone.tested
    clone.break_down(program)
    code, _ = clone.run()
    assert code == 1
    assert clone.tested == ""


def test_no_tree_is_noted_if_something_is_not_committed(clone: Clone) -> None:
    (clone.path / "file").write_text("second\n")
    code, _ = clone.run()
    assert (code, clone.tested) == (0, "")


def test_no_tree_is_noted_if_another_was_committed_meanwhile(clone: Clone) -> None:
    (clone.path / ".git" / "info" / "exclude").write_text("other\n")
    clone.break_down("commit-meanwhile")  # each program commits what has changed
    (clone.path / "scripts" / "lab" / "setup").write_text("#!/bin/sh\necho second >file\n")
    clone.git("commit", "-qam", "it changes a file")
    clone.run()
    assert clone.tested == ""


@pytest.mark.parametrize("arguments", [["--quick"], ["tests/house"], ["--all", "tests/house"]])
def test_a_run_of_some_tests_notes_no_tree(clone: Clone, arguments: list[str]) -> None:
    code, calls = clone.run(*arguments)
    assert (code, clone.tested) == (0, "")
    [call] = pytest_calls(calls)
    assert ("-m not thorough" in call) == (arguments == ["tests/house"])


def test_the_gate_leaves_out_what_is_thorough_and_all_does_not(clone: Clone) -> None:
    [gate] = pytest_calls(clone.run()[1])
    every, *_ = pytest_calls(clone.run("--all")[1])
    assert "-m not thorough" in gate
    assert "thorough" not in every
    calls = clone.run("--all")[1]
    assert any(call.startswith("test-oldest-spark") for call in calls)
    assert any(call.startswith("check-release") for call in calls)
    assert any(call.startswith("check-container") for call in calls)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_linters_end_and_a_new_clone_is_compiled_once_before_the_tests_begin(clone: Clone, compiled: bool) -> None:
    if compiled:
        (clone.path / "tests" / "__pycache__").mkdir(parents=True)
    clone.break_down("ruff")
    code, calls = clone.run()
    assert code == 1
    assert calls[-1:] == pytest_calls(calls), "although a linter failed"
    assert [call for call in calls if call.startswith("ruff")] == ["ruff check ."]
    assert any("--collect-only" in call for call in calls) != compiled


def test_all_tries_each_other_python_of_the_machine(clone: Clone) -> None:
    clone.has_python("3.11", "echo 3.11")  # the one that all else runs with
    clone.has_python("3.13", "echo 3.13")
    code, calls = clone.run("--all")
    *_, other = pytest_calls(calls)
    assert code == 0
    assert len(pytest_calls(calls)) == 2
    assert "not slow and not thorough" in other
    assert (clone.path / ".venv-3.13").is_dir()
    assert not (clone.path / ".venv-3.11").exists()


def test_what_failed_is_repeated_on_its_level_until_it_passes(clone: Clone) -> None:
    assert clone.run("--failed")[0] == 1  # no run yet
    clone.break_down("python")
    clone.run("--all")
    clone.mend("python")
    code, calls = clone.run("--failed")
    assert code == 0
    repeated, *_ = pytest_calls(calls)
    assert "--last-failed" in repeated
    assert "thorough" not in repeated
    assert not any(call.startswith("mypy") for call in calls)  # it had passed
    code, calls = clone.run("--failed")
    assert (code, calls) == (0, [])


SUITE = """
import random

def test_passes():
    pass

def test_fails():
    print("seed 4711")
    assert random.Random(4711).random() > 2, "never so"
"""


def test_a_run_ends_with_each_failure_its_seed_the_command_that_repeats_it_and_why(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "xdist",
        "-p",
        "tests.house.summary",
        "-p",
        "tests.house.sharing",
        "-n",
        "2",
        str(tmp_path),
    ]
    environment = os.environ | NO_PLUGINS | {"PYTHONPATH": str(TOP)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    meanwhile, end = done.stdout.split("what failed, and how to repeat it")
    for said in (meanwhile, end):
        assert "::test_fails'" in said
        assert "seed 4711" in said
        assert "AssertionError: never so" in said
    assert meanwhile.count("::test_fails'") == 1
    assert "1 failed, 1 passed" in end


def test_a_run_says_what_its_processors_did_and_which_process_waited_for_the_last_one() -> None:
    lines = list(summary.balance([10.0, 5.0], [1010.0, 105.0], {"gw1": 70.0, "gw0": 100.5}))
    assert lines == ["The processors worked for 1000 s, and did nothing for 100 s.",
                     "Before the last process these ended: gw0 0 s, gw1 30 s."]  # fmt: skip
    worked_s, idle_s = summary.processors()
    assert worked_s > 0
    assert idle_s >= 0


def test_why_is_what_the_error_says_or_else_the_last_lines() -> None:
    lines = [">       assert 1 == 2", "E       assert 1 == 2", "", "tests/test_a.py:4: AssertionError"]
    assert summary.why(lines) == ["assert 1 == 2"]
    assert summary.why(map(str, range(20))) == [str(number) for number in range(10, 20)]


def test_what_is_dear_to_start_stays_in_one_process() -> None:
    assert sharing.unit_of("tests/lab/test_nfs.py::test_a") == sharing.unit_of("tests/lab/test_slurm.py::test_b[1]")
    assert (
        sharing.unit_of("tests/simulation/test_stories.py::test_a[1]") == "tests/simulation/test_stories.py::test_a[1]"
    )
    assert sharing.unit_of("tests/house/test_rim.py::test_a") == sharing.unit_of("tests/house/test_ways.py::test_b")
    assert sharing.unit_of("tests/cli/test_run.py::test_a[x::y]") == "tests/cli/test_run.py"


def test_long_units_begin_first_and_those_that_fill_gaps_last() -> None:
    wanted = ["tests/lab/", "tests/spark/", "tests/concurrency/test_races.py", "tests/test_queue.py",
              "tests/house/", "tests/views/test_usage.py", "tests/doctor/test_two_processes.py::test_a",
              "tests/simulation/test_stories.py::test_a"]  # fmt: skip
    assert sorted(sorted(wanted, reverse=True), key=sharing.rank_of) == wanted


def test_tests_that_wait_are_spread_among_those_that_compute() -> None:
    waiting, computing = ([f"{directory}test_a.py::test_{n}" for n in range(8)] for directory in sharing.APART)
    given = ["tests/test_queue.py", *waiting[:4], *computing]
    places = sharing.places_of(given)
    assert [unit for _, unit in sorted(zip(places, given, strict=True))] == [
        "tests/test_queue.py", waiting[0], *computing[:1], waiting[1], computing[1], waiting[2], computing[2],
        waiting[3], *computing[3:],
    ]  # fmt: skip


def test_the_number_of_processes_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSQUEUE_TEST_PROCESSES", "7")
    assert sharing.processes() == 7
    monkeypatch.delenv("FSQUEUE_TEST_PROCESSES")
    assert sharing.processes() >= 2
