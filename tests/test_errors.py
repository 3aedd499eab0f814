"""The tree of errors: what each lets the caller conclude."""

from __future__ import annotations

import errno
import re
import resource

import pytest

import fsqueue
from fsqueue import errors
from fsqueue.errors import FsqueueError, from_os_error

EXIT_CODES = {
    "FsqueueError": 1,
    "GroupNotFound": 5,
    "QueueNotFound": 5,
    "QueueClosed": 5,
    "QueuePurged": 1,
    "QueueExists": 1,
    "QueueFileLost": 5,
    "NotAQueue": 5,
    "FormatTooNew": 1,
    "FormatTooOld": 1,
    "InvalidArgument": 2,
    "InvalidTask": 2,
    "TaskTooLarge": 14,
    "InvalidResult": 2,
    "TaskNotFound": 13,
    "TaskFailed": 1,
    "ResultNotReady": 1,
    "LeaseLost": 4,
    "LeaseExpired": 4,
    "UpdateConflict": 6,
    "CommitLost": 1,
    "ForkedChild": 1,
    "StorageFull": 7,
    "StorageError": 1,
    "LockTimeout": 1,
    "UnsafeFilesystem": 8,
}


def every_error() -> dict[str, type[FsqueueError]]:
    return {
        name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, FsqueueError)
    }


def test_every_error_has_its_exit_code() -> None:
    assert {name: kind.exit_code for name, kind in every_error().items()} == EXIT_CODES


def test_every_error_is_public_and_in_the_drawing() -> None:
    for name in every_error():
        assert name in fsqueue.__all__
        assert getattr(fsqueue, name) is getattr(errors, name)
        assert re.search(rf"\b{name}\b", errors.__doc__ or "")


def test_the_drawing_has_the_exit_codes() -> None:
    drawn = dict(re.findall(r"^\W*(\w+) .*?(\d+)$", errors.__doc__ or "", re.MULTILINE))
    assert len(drawn) > 15
    assert {name: int(code) for name, code in drawn.items()} == {name: EXIT_CODES[name] for name in drawn}


def test_bad_arguments_are_value_errors_and_lost_leases_are_not() -> None:
    assert all(
        issubclass(kind, ValueError) for kind in (errors.InvalidArgument, errors.InvalidTask, errors.TaskTooLarge)
    )
    assert not issubclass(errors.LeaseLost, (ValueError, OSError))
    assert issubclass(errors.LeaseExpired, errors.LeaseLost)
    assert issubclass(errors.LockTimeout, errors.StorageError)


def test_an_error_carries_what_the_caller_needs() -> None:
    lost = errors.LeaseLost("text", ["a.0@1"], "completed")
    assert (str(lost), lost.tokens, lost.tasks, lost.reason) == ("text", ["a.0@1"], ["a.0"], "completed")
    assert errors.InvalidTask("text", 3).index == 3
    assert errors.InvalidTask("text").index is None
    assert (str(errors.TaskFailed("text", 5)), errors.TaskFailed("text", 5).task) == ("text", 5)
    assert issubclass(errors.ResultNotReady, TimeoutError)


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (errno.ENOSPC, errors.StorageFull, "Free space or inodes"),
        (errno.EDQUOT, errors.StorageFull, "raise the quota"),
        (errno.EROFS, errors.StorageError, "writable mount"),
        (errno.EACCES, errors.StorageError, "read and write access"),
        (errno.EPERM, errors.StorageError, "read and write access"),
        (errno.ENOSYS, errors.UnsafeFilesystem, "flock"),
        (errno.ENOLCK, errors.UnsafeFilesystem, "lock service"),
        (errno.EMFILE, errors.StorageError, "ulimit -n"),
        (
            errno.ENFILE,
            errors.StorageError,
            "of the whole host: have it raised ('sysctl fs.file-max')",
        ),
        (errno.EISDIR, errors.StorageError, "into quarantine"),
        (errno.EIO, errors.StorageError, "Repeat when it works again"),
    ],
)
def test_the_system_s_errors_are_translated_with_a_remedy(code: int, kind: type[FsqueueError], remedy: str) -> None:
    error = from_os_error(OSError(code, "what it says", "/q/f"), "testing")
    assert type(error) is kind
    for part in (remedy, "testing", "what it says", "/q/f"):
        assert part in str(error)
    advised = str(from_os_error(OSError(code, "what it says", "/q/f"), "testing", "Look first."))
    assert advised.endswith(" Look first.")
    assert "epeat" not in advised


def test_an_error_without_a_number_is_translated_too() -> None:
    assert "odd" in str(from_os_error(OSError("odd"), "testing"))


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ((64, 64), "This process may have 64 open ('ulimit -n'), which is its hard limit: have that raised, or close"),
        ((1024, 4096), "This process may have 1,024 open: raise that limit ('ulimit -n'), to 4,096 at most, or close"),
        ((256, resource.RLIM_INFINITY), "This process may have 256 open: raise that limit ('ulimit -n'), or close"),
    ],
)
def test_the_limit_of_open_files_is_named(monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], told: str) -> None:
    monkeypatch.setattr(errors.resource, "getrlimit", lambda which: limits)
    assert told in str(from_os_error(OSError(errno.EMFILE, "no"), "testing"))
