"""No test goes by the clock: it waits for a condition, and asserts order. So a busy machine makes none of them red."""

from __future__ import annotations

import ast
from functools import cache
from textwrap import dedent

import pytest

from tests.house.clocks import COMPARES, COUNTS, GUARD_S, LIMITS, SLEEPS, Finding, findings_in, findings_of
from tests.house.source import TOP

HERE = "tests/house/test_no_clock.py"

ALLOWED: dict[tuple[str, str], str] = {
    ("tests/waiting.py", "until"): "the one place that sleeps between two looks",
    ("tests/waiting.py", "until_async"): "the same, in a coroutine",
    ("tests/waiting.py", "_answers"): "gives up after a minute",
    ("tests/worker/support.py", "shell_until"): "how a shell waits for a condition",
    (
        "tests/filesystem/test_syncs.py",
        "test_a_child_that_a_signal_handler_forks_does_not_wait_for_its_parents_threads",
    ): "a handler that outlasts the time limit of the wait that it interrupts",
    ("tests/worker/tasks.py", "rings_no_more"): "an answer that comes some time after another; the worker waits longer",
    # Time is random there, or asked for: nothing depends on it.
    ("tests/simulation/runner.py", "tell_many"): "plays stories for as many minutes as its user asked for",
    ("tests/adversary/arena.py", "duel"): "plays for as many seconds as its user asked for",
    ("tests/storms/__main__.py", "main"): "plays for as many seconds as its user asked for",
    ("tests/adversary/acts.py", "Adversary.ambush"): "the adversary's random moments",
    ("tests/adversary/acts.py", "Adversary.flicker"): "the adversary's random moments",
    ("tests/adversary/acts.py", "Adversary.take_away"): "the adversary's random moments",
    ("tests/adversary/test_groups.py", "module"): "commands that end soon, whatever they find",
    ("tests/cli/test_targets.py", "module"): "a worker that ends soon, whatever it finds",
    (
        "tests/cli/test_targets.py",
        "test_insert_at_an_address_waits_for_a_slow_input_as_long_as_it_takes",
    ): "a slow input",
    ("tests/waiting.py", "module"): "a pause between two looks for a condition",
    ("tests/concurrency/processes.py", "at_a_random_moment"): "a fault comes at a random moment",
    ("tests/worker/tasks.py", "obey"): "a task that takes a while",
    ("tests/worker/tasks.py", "stormy"): "tasks that take a while",
    ("tests/worker/test_attempts.py", "test_every_attempt_is_executed_however_slow_syncs_are"): "a slow disk",
    # What is compared is an order in time, or a time with its bounds: none is too late.
    ("tests/concurrency/test_keys.py", "test_many_inserters_and_workers"): "in which order processes acted",
    ("tests/storms/hops.py", "Asker._in_time"): "which came first, the answer or the end of what it may take",
    ("tests/peers/test_how_filequeue_breaks.py", "test_16_sixty_four_workers_and_no_false_empty"): "which came first",
    ("tests/spark/test_jobs.py", "test_report_tells_what_a_queue_went_through"): "a time between two others",
    ("tests/spark/test_jobs.py", "test_drain_with_a_function"): "the parts add up to no more than the whole",
    ("tests/spark/test_write.py", "test_delays_come_from_a_column_or_are_all_the_same"): "a time between two others",
    ("tests/doctor/test_rendezvous.py", "LateSight._stale"): "a client that sees late, which the real doctor measures",
    ("tests/filesystem/test_side_threads.py", "_start_and_wait"): "a wait that ends before the thread does",
    # Never run.
    ("tests/house/typed/program.py", "work_async"): "type checkers read it",
    (HERE, "module"): "examples for the finder",
    (HERE, "test_a_finding_says_where"): "an example for the finder",
}
"""File and function, and why it goes by the clock."""

COUNTING: dict[tuple[str, str], str] = {
    ("tests/house/sharing.py", "processes"): "the one place that decides how many processes run",
    (HERE, "module"): "examples for the finder",
}
"""File and function that may ask how many processors there are, and why."""


@cache
def all_findings() -> list[Finding]:
    return [found for path in sorted((TOP / "tests").rglob("*.py")) for found in findings_of(path)]


@pytest.mark.once
def test_no_test_goes_by_the_clock() -> None:
    found = [one for one in all_findings() if one.kind != COUNTS]
    unexpected = [one for one in found if (one.file, one.function) not in ALLOWED]
    assert not unexpected, "\n".join(map(str, ["", *unexpected]))
    assert not ALLOWED.keys() - {(one.file, one.function) for one in found}, "allowed, and not needed any more"


@pytest.mark.once
def test_nothing_starts_a_process_for_each_processor() -> None:
    """One place decides how many processes run: several runs of pytest share the machine."""
    found = [one for one in all_findings() if one.kind == COUNTS]
    unexpected = [one for one in found if (one.file, one.function) not in COUNTING]
    assert not unexpected, "\n".join(map(str, ["", *unexpected]))
    assert not COUNTING.keys() - {(one.file, one.function) for one in found}, "allowed, and not needed any more"


CAUGHT = {
    "time.sleep": ("import time\ntime.sleep(0.1)", SLEEPS),
    "sleep, imported": ("from time import sleep as nap\nnap(2)", SLEEPS),
    "time under another name": ("import time as t\nt.sleep(2)", SLEEPS),
    "asyncio.sleep": ("import asyncio\nasync def f(): await asyncio.sleep(0.2)", SLEEPS),
    "a sleep of a length that cannot be read": ("import time\ndef f(s): time.sleep(s)", SLEEPS),
    "a sleep of a short length with a name": ("import time\nPAUSE_S = 0.2\ntime.sleep(PAUSE_S)", SLEEPS),
    "shell": ("run('touch x; sleep 0.3; rm x')", SLEEPS),
    "shell, with a number put in": ("def f(s): run(f'sleep {s}')", SLEEPS),
    "shell, word by word": ("run(['sleep', '5'])", SLEEPS),
    "shell, as arguments": ("run('sleep', '5')", SLEEPS),
    "a program in a string": ("P = '''\n    import time\n    time.sleep(1)\n'''", SLEEPS),
    "a program in a string of bytes": ("P = b'import time; time.sleep(1)'", SLEEPS),
    "a program with a name put in": ("def f(q): return f'import time; open({q!r}); time.sleep(1)'", SLEEPS),
    "a piece of a program": ("P = 'x: time.sleep(1) y'", SLEEPS),
    "a measured time": ("import time\ndef f():\n a = time.monotonic()\n assert time.monotonic() - a < 3", COMPARES),
    "a deadline": ("import time\ndef f():\n until = time.time() + 9\n while time.time() < until: pass", COMPARES),
    "a difference with a name": (
        "from time import perf_counter\ndef f():\n a = perf_counter()\n b, c = perf_counter() - a, 1\n assert b < c",
        COMPARES,
    ),
    "a function that measures": (
        "import time\ndef took():\n a = time.monotonic()\n return time.monotonic() - a\ndef test(): assert took() < 1",
        COMPARES,
    ),
    "a list of times": ("import time\ndef f():\n x = []\n x.append(time.time())\n assert x[0] < 5", COMPARES),
    "an attribute": (
        "import time\nclass A:\n def f(self):\n  self.at = time.time()\n  assert max(0, self.at) > 2", COMPARES
    ),
    "a comparison in a program": ("P = 'import time; a = time.time(); assert time.time() - a < 2'", COMPARES),
    "subprocess": ("subprocess.run(['ls'], timeout=10)", LIMITS),
    "a timeout with a name": ("LIMIT_S = 2 * 5\nsubprocess.run(['ls'], timeout=LIMIT_S)", LIMITS),
    "join": ("thread.join(20)", LIMITS),
    "wait": ("event.wait(0.5)", LIMITS),
    "get": ("queue.get(timeout=1)", LIMITS),
    "get, by place": ("queue.get(True, 5)", LIMITS),
    "wait_for": ("asyncio.wait_for(it, 3)", LIMITS),
    "a result": ("child.result(timeout_s=20)", LIMITS),
    "a default": ("def f(x, timeout=20): pass", LIMITS),
    "a default, by name alone": ("def f(*, timeout_s=20): pass", LIMITS),
    "timeout in shell": ("run('timeout -k 1 5 fsqueue list')", LIMITS),
    "timeout, word by word": ("run(['timeout', '5', 'ls'])", LIMITS),
    "os.cpu_count": ("import os\npool(os.cpu_count() or 1)", COUNTS),
    "multiprocessing.cpu_count": ("from multiprocessing import cpu_count as n\npool(n())", COUNTS),
    "sched_getaffinity": ("import os\npool(len(os.sched_getaffinity(0)))", COUNTS),
    "a pool without a number": ("multiprocessing.get_context('fork').Pool()", COUNTS),
    "an executor without a number": ("ProcessPoolExecutor(initializer=f)", COUNTS),
}  # fmt: skip

PASSED = {
    "a clock of its own": "clock.sleep(0.5)\nassert clock.monotonic() - begin < 1",
    "a clock that begins now": "import time\ndef f():\n c = ManualClock(time.time())\n assert c.now_ms() < 5",
    "a sleep until it is ended": "import time\ntime.sleep(600)\nrun('exec sleep 600; sleep 1h')",
    "a sleep that another one gets": "import time\ndef f(m): m.setattr(time, 'sleep', clock.sleep)",
    "giving way": "import asyncio\nasync def f(): await asyncio.sleep(0)",
    "prose": "'''It must not sleep 5 seconds, nor time.sleep(1).'''",
    "a limit that ends what hangs": "thread.join(60)\nsubprocess.run(['ls'], timeout=120)\nevent.wait(timeout=60)",
    "a look": "thread.join(0)\nqueue.get(timeout=0)",
    "joined text": "', '.join(names)\nos.path.join('a', 'b')\ncounts.get('a', 5)\nq.wait(1, poll=print)",
    "the wait of a queue, which has a clock": "queue.wait(timeout_s=5)",
    "a pool of a number": "multiprocessing.Pool(2)\nProcessPoolExecutor(max_workers=2)",
    "processors that are made up": "import os\ndef f(m): m.setattr(os, 'sched_getaffinity', lambda pid: {1})",
}


@pytest.mark.once
@pytest.mark.parametrize("case", CAUGHT)
def test_the_finder_finds(case: str) -> None:
    program, kind = CAUGHT[case]
    assert [one.kind for one in findings_in(ast.parse(program), "x.py")] == [kind]


@pytest.mark.once
@pytest.mark.parametrize("case", PASSED)
def test_the_finder_passes(case: str) -> None:
    assert findings_in(ast.parse(PASSED[case]), "x.py") == []


@pytest.mark.once
def test_a_finding_says_where() -> None:
    program = dedent(
        """
        import time

        class Story:
            def play(self):
                def inner():
                    time.sleep(1)

        time.sleep(2)
        """
    )
    found = findings_in(ast.parse(program), "tests/x.py")
    assert {(one.function, one.line, one.text) for one in found} == {
        ("Story.play", 7, "time.sleep(1)"),
        ("module", 9, "time.sleep(2)"),
    }
    assert str(found[0]).startswith("tests/x.py:7 Story.play: sleeps for less than 30 s")
    assert GUARD_S == 30
