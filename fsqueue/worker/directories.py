"""The directories in which a worker keeps outputs and results: whether they can be used, and what it means if not."""

from __future__ import annotations

from fsqueue.errors import FULL, FsqueueError, InvalidArgument, from_os_error
from fsqueue.filesystem import KeptOutput, ResultFiles


def open_directories(keep_output: KeptOutput | None, results: ResultFiles | None) -> None:
    """Try, before a task is leased, whether outputs and results can be kept. InvalidArgument, StorageFull."""
    if keep_output is not None:
        try:
            keep_output.open()
        except OSError as error:
            what = f"No output can be kept in {keep_output.path}: {error.strerror or error}."
            raise _refusal(error, what, "Name a directory that you may write in.") from error
    if results is not None:
        try:
            results.open()
        except OSError as error:
            raise no_results(results, error) from error


def no_results(results: ResultFiles, error: OSError) -> FsqueueError:
    """Return what it means that no directory for results can be made."""
    where = results.parent or "the directory for temporary files"
    what = f"Results cannot be kept in {where}: {error.strerror or error}."
    return _refusal(error, what, "Name another directory with --result-dir, or TMPDIR.")


def _refusal(error: OSError, what: str, advice: str) -> FsqueueError:
    if error.errno in FULL:
        return from_os_error(error, "making a file for a command")
    return InvalidArgument(f"{what} No task was begun. {advice}")
