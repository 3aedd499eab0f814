"""Durations and names of options: one way for all commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from fsqueue_cli import habits
from fsqueue_cli.main import COMMANDS, cli
from fsqueue_cli.options import DURATION, SIZE, seconds_in

from fsqueue import Queue, errors
from tests.cli.conftest import Run

pytestmark = pytest.mark.once

CONTEXT = cli.make_context("fsqueue", ["status", "Q"])


def commands() -> Iterator[tuple[str, click.Command]]:
    """All commands, those of groups too."""
    for name in COMMANDS:
        command = cli.get_command(CONTEXT, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", command.commands[below]) for below in command.commands)
        else:
            yield name, command


OPTIONS = [
    (name, option) for name, command in commands() for option in command.params if isinstance(option, click.Option)
]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("0", 0), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000), ("5m", 300), ("5min", 300), ("90s", 90),
        ("1h", 3600), ("1h30m", 5400), ("1 h 30 min", 5400), ("1.5h", 5400), ("2d", 172_800), ("1w", 604_800),
        ("250ms", 0.25), ("2d12h", 216_000), ("1:00:00", 3600), ("0:30", 30), ("5:00", 300), ("90:00", 5400),
        ("100:00:01", 360_001), ("2-12:00:00", 216_000), ("0:00:01.5", 1.5), (" 5m ", 300),
    ],
)  # fmt: skip
def test_a_duration_is_seconds_units_or_a_clock(text: str, seconds: float) -> None:
    assert seconds_in(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "soon", "-1", "-5m", "inf", "nan", "1e999", "5x", "m", "m5", "30m1h", "5m5m", "1:60", "1:60:00",
     "1:00:60", "1:", ":30", "1:2:3:4", "2-12", "2-12:00", "2-24:00:00", "1,5", "0x10", "1_000", "5 5", "٣m"],
)  # fmt: skip
def test_anything_else_is_none(text: str) -> None:
    assert seconds_in(text) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1), ("2000000000", 2_000_000_000), ("100B", 100), ("1K", 1024), ("1kb", 1024), ("500M", 500 << 20),
        ("2GiB", 2 << 30), ("1.5g", 3 << 29), (" 2 G ", 2 << 30), ("1T", 1 << 40),
    ],
)  # fmt: skip
def test_a_size_is_bytes_or_units_of_1024(text: str, size: int) -> None:
    assert SIZE.convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "G", "0", "-1", "1e9", "5X", "5P", "1,5G", "inf", "0.1", "2 GG", "٣G"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is no size\. Write bytes .* 500M, 2G, 1\.5GiB"):
        SIZE.convert(text, None, None)


def test_every_option_that_is_a_time_is_a_duration() -> None:
    """One click type: what ends up in seconds is typed in the same ways everywhere."""
    timed = [(name, option) for name, option in OPTIONS if (option.name or "").endswith("_s")]
    assert len(timed) >= 18
    for name, option in timed:
        kinds = option.type.types if isinstance(option.type, click.Tuple) else [option.type]
        assert all(kind is DURATION for kind in kinds) or (name, option.name) == ("spark seed", "delay_s"), option
        assert "second" not in (option.help or "").lower() or name == "spark seed", (name, option.help)


def test_what_means_the_same_has_the_same_name() -> None:
    named: dict[str, set[tuple[str, ...]]] = {}
    for _, option in OPTIONS:
        named.setdefault(option.name or "", set()).add(tuple(option.opts))
    differently = {name: options for name, options in named.items() if len(options) > 1}
    assert differently == {}
    flags = {flag for _, option in OPTIONS for flag in option.opts}
    assert not {flag for flag in flags if flag.endswith(("-s", "-max", "-seconds"))} - {"-s"}
    assert {flag for flag in flags if flag.endswith("-days")} == {"--history-days", "--payload-days"}, "no durations"
    assert {option.opts[0] for _, option in OPTIONS if option.name in ("error", "reason")} == {"--reason"}


def test_every_option_has_one_long_name_and_is_shown() -> None:
    """A second name for one meaning must be looked up, and a hidden one cannot be."""
    doubled = {name: option.opts for name, option in OPTIONS if sum(flag.startswith("--") for flag in option.opts) > 1}
    assert doubled == {}
    assert [(name, option.opts) for name, option in OPTIONS if option.hidden] == []


def test_durations_as_they_are_typed(fsqueue_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "q"
    fsqueue_cli("create", path, "--lease", "1:00:00", "--backoff", "500ms", "1h30m", "--max-task-bytes", 5000)
    settings = Queue(path).settings
    assert (settings.lease_s, settings.backoff_s, settings.task_bytes_max) == (3600, (0.5, 5400), 5000)
    fsqueue_cli("insert", path, "--delay", "5m", input="1\n")
    [task] = Queue(path).tasks("delayed")
    assert task.available_at is not None
    assert task.since is not None
    assert 290 < task.available_at - Queue(path).store.clock.now_ms() / 1000 <= 300
    fsqueue_cli("insert", path, input="2\n")
    token = fsqueue_cli("lease", path, "--tokens", "--lease", "2d", "--limit", 1).stdout.strip()
    fsqueue_cli("renew", path, token, "--lease", "1:00:00:00", code=2)
    fsqueue_cli("fail", path, token, "--reason", "no luck", "--delay", "1w")
    assert {task.error for task in Queue(path).tasks("delayed")} == {None, "no luck"}
    said = fsqueue_cli("lease", path, "--wait", "soon", code=2).stderr
    assert "'soon' is no duration. Write seconds (90), units (5m, 1h30m) or a clock (1:00:00)." in said
    fsqueue_cli("wait", path, "--timeout", "10ms", code=124)


def test_slurm_hands_the_options_of_run_to_the_workers(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert(1)
    printed = fsqueue_cli(
        "slurm", queue.path, "--lease", "1:00:00", "--time", "1:00:00", "--print", "--", "true"
    ).stdout
    [sbatch, worker] = [line for line in printed.splitlines() if line.startswith(("sbatch", "exec"))]
    assert "--lease 1:00:00" in worker
    assert "--time 1:00:00" in sbatch
    assert "--lease" not in sbatch


def test_history_is_kept_by_days(fsqueue_cli: Run, queue: Queue) -> None:
    """The unit is in the option's name: a plain 30 cannot be half a minute."""
    for option in ("--history-days", "--payload-days"):
        for some in ("30d", "1h", "1.5", "-1"):
            fsqueue_cli("gc", queue.path, option, some, code=2)
        fsqueue_cli("gc", queue.path, option, "30")
        fsqueue_cli("gc", queue.path, option, "0")


def test_the_help_tells_all_exit_codes_and_what_a_duration_is(fsqueue_cli: Run) -> None:
    text = fsqueue_cli("help").stdout
    raised = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    for code in {0, *raised, 3, 9, 10, 11, 12, 124, 130, 141}:
        assert re.search(rf"^    {code} +\w", text, re.MULTILINE), code
    assert "1:00:00" in text
    assert "5m" in text


# -- habits from other programs ---------------------------------------------------------------------------------

MEMORY = "ulimit -v"
HABITS = {
    **{f"run Q {option} 4 -- true": "Use -j N" for option in ("-P", "-n", "--workers", "--parallel")},
    "run Q -P4 -- true": "Use -j N",
    "run Q --mem 4G -- true": MEMORY,
    "run Q --resume -- true": "Type the command again",
    "run Q --keep-going -- true": "--stop-after-failures N",
    "run Q --joblog f -- true": "fsqueue results Q log.csv",
    "run Q --timeout 60 -- true": "--task-timeout limits a task",
    "run Q --retries 2 -- true": "--max-attempts N lets a task have N attempts",
    "run Q --halt now -- true": "--stop-after-failures 1",
    "run Q ./process {}": "fsqueue run Q -- ./process '{}'",
    "run Q -j2 echo {}": "fsqueue run Q -j2 -- echo '{}'",
    "run Q -j 2 --lease 5m --tag echo 2": "fsqueue run Q -j 2 --lease 5m --tag -- echo 2",
    "run --jobs=2 Q echo 2": "fsqueue run --jobs=2 Q -- echo 2",
    "run Q ./process --lease 5 {}": "fsqueue run Q -- ./process --lease 5 '{}'",
    "retry Q --all": "'fsqueue retry Q --completed --all' every completed task",
    "run Q ./process -v {}": "write '--' before that: fsqueue run Q -- COMMAND",
    "run Q echo {} ::: A B": "fsqueue insert Q --lines",
    "run Q -j 0 -- true": "'0' is neither a number from 1 on nor 'auto'",
    "run Q -j 50% -- true": "'50%' is neither a number from 1 on nor 'auto'",
    "run Q --call cv -- true": "a command after '--' and --call were given",
    "run Q --output none -- true": "append >/dev/null 2>&1",
    "ls Q --state done": "Use --state completed",
    "ls Q --state running": "Use --state leased",
    "ls Q --state pending": "Use --state waiting",
    "ls Q --state error": "Use --state dead",
    "ls Q --state failed": "--state retrying",
    "status Q --watch 5": "--interval 5",
    "set Q --max-attempts 3": "max_attempts=3",
    "results Q --where took_s": "quote the condition, as in --where 'took_s>2'",
    "results Q --where": "quote the condition, as in --where 'took_s>2'",
    "dead list Q --where": "quote the condition",
    "show Q nosuch": "copy one from what 'fsqueue ls' prints",
    "log Q": "'fsqueue show Q TASK' prints a task's history",
    "tail Q": "'fsqueue status Q --watch'",
    "kill Q": "send it SIGTERM",
    "stop Q": "'fsqueue pause Q'",
    "info Q": "'fsqueue status Q'",
    "clean Q": "'fsqueue gc Q'",
}


@pytest.mark.parametrize("typed", HABITS)
def test_a_habit_from_another_program_is_told_what_to_type_here(fsqueue_cli: Run, queue: Queue, typed: str) -> None:
    queue.insert(1)
    words = [str(queue.path) if word == "Q" else word for word in typed.split()]
    result = fsqueue_cli(*words, code=None)
    assert result.exit_code in (1, 2), result.output
    said = " ".join(line.strip() for line in result.stderr.splitlines()).replace(str(queue.path), "Q")
    assert HABITS[typed] in said
    assert queue.status().waiting == 1


def test_what_is_advised_for_a_habit_exists() -> None:
    """A command, an option or a value that comes to be here needs no advice."""
    known = dict(commands())
    assert not habits.COMMANDS.keys() & COMMANDS.keys()
    for name, advised in habits.OPTIONS.items():
        taken = {form for option in known[name].params for form in option.opts}
        assert not advised.keys() & taken
    for name, option, value in habits.VALUES:
        [found] = [one for one in known[name].params if option in one.opts]
        assert isinstance(found.type, click.Choice)
        assert value not in found.type.choices
