"""Quotas and a disk that becomes read-only under open files: what runs in a guest, whose kernel has all that.

    scripts/lab/guest DIRECTORY python -m tests.lab.disks DIRECTORY

For each scenario `DIRECTORY/NAME.answer` tells what went wrong; it is empty if nothing did.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from fsqueue_cli.main import cli

from fsqueue import LeaseLost, Queue, StorageError, StorageFull
from fsqueue.doctor.examination import space
from fsqueue.filesystem import Filesystem, mount_of
from fsqueue.filesystem.quota import GRPQUOTA, USRQUOTA, Quota, QuotaLimits, quota_of
from tests.concurrency.books import check_drained, drain
from tests.concurrency.processes import PATIENCE_S, Child, Count, together
from tests.disks import Ballast, run
from tests.lab import evidence
from tests.support import raised
from tests.verb_calls import (
    LONG,
    NEED_BYTES,
    NEED_FILES,
    VERBS,
    Verb,
    assert_nothing_lost,
    insert_many,
    insert_one,
    retry_dead,
    set_up,
)
from tests.waiting import until

USER = 4242
KILOBYTES, FILES = 1000, 150
"""The user's quota."""
Q_SETQUOTA = 0x800008
QIF_LIMITS = 5
"""Set the limits of bytes and of files."""

# -- a disk with quotas --------------------------------------------------------------------------------


DISKS = {
    "ext4": (16, ["mkfs.ext4", "-q", "-F", "-O", "^has_journal"], "defaults"),
    "ext4 with quotas": (
        16, ["mkfs.ext4", "-q", "-F", "-O", "quota", "-E", "quotatype=usrquota:grpquota"], "usrquota,grpquota"
    ),
    "xfs with quotas": (320, ["mkfs.xfs", "-q"], "uquota,gquota"),
}  # fmt: skip
"""Megabytes (mkfs.xfs makes none that is smaller), how it is made, how it is mounted. With a journal, ext4 does not
become writable again under files that are open and unlinked."""


def mount(kind: str) -> None:
    """A new filesystem at /disk, on which users and groups may have quotas."""
    megabytes, made, options = DISKS[kind]
    image = f"/dev/shm/{kind}"
    with open(image, "wb") as file:
        file.truncate(megabytes << 20)
    run(*made, image)
    os.makedirs("/disk", exist_ok=True)
    run("mount", "-o", f"loop,{options}", image, "/disk")
    os.chmod("/disk", 0o755)
    os.mkdir("/disk/user", 0o755)
    os.chown("/disk/user", USER, USER)


def limit(kilobytes: int, files: int, soft_kilobytes: int = 0, whose: int = USRQUOTA) -> None:
    """Set the user's or group's quota; 0: none."""
    block = QuotaLimits(bhard=kilobytes, bsoft=soft_kilobytes, ihard=files, valid=QIF_LIMITS)
    libc = ctypes.CDLL(None, use_errno=True)
    device = mount_of("/disk").source
    if libc.quotactl(ctypes.c_int(Q_SETQUOTA << 8 | whose), device.encode(), USER, ctypes.byref(block)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), device)


def as_user(action: Callable[..., Any], *arguments: Any) -> Any:
    """Do it as the user who has the quota."""

    def live() -> Any:
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
        return action(*arguments)

    child = Child(live)
    try:
        return child.result()
    finally:
        child.close()


def verb_over_quota(verb: Verb, what: str) -> None:
    """As tests/test_small_disks.py does it on a full disk."""
    place = Path("/disk/user") / verb.__name__
    place.mkdir()
    ballast = Ballast(place, what)
    queue = Queue.create(place / "q", shards=2, backoff_s=(0, 0))
    set_up(queue)
    ballast.fill()
    assert raised(OSError, lambda: (place / "more").write_bytes(b"x" * 8192)).errno == errno.EDQUOT
    error = raised(StorageFull, lambda: verb(queue, queue))
    assert error is not None or verb not in (NEED_FILES if what == "inodes" else NEED_BYTES), verb
    assert error is None or "quota" in str(error)
    queue.close()
    ballast.empty()
    (place / "more").unlink(missing_ok=True)
    assert_nothing_lost(Queue(queue.path), queue, verb, error, verb.__name__)
    run("rm", "-r", str(place))


def verbs(kind: str, what: str) -> None:
    """Verbs without quota left: each on ext4 in bytes, else those that make a file."""
    limit(KILOBYTES if what == "bytes" else 0, FILES if what == "inodes" else 0)
    for verb in VERBS if "ext4" in kind and what == "bytes" else NEED_FILES:
        as_user(verb_over_quota, verb, what)


def commands(kind: str) -> None:
    """The command line without quota left; and on it goes when the quota is raised."""

    def say(code: int, *arguments: str, text: str = '"new"\n') -> None:
        result = CliRunner().invoke(cli, arguments, input=text, prog_name="fsqueue")
        assert result.exit_code == code, (arguments, result.output, result.exception)
        assert code != StorageFull.exit_code or "raise the quota" in result.output, result.output

    def fill() -> str:
        say(0, "create", "/disk/user/q")
        say(0, "insert", "/disk/user/q")
        [task] = Queue("/disk/user/q").lease()
        Ballast(Path("/disk/user"), "bytes").fill()
        for command in (["insert", "Q"], ["create", "/disk/user/other"], ["fail", "Q", task.token, "--reason", LONG]):
            # A short task would have room in the last block of a log.
            say(7, *(word.replace("Q", "/disk/user/q") for word in command), text=f'"{"x" * 9_000}"\n')
        say(8, "doctor", "/disk/user/q")
        say(0, "status", "/disk/user/q")
        return task.token

    def go_on(token: str) -> None:
        say(0, "complete", "/disk/user/q", token)
        say(0, "insert", "/disk/user/q")
        queue = Queue("/disk/user/q")
        assert drain(queue) == ["new"]
        assert len(check_drained(queue)[0]) == 2

    limit(KILOBYTES, 0)
    token = as_user(fill)
    limit(2 * KILOBYTES, 0)
    as_user(go_on, token)
    run("rm", "-r", "/disk/user/q", "/disk/user/ballast")


def told(kind: str) -> None:
    """What the doctor says of quotas is what they are."""

    def look() -> None:
        (Path("/disk/user") / "some").write_bytes(b"x" * 100_000)
        os.sync()
        mine = [path.lstat() for path in (Path("/disk/user"), *Path("/disk/user").iterdir())]
        used, files = sum(found.st_blocks * 512 for found in mine), len(mine)
        found = quota_of(mount_of("/disk/user"))
        assert found == [
            Quota(f"user {USER}", used, KILOBYTES // 2 * 1024, files, FILES),
            Quota(f"group {USER}", used, 2 * KILOBYTES * 1024, files, 0),
        ], (found, used, files)
        finding = space(Filesystem("/disk/user", shared=False), "/disk/user", mount_of("/disk/user"))
        assert finding.figures == {"bytes_free": KILOBYTES // 2 * 1024 - used, "files_free": FILES - files}
        assert f"quota of user {USER}, quota of group {USER}" in finding.seen
        assert finding.verdict == "warning"

    limit(KILOBYTES, FILES, soft_kilobytes=KILOBYTES // 2)
    limit(2 * KILOBYTES, 0, whose=GRPQUOTA)
    as_user(look)
    limit(0, 0)
    limit(0, 0, whose=GRPQUOTA)
    assert as_user(lambda: len(quota_of(mount_of("/disk/user")))) == 0
    os.unlink("/disk/user/some")


# -- a disk that becomes read-only ------------------------------------------------------------------------


def read_only() -> None:
    """As the kernel does it when a disk fails, whatever files are open."""
    Path("/proc/sysrq-trigger").write_text("u")
    until(lambda: mount_of("/disk").option("ro") is not None, "the disk to be read-only")


def writable() -> None:
    run("mount", "-o", "remount,rw", "/disk")


def read_only_verbs(kind: str) -> None:
    """Each verb with logs open: who needs a new file is told, and the same objects go on when the disk is writable.

    What is written to a file that was open then is reported done, and is: the kernel keeps it, and writes it out.
    """
    for verb in VERBS:
        queue = Queue.create(f"/disk/{verb.__name__}", shards=2, backoff_s=(0, 0))
        set_up(queue)
        busy = Queue(queue.path)
        for token in [task.token for task in busy.lease(1)]:
            busy.attach(token).release()
        read_only()
        error = raised(StorageError, lambda verb=verb, busy=busy, queue=queue: verb(busy, queue))
        assert error is None or "read-only" in str(error), error
        assert error is not None or verb not in (insert_one, insert_many, retry_dead), verb
        assert busy.status().inserted >= 9, verb
        writable()
        for task in busy.lease(1):
            task.release()
        busy.close()
        assert_nothing_lost(Queue(queue.path), queue, verb, error, verb.__name__)


def read_only_under_workers(kind: str) -> None:
    """Producers and workers go on through it, again and again: nothing is lost, nothing done twice."""
    queue, over = Queue.create("/disk/busy", shards=4, backoff_s=(0, 0)), Path("/tmp/over")
    inserted, ended, refused = Count(), Count(), Count()

    def is_refused() -> None:
        refused.add()
        until(lambda: mount_of("/disk").option("ro") is None, "the disk to be writable")

    def produce(number: int) -> list[str]:
        mine, done, step = Queue(queue.path), [], 0
        while not over.exists():
            payloads = [f"{number}.{step}.{index}" for index in range(3)]
            step += 1
            try:
                mine.insert_many(payloads, batch_tasks=3)
                done += payloads
                inserted.add()
            except StorageError as error:
                done += payloads[: error.inserted or 0]
                is_refused()
        return done

    def work() -> list[str]:
        mine, done = Queue(queue.path), []
        while not over.exists():
            try:
                for task in mine.lease(2, lease_s=2, wait_s=0.02):
                    task.complete()
                    done.append(task.payload)
                    ended.add()
            except StorageError:
                is_refused()
            except LeaseLost:
                pass
        return done

    def toggle() -> int:
        for _ in range(6):
            before = int(inserted), int(ended)  # so that a producer does not wait any more since the last turn
            until(lambda before=before: int(inserted) >= before[0] + 4, "inserts", PATIENCE_S)
            until(lambda before=before: int(ended) >= before[1] + 4, "completed tasks", PATIENCE_S)
            errors = int(refused)
            read_only()
            until(lambda errors=errors: int(refused) > errors, "an error, since the disk is read-only", PATIENCE_S)
            writable()
        over.touch()
        return 0

    one, two, *done, _ = together((produce, 1), (produce, 2), (work,), (work,), (toggle,))
    fresh = Queue(queue.path)
    fresh.release_all()
    rest = drain(fresh)
    assert len(one + two) > 20
    assert len(done[0] + done[1]) > 10
    assert set(one + two) <= set(done[0] + done[1] + rest)
    completed, dead = check_drained(fresh, staged_leftovers=12)
    assert not dead
    assert len(completed) == len(set(done[0] + done[1] + rest)), "counted twice, or not at all"


# -- all of it --------------------------------------------------------------------------------------------

QUOTA_SCENARIOS = {
    "each verb over the bytes": (verbs, "bytes"),
    "each verb over the files": (verbs, "inodes"),
    "commands": (commands,),
    "the doctor's figures": (told,),
}
SCENARIOS: dict[str, tuple[Any, ...]] = {
    **{
        f"{kind}: {name}": (action, kind, *rest)
        for kind in ("ext4 with quotas", "xfs with quotas")
        for name, (action, *rest) in QUOTA_SCENARIOS.items()
    },
    "read-only: each verb": (read_only_verbs, "ext4"),
    "read-only: under workers": (read_only_under_workers, "ext4"),
}


def main(directory: Path) -> None:
    """All scenarios, one after the other."""
    run("modprobe", "-a", "loop", "quota_v2")
    mounted = ""
    for name, (action, kind, *rest) in SCENARIOS.items():
        said, begin = "", time.monotonic()
        try:
            if kind != mounted:
                subprocess.run(["umount", "--lazy", "/disk"], check=False, capture_output=True)
                mount(kind)
                mounted = kind
            action(kind, *rest)
        except BaseException:
            said = f"{traceback.format_exc()}\n{evidence.of_guest()}"
        (directory / "unfinished").write_text(said)
        (directory / "unfinished").rename(directory / f"{name}.answer")
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
