"""Numbers on the pages are those of the code: where one is changed, the other is found."""

from __future__ import annotations

import re

import pytest
from fsqueue_cli import doctor as cli_doctor
from fsqueue_cli import main as cli_main
from fsqueue_cli import result_files, running
from fsqueue_cli import results as cli_results
from fsqueue_cli import watching as cli_watching
from fsqueue_cli.common import NOTHING_EXIT
from fsqueue_cli.idle import NO_WORKERS_EXIT

from fsqueue import errors, maintenance, metrics, poll
from fsqueue.clock import MS_MAX
from fsqueue.doctor import contests, rendezvous, twohosts
from fsqueue.format import keys, layout, models, movements, names, nesting, replay
from fsqueue.format.layout import Settings
from fsqueue.protocol import leasing, waiting
from fsqueue.service import attention, page_contents, page_frame, page_lists
from fsqueue.simulation import figures as simulation_figures
from fsqueue.storage import listening, payloads, queue_file, staging
from fsqueue.upkeep import collect, doctorplaces
from fsqueue.views import activity, flows, newest_results, stuck_locks
from fsqueue.worker import feeding
from tests.pages import text_of

DAY_S = 86_400
DEFAULT = Settings()


def option(command: object, name: str) -> object:
    return next(one.default for one in command.params if one.name == name)  # type: ignore[attr-defined]


BATCH = names.Batch(f"{0x19AB0C0D0E0F:012x}7000800000000000")
CLAIM_SIZES = [
    len(keys.encode(keys.KeyClaim("", 1_795_255_200_000, BATCH, "0" * 16, "node0001", 12_345, shared)))
    for shared in (False, True)
]
"""What a key's file takes besides the key: on a disk of the host, and on a network mount."""
NUMBERS = [
    ("README.md", "ten minutes unless you say otherwise", DEFAULT.lease_s == 600),
    ("README.md", "After five failed attempts it is given up", DEFAULT.max_attempts == 5),
    ("README.md", "not published for a week is dropped", collect.ATTEMPT_AGE_S == 7 * DAY_S),
    ("README.md", "a batch that stays locked for 2 s", leasing.BUSY_WAIT_S == 2),
    ("docs/guarantees.md", "Up to a second after a purge", queue_file.FRESH_S == 1),
    ("docs/guarantees.md", "for more than half a day", staging.AWAY_S == DAY_S / 2),
    ("docs/guarantees.md", "idle workers look every few seconds", waiting.BELL_S[1] == 6),
    ("docs/guarantees.md", "idle workers ask every half minute", feeding.DRAIN_CHECK_S == 30),
    ("docs/metrics.md", "at most 1,000 queues have series", metrics.QUEUES_MAX == 1000),
    ("docs/page.md", "in the four latest decision files", flows.FILES_MAX == 4),
    ("docs/page.md", "it looks into four", flows.ALIKE_MAX == 4),
    ("docs/page.md", "50 queues a page", page_contents.ROWS == 50),
    ("docs/page.md", "at most 150 queues match", page_contents.WHOLE_MAX == 150),
    (
        "docs/page.md",
        "every two seconds at most, and for a twentieth",
        (page_contents.Names.LIST_S, page_contents.Names.LIST_SHARE) == (2, 1 / 20),
    ),
    ("docs/page.md", "takes longer than 0.4 s", page_frame.FIRST_S == 0.4),
    (
        "docs/page.md",
        "every two seconds at most, and for a fifth of the",
        (page_contents.LEAST_S, page_contents.LOOK_SHARE) == (2, 1 / 5),
    ),
    ("docs/page.md", "half as long again as the one before", page_contents.QUIET_SHARE == 0.5),
    ("docs/page.md", "fewer than 30 calls a minute", page_contents.CALLS_A_MINUTE < 30),
    ("docs/page.md", "nobody has touched for ten minutes", page_frame.IDLE_S == 600),
    ("docs/page.md", "no sign of life for half a lease", attention.SILENT_SHARE == 0.5),
    ("docs/status.md", "over the last minute, or over the last hour", activity.WINDOWS_S == (60, 3600)),
    ("docs/status.md", "fewer than 30 tasks", activity.FEW == 30),
    ("docs/status.md", "cut into ten pieces", activity.PIECES == 10),
    ("docs/status.md", "9 degrees of freedom: 2.26 errors", (activity.QUANTILE, activity.PIECES) == (2.26, 10)),
    ("docs/status-cost.md", "at most 512 logs", activity.LOGS_MAX == 512),
    ("docs/status-cost.md", "no more after 4 MiB of them", activity.LOGS_BYTES_MAX == 4 << 20),
    ("docs/status-cost.md", "of no more shards after 4 MiB", activity.HISTORY_BYTES_MAX == 4 << 20),
    ("docs/status-cost.md", "1 MiB of dead letters", activity.LETTERS_BYTES_MAX == 1 << 20),
    ("docs/status-cost.md", "every two seconds (`--interval`)", option(cli_watching.status, "interval_s") == 2),
    ("docs/status-cost.md", "more than a fifth of its time", cli_watching.LOOK_SHARE == 1 / 5),
    ("docs/status.md", "a tenth of it, 15 s at most", (poll.LATE, poll.WAIT_S[1]) == (0.1, 15)),
    ("docs/doctor.md", "`--timeout`, 300 s", option(cli_doctor.doctor, "timeout_s") == 300),
    ("docs/doctor.md", "gives up after a minute", rendezvous.SILENCE_S == 60),
    ("docs/doctor.md", "gives up after 10 minutes", rendezvous.TESTS_S == 600),
    ("docs/doctor.md", "For three seconds, each host locks a file", twohosts.TURNS_S == 3),
    ("docs/decisions/0044-two-doctors.md", "six times", twohosts.PINGS == 6),
    ("docs/decisions/0044-two-doctors.md", "after a minute of silence", rendezvous.SILENCE_S == 60),
    ("docs/decisions/0044-two-doctors.md", "race for sixty names", contests.NAMES == 60),
    ("docs/decisions/0044-two-doctors.md", "no answer within 5 s", rendezvous.ANSWER_S == 5),
    ("docs/doctor.md", "once that is a day old", doctorplaces.REMNANT_AGE_S == DAY_S),
    ("docs/doctor.md", "at most 253 characters", rendezvous.HOST_CHARS_MAX == 253),
    ("docs/doctor.md", "three threads or processes compete", contests.PROCESSES == 3),
    ("docs/doctor.md", "compete for 60 names", contests.NAMES == 60),
    ("docs/doctor.md", "must not be older than 2 s", twohosts.FRESH_S == 2),
    ("docs/doctor.md", "no process has written to for 2 s", stuck_locks.QUIET_S == 2),
    ("docs/doctor.md", "taken at nine looks", 1 + stuck_locks.LOOKS == 9),
    ("docs/doctor.md", "within half a second", stuck_locks.LOOKS * stuck_locks.LOOK_PAUSE_S <= 0.5),
    ("docs/growth.md", "some 140 bytes and the key", all(abs(size - 140) < 15 for size in CLAIM_SIZES)),
    ("docs/fsck.md", "over a day old", collect.STAGED_AGE_S == DAY_S),
    ("docs/fsck.md", "over a week ago and never published", collect.ATTEMPT_AGE_S == 7 * DAY_S),
    ("docs/results.md", "Payloads of up to 1 KiB are kept", DEFAULT.keep_payloads == 1024),
    (
        "docs/results.md",
        "kept payloads after 30 days. If they take more than 10 GiB",
        (payloads.PAYLOAD_DAYS, payloads.PAYLOAD_BYTES) == (30, 10 << 30),
    ),
    ("docs/results.md", "names up to twenty", models.UNKEPT_NAMED_MAX == 20),
    ("docs/newest-results.md", "`--newest N` (1 to 1,000)", models.NEWEST_MAX == cli_results.NEWEST_MAX == 1_000),
    ("docs/newest-results.md", "After 16 MiB of logs and history", newest_results.BYTES_MAX == 16 << 20),
    ("docs/newest-results.md", "more than 4,096", newest_results.FILES_MAX == 4_096),
    ("docs/newest-results.md", "the last 4 MiB", newest_results.LETTERS_BYTES_MAX == 4 << 20),
    ("docs/page.md", "of the last 1,000", page_contents.ROWS * page_lists.LIST_PAGES_MAX == models.NEWEST_MAX),
    (
        "docs/page.md",
        "longer than 300 characters is cut; the page of its task shows 4,000",
        (page_frame.CELL_CHARS_MAX, page_frame.PAYLOAD_CHARS_MAX) == (300, 4_000),
    ),
    (
        "docs/design.md",
        "up to 16,384 tasks or 8 MiB of one shard",
        (maintenance.GROUP_TASKS_MAX, maintenance.GROUP_BYTES_MAX) == (16_384, 8 << 20),
    ),
    ("docs/results.md", "more than 2,000 fields", result_files.COLUMNS_MAX == 2000),
    (
        "docs/growth.md",
        "more than 30 days ago, and the oldest days beyond 10 GiB",
        (payloads.PAYLOAD_DAYS, payloads.PAYLOAD_BYTES) == (30, 10 << 30),
    ),
    ("docs/growth.md", "of 16 KiB or more each", payloads.WHOLE_BYTES == 16 << 10),
    ("docs/format.md", "one of less than 16 KiB", payloads.WHOLE_BYTES == 16 << 10),
    ("docs/format.md", "is 1024 where it is missing", DEFAULT.keep_payloads == 1024),
    ("docs/pei.md", "10 runs of 10,000 pops", (simulation_figures.RUNS, simulation_figures.POPS) == (10, 10_000)),
    ("docs/format.md", "nest at most 200 levels", nesting.NESTING_MAX == 200),
    ("docs/format.md", "nests deeper than 256 levels is void", nesting.RECORD_NESTING_MAX == 256),
    ("docs/format.md", "Format **3**", layout.FORMAT == 3),
    ("docs/format.md", "16 random bytes", listening.BYTES == 16),
    ("docs/format.md", "00 to 0f", layout.COUNTERS == 16),
    ("docs/format.md", "tasks (1 to 1024)", names.BATCH_TASKS_MAX == 1024),
    ("docs/format.md", "255 bytes at most", names.NAME_BYTES_MAX == 255),
    ("docs/format.md", "a whole number below 10^18", layout.GENERATION_MAX == 10**18 - 1),
    ("docs/format.md", "a whole number below 10^13", replay.AT_MAX == MS_MAX == 10**13 - 1),
    ("docs/format.md", "whole number from 0 to 10^14", movements.TIME_MAX == 10**14),
    ("docs/format.md", "a week after its last change", collect.ATTEMPT_AGE_S == 7 * DAY_S),
    ("docs/format.md", "a week after the last failure", collect.NODE_AGE_S == 7 * DAY_S),
]


@pytest.mark.parametrize(("page", "words", "holds"), NUMBERS, ids=[f"{page}: {words}" for page, words, _ in NUMBERS])
def test_a_number_on_a_page_is_the_code_s(page: str, words: str, holds: bool) -> None:
    assert words in re.sub(r"\s+", " ", text_of(page)), "the page says something else now: bring this table up to date"
    assert holds, "the code does something else now: mend the page, and this table"


def errors_below(kind: type[errors.FsqueueError]) -> set[type[errors.FsqueueError]]:
    return {kind}.union(*map(errors_below, kind.__subclasses__()))


@pytest.mark.once
def test_each_exit_code_that_the_help_lists_is_one_of_some_command() -> None:
    listed = {int(code) for code in re.findall(r"^  (\d+) ", cli_main.EPILOG, re.MULTILINE)}
    of_errors = {error.exit_code for error in errors_below(errors.FsqueueError)}
    of_commands = {0, NOTHING_EXIT, 9, 10, running.FAILURES, running.EXCLUDED, NO_WORKERS_EXIT, 124, 130, 141}
    assert listed == of_errors | of_commands


RANGES: list[tuple[str, float, float]] = [
    ("shards", 1, 4096),
    ("batch_tasks_max", 1, 1024),
    ("task_bytes_max", 1, 2**30),
    ("max_attempts", 1, 10**6),
    ("lease_s", 0.001, 10**9),
    ("keep_payloads", 0, 2**30),
]


@pytest.mark.parametrize(("name", "least", "most"), RANGES)
def test_a_setting_s_range_is_the_format_s(name: str, least: float, most: float) -> None:
    written = {2**30: "2^30", 10**6: "10^6", 10**9: "10^9"}
    assert f"`{name}` ({least} to {written.get(int(most), most)}" in text_of("docs/format.md")
    for value in (least, most):
        assert getattr(Settings(**{name: value}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ValueError, match=name):
            Settings(**{name: value})
