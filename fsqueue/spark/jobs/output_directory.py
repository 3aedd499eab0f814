"""Where jobs put what they make: a directory that driver and executors see, and what is whole in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fsqueue.errors import InvalidArgument, LockTimeout
from fsqueue.filesystem import Filesystem, mount_of
from fsqueue.filesystem.named_locks import held_by_name
from fsqueue.spark.options import directory

LOCK = ".fsqueue-lock"
"""The file that the job which writes into a directory has locked. Spark passes over such names."""


class Place:
    """An output directory. Spark marks each table that it wrote completely with a file _SUCCESS."""

    def __init__(self, path: str) -> None:
        try:
            self.path = directory(path)
        except InvalidArgument:
            raise InvalidArgument(
                f"{path!r} is no directory for output that the driver sees. Nothing was done. Name one on a filesystem "
                "that the driver and the executors have mounted, as /scratch/me/out."
            ) from None
        self.fs = Filesystem(self.path, shared=mount_of(self.path).shared)
        self.fs.make_root()

    def must_be_empty(self) -> None:
        """Raise InvalidArgument if something is in it: no file of any user is overwritten."""
        if names := self.fs.names(self.path):
            raise InvalidArgument(f"{self.path} is not empty ({min(names)!r} is in it). Name a new directory.")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other jobs away. InvalidArgument if one is at work: each would take the other's rounds for a dead one's.

        Two drivers on different hosts exclude each other as far as `flock` does on that mount.
        """
        try:
            with held_by_name(f"{self.path}/{LOCK}"):
                yield
        except LockTimeout:
            raise InvalidArgument(
                f"Another drain writes into {self.path}. Nothing was done. Name another directory, or wait for its end."
            ) from None

    def whole(self, table: str) -> list[int]:
        """Return the numbers N of the tables TABLE/round=N that are complete."""
        rounds = (name.partition("round=")[2] for name in self.fs.names(f"{self.path}/{table}"))
        return sorted(
            int(number)
            for number in rounds
            if number.isdecimal() and "_SUCCESS" in self.fs.names(f"{self.path}/{table}/round={number}")
        )

    def write(self, name: str, text: str) -> str:
        """Write a file; returns its path."""
        path = f"{self.path}/{name}"
        with self.fs.closing(self.fs.create(path)) as fd:
            self.fs.write_all(fd, text.encode())
        return path
