"""Calls of any function, with any arguments: pickled, and signed with a key of the user (decision 69).

To unpickle is to run what the writer chose. So nothing is unpickled that was not signed with the key, here or in a
worker. The key is a file that only the user can read, on each host where his programs and workers run. A worker calls
what is pickled only if it was told to load this module (`fsqueue run QUEUE --load fsqueue.pickled`), or if an executor
has started it that was told to pickle.

A signed text has the id of its call, and the pickle, or the name of a file that holds it. Long arrays and other buffers
are files of their own: calls that have the same one share its file.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from fsqueue import functions
from fsqueue.clock import Entropy
from fsqueue.errors import Bury, InvalidArgument, InvalidTask, Retry, TaskFailed, from_os_error, said
from fsqueue.filesystem.private_files import DataDirectory, NotPrivate, fresh_directory, key_in

try:
    import cloudpickle
except ImportError:
    raise InvalidArgument("Pickled calls need the package cloudpickle: pip install 'fsqueue-tasks[pickle]'.") from None

KEY_VARIABLE = "FSQUEUE_PICKLE_KEY"
"""The environment variable that names the file of the key."""
KEY_LENGTH_MIN = 32
INLINE_BYTES_MAX = 32_000
"""Maximum size of a pickle that the queue itself holds. In base64, with a traceback, it is less than a result may
take."""
TRACEBACK_LENGTH_MAX = 4_000
"""Characters of a worker's traceback, from its end."""
BUFFER_BYTES_MIN = 1 << 20
"""Size from which on an array, or another buffer, is a file of its own."""
KEPT_BYTES_MAX = 1 << 28
"""Maximum number of bytes of buffers that a worker keeps for its next calls."""
PROTOCOL = 5
DIGEST_BYTES = 32

_entropy = Entropy()


class RemoteTraceback(Exception):
    """The traceback of a worker: the cause of the exception that a call has raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


# -- the key --------------------------------------------------------------------------------------------------


def key_file() -> str:
    """Return the path of the file with this user's key, which `FSQUEUE_PICKLE_KEY` may name."""
    named = os.environ.get(KEY_VARIABLE)
    if named:
        return os.path.abspath(named)
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "fsqueue", "pickle.key")


def key(makes: bool) -> bytes:
    """Return this user's key. InvalidArgument says why it cannot be used. `makes`: make its file if it is missing."""
    return _key_of(key_file(), makes)


@functools.lru_cache(maxsize=1)
def _key_of(path: str, makes: bool) -> bytes:
    try:
        found = key_in(path, makes)
    except NotPrivate:
        raise InvalidArgument(
            f"The key for pickled calls, {path}, must be a file of yours that nobody else may read: chmod 600. Who can "
            "read it can run anything as you."
        ) from None
    except FileNotFoundError:
        raise InvalidArgument(
            f"There is no key for pickled calls, {path}. The program that has the executor makes one: copy its file to "
            f"this host, or name it: {KEY_VARIABLE}=FILE."
        ) from None
    except OSError as error:
        raise InvalidArgument(f"The key for pickled calls, {path}, cannot be read or made: {error}.") from error
    if len(found) < KEY_LENGTH_MIN:
        raise InvalidArgument(
            f"The key for pickled calls, {path}, is shorter than {KEY_LENGTH_MIN} characters. Remove the file to have "
            "one made."
        )
    return found


def _signature(secret: bytes, kind: str, text: str) -> str:
    """Return what tells that a holder of the key has written a text, as one of a kind."""
    return hmac.new(secret, f"{kind}\0{text}".encode(), hashlib.sha256).hexdigest()


def _is_signed(secret: bytes, kind: str, given: object) -> bool:
    """Return whether this is a text of a kind, and its signature with the key."""
    if not isinstance(given, (list, tuple)) or len(given) != 2 or not all(isinstance(one, str) for one in given):
        return False
    text, signature = given
    return signature.isascii() and hmac.compare_digest(_signature(secret, kind, text), signature)


# -- pickles --------------------------------------------------------------------------------------------------


class _Pickle(NamedTuple):
    """An object, pickled: inline, or in a file; and its long buffers."""

    data: bytes
    buffers: list[memoryview]


def _pickled(value: Any, *, with_buffers: bool) -> _Pickle:
    """Pickle an object. What cannot be raises anything."""
    buffers: list[memoryview] = []

    def is_inline(buffer: Any) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # it is not in one piece
            return True
        if raw.nbytes < BUFFER_BYTES_MIN:
            return True
        buffers.append(raw)
        return False

    data: bytes = cloudpickle.dumps(value, PROTOCOL, buffer_callback=is_inline if with_buffers else None)
    return _Pickle(data, buffers)


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _described(data: bytes, file: str | None) -> dict[str, str]:
    """Return where a pickle is: the fields of a text that say so."""
    if file is None:
        return {"data": base64.b64encode(data).decode("ascii")}
    return {"file": file, "digest": _digest(data)}


class ChangedFile(Exception):
    """Raised if a file is not what its signed digest says: somebody has changed it, or it was lost in part."""


def _content(text: Mapping[str, Any], directory: DataDirectory | None) -> bytes:
    """Return a pickle, from where a signed text says that it is. ChangedFile; OSError."""
    if "data" in text:
        return base64.b64decode(text["data"])
    return _read(directory, text["file"], text["digest"])


def _read(directory: DataDirectory | None, name: str, digest: str) -> bytes:
    """Return what is in a file, if it is what was signed."""
    if directory is None:
        raise ChangedFile(name)
    found = directory.read(name)
    if not hmac.compare_digest(_digest(found), digest):
        raise ChangedFile(name)
    return found


def _too_long(what: str, size: int) -> str:
    return (
        f"{what} takes {size:,} bytes pickled, and without a directory for files {INLINE_BYTES_MAX:,} are the most. "
        "Give the executor one that the workers see under the same path: files=DIRECTORY"
    )


# -- in the program that has the executor ---------------------------------------------------------------------


class Pickles:
    """The pickled calls of one executor, and their files.

    within: the directory in which a private one is made for long arguments and results; None if there is none. It is
        removed when no call is under way.
    """

    def __init__(self, within: str | None) -> None:
        self._key = key(makes=True)
        self._within = within
        self._lock = threading.Lock()
        self._directory: DataDirectory | None = None
        self._users: Counter[str] = Counter()
        """How many calls that are under way have a file as an argument."""
        self._calls = 0
        self._has_files = False

    def pack(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> PickledCall:
        """Pickle a call. InvalidTask if that cannot be done; StorageError and others if no file can be written."""
        try:
            made = _pickled((function, tuple(args), dict(kwargs)), with_buffers=self._within is not None)
        except (MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise InvalidTask(f"The call cannot be pickled: {said(error)}.") from error
        is_long = len(made.data) > INLINE_BYTES_MAX
        if is_long and self._within is None:
            raise InvalidTask(f"{_too_long('The call', len(made.data))}.")
        identity = _entropy.hex16() + _entropy.hex16()
        buffers = [_digest(one) for one in made.buffers]
        files = list(zip(buffers, made.buffers, strict=True))
        if is_long:
            files.append((identity, memoryview(made.data)))
        directory = self._hold(files)
        text = {"id": identity, "in": None if directory is None else directory.path, "buffers": buffers}
        text |= _described(made.data, identity if is_long else None)
        return PickledCall(self, identity, orjson.dumps(text).decode(), [name for name, _ in files], directory)

    def _hold(self, files: Iterable[tuple[str, memoryview]]) -> DataDirectory | None:
        """Count a call, and write those of its files that no other call has."""
        with self._lock:
            if self._directory is None and self._within is not None:
                self._directory = DataDirectory(fresh_directory(self._within))
            self._calls += 1
            held: list[str] = []
            try:
                for name, content in files:
                    assert self._directory is not None
                    if not self._users[name]:
                        self._has_files = True
                        self._directory.write(name, [content])
                    self._users[name] += 1
                    held.append(name)
            except OSError as error:
                self._let_go(held)
                raise from_os_error(error, f"writing the arguments of a call in {self._within}") from error
            return self._directory

    def end(self, names: Iterable[str], has_files: bool) -> None:
        """Take in that a call has ended: remove what no other call needs."""
        with self._lock:
            self._has_files |= has_files
            self._let_go(names)

    def _let_go(self, names: Iterable[str]) -> None:
        self._users.subtract(names)
        gone = [name for name in names if not self._users[name]]
        for name in gone:
            del self._users[name]
        self._calls -= 1
        if self._directory is None or not self._has_files:
            return
        if self._calls:
            self._directory.remove(gone)
        else:  # late writers, of calls that were executed twice, may have left more
            self._directory.remove_all()
            self._directory, self._has_files = None, False

    def sign(self, text: str) -> str:
        """Return the signature of the text of a call."""
        return _signature(self._key, "call", text)

    def is_result(self, given: object) -> bool:
        """Return whether a worker with this user's key has written a result."""
        return _is_signed(self._key, "result", given)


class PickledCall:
    """A pickled call that is under way. `payload`: what a task of it has."""

    def __init__(
        self, pickles: Pickles, identity: str, text: str, files: Sequence[str], directory: DataDirectory | None
    ) -> None:
        self._pickles, self._id, self._files, self._directory = pickles, identity, files, directory
        self._has_files = False
        self.payload = call.call(text, pickles.sign(text)).payload

    def unpack(self, given: Any) -> tuple[Any, BaseException | None]:
        """Return what the call has returned, and what it has raised instead, if the signature is right; or TaskFailed
        instead, which says why it was not unpickled.
        """
        if not self._pickles.is_result(given):
            return None, TaskFailed(
                "The result of the call is not signed with this user's key. It was not unpickled: another user may "
                f"have written it, or the worker has another key than {key_file()}."
            )
        text = orjson.loads(given[0])
        if text["of"] != self._id:
            return None, TaskFailed("The result is signed, and belongs to another call. It was not unpickled.")
        self._has_files = "file" in text
        told = text["traceback"]
        try:
            value = cloudpickle.loads(_content(text, self._directory))
        except (ChangedFile, OSError) as error:
            return None, TaskFailed(
                f"The result of the call is in a file that cannot be read as it was written: {said(error)}."
            )
        except Exception as error:  # of any class that the result has an object of
            if told is None:
                return None, TaskFailed(f"The result of the call cannot be unpickled here: {said(error)}.")
            return None, TaskFailed(f"The call has raised what cannot be unpickled here. {told}")
        if told is None:
            return value, None
        value.__cause__ = RemoteTraceback(told)
        return None, value

    def end(self) -> None:
        """Let go of the files of its arguments and its result: the call has ended."""
        self._pickles.end(self._files, self._has_files)


# -- in a worker ----------------------------------------------------------------------------------------------


class _Kept:
    """Buffers that the latest calls of this process had. Not thread-safe but for whole calls: a loss is a read more."""

    def __init__(self) -> None:
        self._found: dict[str, bytes] = {}

    def get(self, directory: DataDirectory | None, name: str) -> bytes:
        """Return a buffer, which its name is the digest of."""
        found = self._found.pop(name, None)
        if found is None:
            found = _read(directory, name, name)
        self._found[name] = found  # it is the latest now
        while len(self._found) > 1 and sum(map(len, [*self._found.values()])) > KEPT_BYTES_MAX:
            self._found.pop(next(iter(self._found)), None)
        return found


_kept = _Kept()


@functions.task
def call(text: str, signature: str) -> list[str]:
    """Unpickle a call that is signed with the key of this worker's user, and execute it. Return its result, signed.

    What it raises is its result, too. Bury, with nothing unpickled, if the signature is wrong; and if the call cannot
    be unpickled here, or its result cannot be pickled.
    """
    secret = key(makes=False)
    if not _is_signed(secret, "call", (text, signature)):
        raise Bury(
            f"the call is pickled, and not signed with the key of this worker's user ({key_file()}). Nothing was "
            "unpickled. The program and its workers must have one key"
        )
    given = orjson.loads(text)
    directory = None if given["in"] is None else DataDirectory(given["in"])
    try:
        content = _content(given, directory)
        buffers = [_kept.get(directory, name) for name in given["buffers"]]
    except (ChangedFile, OSError) as error:
        raise Bury(
            f"the files of the call's arguments cannot be read as they were written: {said(error)}. They are removed "
            "when the program that has the executor takes the call for ended"
        ) from error
    try:
        function, args, kwargs = cloudpickle.loads(content, buffers=buffers)
    except MemoryError:
        raise
    except Exception as error:
        raise Bury(f"the call cannot be unpickled in this worker: {said(error)}") from error
    told = None
    try:
        value = function(*args, **kwargs)
    except (Bury, Retry, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit, too
        value, told = error, "".join(traceback.format_exception(error))[-TRACEBACK_LENGTH_MAX:]
        error.__traceback__ = None
    return _packed(secret, given["id"], directory, value, told)


def _packed(secret: bytes, identity: str, directory: DataDirectory | None, value: Any, told: str | None) -> list[str]:
    """Return a signed result."""
    try:
        data = _pickled(value, with_buffers=False).data
    except MemoryError:
        raise
    except Exception as error:
        if told is not None:
            raise Bury(told) from error
        raise Bury(f"what the call has returned cannot be pickled: {said(error)}") from error
    file = None
    if len(data) > INLINE_BYTES_MAX:
        if directory is None:
            raise Bury(_too_long("What the call has returned", len(data)))
        file = f"{identity}-{_entropy.hex16()}"
        directory.write(file, [data])
    text = orjson.dumps({"of": identity, "traceback": told, **_described(data, file)}).decode()
    return [text, _signature(secret, "result", text)]
