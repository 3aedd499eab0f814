"""Build the paths in a queue's directory; write and read `queue.jsonl`, its settings and state (docs/format.md)."""

from __future__ import annotations

import datetime
import re
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, get_args

import orjson

from fsqueue.errors import FormatTooNew, FormatTooOld, InvalidArgument, NotAQueue, shown
from fsqueue.format import names

FORMAT = 3
"""The format of queues: this version reads and writes no other."""

Durability = Literal["none", "default", "strict"]
DURABILITIES: tuple[Durability, ...] = get_args(Durability)
BATCH_BYTES_MAX = 1 << 20
"""A batch of more than one task is not larger than this."""
TIME_BITS = 43
"""A time in Unix milliseconds has no more bits, until the year 2248."""
DAY_MS = 86_400_000
GENERATION_MAX = 10**18 - 1
COUNTERS = 16
"""Spread the completion counter over this many files, so that processes seldom wait for each other."""

CANCELLED_FILE = "cancelled"
"""File in a generation's directory to which batches append that end by cancelled tasks (docs/format.md, "Counters")."""
SETTINGS_FILE = "queue.jsonl"
RESULTS = ".results"
"""Directory in which commands on other nodes leave their results: in a private directory for each worker."""
DOCTOR = ".fsqueue-doctor"
"""Name the directory in which two `fsqueue doctor --join` meet. A doctor by itself adds `-` and 16 digits."""


CHANGEABLE = ("max_attempts", "lease_s", "backoff_s", "keep_payloads")
"""The settings that `settings` lines change while a queue is in use. All others are fixed when it is created, or are
limits."""
LIMITS = ("max_leased", "limit", "rate")
"""The settings that are limits over all hosts: no queue has one when it is created, and lines of their own change them.
"""
MAX_LEASED = 10_000
"""A limit is not greater than this: each lease reads a record of each slot."""
LIMITED_FIELDS_MAX = 4
"""Maximum number of payload fields with a limit: a slot's record has room for that many digests."""
LIMITED_FIELD_CHARS_MAX = 200
"""Maximum length of the name of such a field."""
LEASES_PER_S_MIN, LEASES_PER_S_MAX = 1 / 86_400, 10_000.0
"""The lowest and the highest rate: one lease a day, and more than a file server gives locks."""
RATE_UNITS = {"s": 1, "m": 60, "h": 3600}
"""The seconds that the letter behind the slash stands for."""
REQUIRED = (
    "shards",
    "batch_tasks_max",
    "task_bytes_max",
    "max_attempts",
    "lease_s",
    "backoff_s",
    "durability",
    "keep_history",
)
"""The settings that a queue must have: a default in place of `shards` would hide tasks. Later ones have a default."""
SETTINGS_KEPT = 64
"""Number of settings that are not decoded again: those of a group's queues are mostly the same."""
FIELD_CHARS_MAX = 1_000
"""The longest name of a field of payloads by which tasks are told apart."""
REASON_CHARS_MAX = 1000
"""The reason of a pause is not longer than this."""


class LeaseRate(NamedTuple):
    """A rate: how many tasks may be leased in a second, and how people write it."""

    per_s: float
    text: str


@lru_cache(64)
def lease_rate(text: object) -> LeaseRate:
    """Return the rate that a text such as "5/s", "30/m" or "0.5/h" says. InvalidArgument if it says none."""
    found = re.fullmatch(r"(\d{1,7}(?:\.\d{1,6})?)/([smh])", text) if isinstance(text, str) and text.isascii() else None
    per_s = float(found[1]) / RATE_UNITS[found[2]] if found is not None else 0.0
    if found is None or not LEASES_PER_S_MIN <= per_s <= LEASES_PER_S_MAX:
        raise InvalidArgument(
            f"rate must be a number of leases per second, minute or hour, as '5/s', '30/m' or '0.5/h', from one a day "
            f"to {LEASES_PER_S_MAX:,.0f}/s, not {shown(text)}."
        )
    return LeaseRate(per_s, f"{float(found[1]):.12g}/{found[2]}")


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold the settings of a queue. Units are in the names. Those in CHANGEABLE may change while it is in use.

    `shards`: hashed subdirectories, 1 to 4,096. `batch_tasks_max`: tasks a file, 1 to 1,024.
    `max_attempts`: a task becomes a dead letter after this many; None: never. `lease_s`: how long a lease lasts
    unless the worker asks for another time. `backoff_s`: the shortest and the longest pause after a failure.
    `keep_payloads`: maximum size in bytes of payloads that the history keeps; 0: none; None: all. Without a
    history, none. `max_leased`: maximum number of tasks that are leased at one instant, over all hosts; None: any.
    `limit`: the same for those with one value of a field of their payloads, by the field's name. `rate`: how many
    tasks may be leased in a second, minute or hour, over all hosts: "5/s", "30/m", "0.5/h"; None: any number.
    """

    shards: int = 64
    batch_tasks_max: int = names.BATCH_TASKS_MAX
    task_bytes_max: int = 64 * 2**20
    max_attempts: int | None = 5
    lease_s: float = 600
    backoff_s: tuple[float, float] = (1, 3600)
    durability: Durability = "default"
    keep_history: bool = True
    keep_payloads: int | None = 1024
    max_leased: int | None = None
    limit: dict[str, int] = field(default_factory=dict, hash=False)
    """Maximum number of tasks with one value of a field of payloads that may be leased at one instant, by the field's
    name."""
    rate: str | None = None

    def __post_init__(self) -> None:
        def whole(name: str, least: int, most: int) -> None:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InvalidArgument(f"{name} must be a whole number from {least:,} to {most:,}, not {shown(value)}.")

        whole("shards", 1, 4096)
        whole("batch_tasks_max", 1, names.BATCH_TASKS_MAX)
        whole("task_bytes_max", 1, 2**30)
        if self.max_attempts is not None:
            whole("max_attempts", 1, 1_000_000)
        _seconds("lease_s", self.lease_s, 0.001)
        pair: Any = self.backoff_s
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidArgument(f"backoff_s must be a pair (least, greatest) of seconds, not {shown(pair)}.")
        for value in pair:
            _seconds("backoff_s", value, 0)
        if pair[0] > pair[1]:
            raise InvalidArgument(f"backoff_s must be (least, greatest), not {shown(tuple(pair))}.")
        object.__setattr__(self, "backoff_s", tuple(pair))
        if self.durability not in DURABILITIES:
            raise InvalidArgument(f"durability must be one of {', '.join(DURABILITIES)}, not {self.durability!r}.")
        if not isinstance(self.keep_history, bool):
            raise InvalidArgument(f"keep_history must be True or False, not {self.keep_history!r}.")
        if self.keep_payloads is not None:
            whole("keep_payloads", 0, 2**30)
        if self.max_leased is not None:
            whole("max_leased", 1, MAX_LEASED)
        if self.limit != {}:
            _limit_of_fields(self.limit)
        if self.rate is not None:
            object.__setattr__(self, "rate", lease_rate(self.rate).text)


def _limit_of_fields(limit: object) -> None:
    """Refuse limits by fields of payloads that make no sense: InvalidArgument."""
    if not isinstance(limit, dict):
        raise InvalidArgument(f"limit must be a dict of numbers by the names of fields, not {shown(limit)}.")
    if len(limit) > LIMITED_FIELDS_MAX:
        raise InvalidArgument(
            f"At most {LIMITED_FIELDS_MAX} fields of payloads may have a limit, not {len(limit):,}. To end that of a "
            "field: limit.FIELD=none."
        )
    for name, most in limit.items():
        if not isinstance(name, str) or not 1 <= len(name) <= LIMITED_FIELD_CHARS_MAX or not name.isprintable():
            raise InvalidArgument(
                f"limit needs the name of a field, of 1 to {LIMITED_FIELD_CHARS_MAX} printable characters, not "
                f"{shown(name)}."
            )
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MAX_LEASED:
            raise InvalidArgument(f"limit.{name} must be a whole number from 1 to {MAX_LEASED:,}, not {shown(most)}.")


def _seconds(name: str, value: object, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(f"{name} must be a number of seconds, not {shown(value)}.")
    if not least <= value <= 10**9:
        raise InvalidArgument(f"{name} must be from {least:g} to 1,000,000,000 seconds, not {shown(value)}.")


DEFAULTS = Settings()
"""The settings of a queue whose creator gives none."""


class KeyEpochs(NamedTuple):
    """Hold the numbers of the key epochs whose files count: one, or two (docs/format.md, "Keys"; decision 32)."""

    earlier: int = 0
    """The epoch whose files count beside those of the present one; the present one itself if there is none."""
    present: int = 0
    """The epoch into whose directory inserters write claims."""
    begun_at: int = 0
    """Time at which the present epoch of keys began, in Unix milliseconds; 0 for the first one."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a queue: no task is leased. `since`: Unix seconds. `by`: the host, process and user that began it."""

    since: float
    reason: str | None = None
    by: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """Return since when the queue is paused, in the host's local time, by whom and why."""
        try:
            since = f"{datetime.datetime.fromtimestamp(self.since, datetime.UTC).astimezone():%Y-%m-%d %H:%M:%S}"
        except (OverflowError, ValueError, OSError):
            since = f"{self.since:g}"
        by = f" by {self.by.get('user', '?')} on {self.by.get('host', '?')}" if self.by else ""
        return f"since {since}{by}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of a queue, or of a group of queues, over all hosts. At least one of them is set.

    `epoch`: the id under which limits began that hold since without a break: it names the file of slots.
    """

    epoch: str
    max_leased: int | None = None
    fields: tuple[tuple[str, int], ...] = ()
    """The fields of payloads that have a limit, by their names, and how many tasks with one value may be leased."""
    rate: LeaseRate | None = None
    """How many tasks may be leased in a time."""
    group: str = ""
    """The path of the group whose limits these are; "" for those of a queue."""

    @property
    def counts(self) -> bool:
        """Return whether the leases that are held count, so that each has a slot. A rate alone counts none."""
        return self.max_leased is not None or bool(self.fields)

    def as_dict(self) -> dict[str, Any]:
        """Return the limits by name, as in lines of `queue.jsonl`: those that are set."""
        found: dict[str, Any] = {} if self.max_leased is None else {"max_leased": self.max_leased}
        found |= {"fields": dict(self.fields)} if self.fields else {}
        return found | ({} if self.rate is None else {"rate": self.rate.text})

    def __str__(self) -> str:
        """Return the limits as `fsqueue set` takes them."""
        total = [] if self.max_leased is None else [f"max_leased={self.max_leased}"]
        begins = [] if self.rate is None else [f"rate={self.rate.text}"]
        return " ".join([*total, *(f"limit.{name}={most}" for name, most in self.fields), *begins])


class DirectoryIdentity(NamedTuple):
    """Identify a queue's directory by its inode: a copy of the directory has another."""

    number: int
    """The number of the directory's inode."""
    generation: int | None
    """Generation of the inode's number: it differs for each use of the number. None: the filesystem did not tell it."""

    def is_other(self, found: DirectoryIdentity) -> bool:
        """Return whether another directory was found. A generation that is not known tells nothing."""
        if self.number != found.number:
            return True
        return None not in (self.generation, found.generation) and self.generation != found.generation


@dataclass(frozen=True, slots=True)
class QueueState:
    """Hold the content of `queue.jsonl`: settings, the queue's id, the current generation, and whether it is closed.

    Two states are equal if the queue is the same, and was neither purged nor deleted in between.
    """

    settings: Settings = field(compare=False)
    id: names.QueueId
    generation: int = 1
    closed: bool = False
    allows_unsafe: bool = field(default=False, compare=False)
    """True if a user has allowed the queue on mounts that are known to be unfit."""
    is_ordered: bool = field(default=False, compare=False)
    """True if a task with a priority was ever inserted. If so, workers compare priorities."""
    key_epochs: KeyEpochs = field(default=KeyEpochs(), compare=False)
    """The key epochs of the current generation."""
    paused: Pause | None = field(default=None, compare=False)
    """The pause during which no task is leased; None if the queue is not paused."""
    payload_bytes_max: int | None = field(default=0, compare=False)
    """The length of the longest payload that may have been kept, whatever `keep_payloads` says now; None: any."""
    limited_at: int | None = field(default=None, compare=False)
    """Time at which `keep_payloads` was last changed (ms); None: never, or its line does not tell."""
    erased_at: int | None = field(default=None, compare=False)
    """Time at which the last look began that has erased payloads longer than `keep_payloads` (ms); None: there was
    none."""
    group: names.QueueId | None = field(default=None, compare=False)
    """The id of the group that the queue was made in; None: it was made outside of any group."""
    place: DirectoryIdentity | None = field(default=None, compare=False)
    """The directory that is the queue's, and no copy of it; None: not recorded."""
    stops: int = field(default=0, compare=False)
    """Number of times that campaigns of jobs that replace themselves were stopped. Each campaign ends when this
    changes."""
    limits: QueueLimits | None = field(default=None, compare=False)
    """The queue's own limits over all hosts; None: there are none."""
    has_group_limits: bool = field(default=False, compare=False)
    """True if the queue has the mark of a group with limits: its group's file says which they are."""
    is_limited: bool = field(init=False, default=False, compare=False)
    """True if limits may count for its leases: its own, or those of its group."""
    is_checked: bool = field(init=False, default=False, compare=False)
    """True if a lease is more than a look for a task: the queue is paused, or is limited."""
    is_plain: bool = field(init=False, default=True, compare=False)
    """True if tasks are leased as they come: none has a priority, and there are no limits."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_limited", self.limits is not None or self.has_group_limits)
        object.__setattr__(self, "is_checked", self.paused is not None or self.is_limited)
        object.__setattr__(self, "is_plain", not self.is_ordered and not self.is_limited)

    @property
    def directory(self) -> names.Generation:
        """Return the name of the current generation's directory, within the queue's directory."""
        return names.generation(self.generation, self.id)


def settings_of(given: dict[str, Any]) -> Settings:
    """Return the settings in a `create` record. InvalidArgument if one is missing, or of the wrong type or range.

    Settings that this version does not know are ignored; those that came later than the queue have their defaults.
    """
    return _settings_of(orjson.dumps(given))


@lru_cache(SETTINGS_KEPT)
def _settings_of(text: bytes) -> Settings:
    given = orjson.loads(text)
    missing = [key for key in REQUIRED if key not in given]
    if missing:
        raise InvalidArgument(f"it lacks the setting{'s' * (len(missing) > 1)} {', '.join(missing)}")
    fixed = Settings.__dataclass_fields__.keys() - {*LIMITS}
    return Settings(**{key: given[key] for key in fixed if key in given})


def changed(settings: Settings, given: dict[str, Any]) -> Settings:
    """Return settings after a `settings` record. InvalidArgument if a value is wrong; names not CHANGEABLE are ignored.

    Then the whole line is void.
    """
    return replace(settings, **{name: given[name] for name in CHANGEABLE if name in given})


def _brief(value: object) -> str:
    """Return a value as text for a message, cut to 40 characters: it may be as long as its line."""
    text = repr(value) if isinstance(value, (int, float, str)) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:40]}..."


def birth_record(settings: Settings, identity: str, at: int) -> bytes:
    """Return the first line of `queue.jsonl`. `identity` tells this queue from one made later at the same path."""
    return _line({"op": "create", "at": at, "format": FORMAT, "id": identity, "settings": at_birth(settings)})


def at_birth(settings: Settings) -> dict[str, Any]:
    """Return the settings with which a queue is created, by name: all but limits."""
    return {name: value for name, value in asdict(settings).items() if name not in LIMITS}


def group_record(identity: str, at: int) -> bytes:
    """Return the line that says in which group a queue was made: by the group's id."""
    return _line({"op": "group", "at": at, "id": identity})


def place_record(place: tuple[int, int | None] | None, at: int) -> bytes:
    """Return the line that says which directory is the queue's; b"" if that cannot be told (None)."""
    return b"" if place is None else _line({"op": "place", "at": at, "place": place})


def generation_record(generation: int, at: int) -> bytes:
    """Return the line that begins a generation, and so purges everything inserted before."""
    assert generation > 0, "generations are numbered from 1"
    return _line({"op": "generation", "at": at, "generation": generation})


def ordered_record(at: int) -> bytes:
    """Return the line by which workers learn that tasks have priorities."""
    return _line({"op": "ordered", "at": at})


def key_epochs_record(generation: int, earlier: int, present: int, at: int) -> bytes:
    """Return the line that says whose files of keys count: it begins an epoch, or ends the earlier one."""
    assert 0 <= earlier <= present, "readers would take the line for void"
    return _line({"op": "keys", "at": at, "generation": generation, "earlier": earlier, "present": present})


def settings_record(changes: dict[str, Any], at: int) -> bytes:
    """Return the line that gives the named settings new values."""
    return _line({"op": "settings", "at": at, "settings": changes})


def erased_record(payload_bytes_max: int, of: int, at: int) -> bytes:
    """Return the line that says that payloads that are longer were erased, by a look that began at `at` (ms).

    `of`: the time in the `settings` line since which no longer ones are kept.
    """
    assert payload_bytes_max >= 0, "no payload is so short"
    return _line({"op": "erased", "at": at, "of": of, "keep_payloads": payload_bytes_max})


def pause_record(reason: str | None, by: dict[str, Any], at: int) -> bytes:
    """Return the line from which on no task is leased. `by`: tells people who has written it."""
    return _line({"op": "pause", "at": at, "by": by} | ({} if reason is None else {"reason": reason}))


def resume_record(at: int) -> bytes:
    """Return the line that ends a pause."""
    return _line({"op": "resume", "at": at})


def limits_of(settings: Settings, epoch: str) -> QueueLimits | None:
    """Return the limits among settings; None if none is set."""
    rate = None if settings.rate is None else lease_rate(settings.rate)
    limits = QueueLimits(epoch, settings.max_leased, tuple(sorted(settings.limit.items())), rate)
    return limits if limits.as_dict() else None


def limits_record(
    state: QueueState, limits: QueueLimits | None, by: dict[str, Any], at: int, resumes: bool = False
) -> bytes:
    """Return the line that sets the limits, all at once. `resumes`: it ends a pause, too.

    Programs that do not know limits take it for a pause, which keeps them from leasing; or for the end of one, once no
    limit is left.
    """
    pause = None if resumes else state.paused
    if limits is not None:
        reason = f"It has limits ({limits}), which this version of fsqueue does not know. Upgrade fsqueue."
        line = {"op": "pause", "at": at, "by": by, "reason": reason, "slots": limits.epoch}
    elif pause is None:
        line = {"op": "resume", "at": at}
    else:
        line = {"op": "pause", "at": at, "by": pause.by, "reason": pause.reason}
    given = {} if limits is None else limits.as_dict()
    return _line(line | {"limits": given} | ({"resumes": True} if resumes else {}))


def group_mark(at: int) -> bytes:
    """Return the line that marks a queue as one of a group with limits. Programs that do not know the mark take it for
    a pause, which keeps them from leasing.
    """
    reason = "Its group has limits, which this version of fsqueue does not know. Upgrade fsqueue."
    return _line({"op": "pause", "at": at, "reason": reason, "group_limits": True})


def end_of_group_mark(state: QueueState, at: int) -> bytes:
    """Return the lines that take this mark away. Programs that do not know it then see again what they saw before: the
    pause, or the queue's own limits.
    """
    pause = state.paused
    if pause is None:
        line = _line({"op": "resume", "at": at, "group_limits": False})
    else:
        line = _line({"op": "pause", "at": at, "by": pause.by, "reason": pause.reason, "group_limits": False})
    return line + (b"" if state.limits is None else limits_record(state, state.limits, {}, at))


def stop_record(by: dict[str, Any], at: int) -> bytes:
    """Return the line that ends the campaigns that work here: their jobs get no successors. `by`: as of a pause."""
    return _line({"op": "stop", "at": at, "by": by})


def closed_record(at: int) -> bytes:
    """Return the line that ends a queue."""
    return _line({"op": "closed", "at": at})


def unsafe_record(at: int) -> bytes:
    """Return the line by which a queue may be used on a mount that is known to be unfit."""
    return _line({"op": "allow-unsafe", "at": at})


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


_TYPES: Final[dict[str, tuple[str, type]]] = {
    "create": ("settings", dict),
    "group": ("id", str),
    "place": ("place", list),
    "generation": ("generation", int),
    "keys": ("generation", int),
    "settings": ("settings", dict),
    "limits": ("limits", dict),
}
"""A field that a line of `queue.jsonl` or `.group.jsonl` needs, and its type, by the line's `op`."""


def is_sound_line(line: bytes) -> bool:
    """Return whether a line of `queue.jsonl` or `.group.jsonl` can be read: an `op`, and a field that this one needs.

    A sound line may still be void: that depends on values, and on the lines before it.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(record, dict) or not isinstance(op := record.get("op"), str):
        return False
    field, kind = _TYPES.get(op, ("op", str))
    return type(record.get(field)) is kind


def read_queue_state(content: bytes, path: str) -> QueueState:
    """Replay `queue.jsonl`, and return its state. Torn and unknown lines are skipped.

    NotAQueue if it has no `create`, or if a setting or a format in it is missing or wrong: a default in its place would
    hide tasks. FormatTooNew or FormatTooOld if any line has another format than this version reads.
    """
    queue_state: QueueState | None = None
    wrong = ""
    for line in content.split(b"\n")[:-1]:
        try:
            record = orjson.loads(line)
            if not isinstance(record, dict):
                continue
            wanted = record.get("format", FORMAT if record.get("op") != "create" else None)
            if isinstance(wanted, int) and wanted > FORMAT:
                raise FormatTooNew(
                    f"The queue {path} has format {wanted}; this fsqueue reads format {FORMAT}. Upgrade fsqueue."
                )
            if type(wanted) is int and 0 < wanted < FORMAT:
                raise FormatTooOld(
                    f"The queue {path} has format {wanted}, of an fsqueue before its first release; this one reads "
                    f"format {FORMAT}. Drain the queue with the fsqueue that made it."
                )
            if type(wanted) is not int or wanted < 1:
                wrong = wrong or f"says format {_brief(wanted)}, which no fsqueue writes"
                continue
            match record:
                case {"op": "create", "id": str(text), "settings": dict(given)} if queue_state is None and not wrong:
                    if (identity := names.parse_queue_id(text)) is not None:
                        try:
                            settings = settings_of(given)
                            queue_state = QueueState(settings, identity, payload_bytes_max=settings.keep_payloads)
                        except InvalidArgument as error:
                            wrong = str(error).rstrip(".")
                case {"op": "generation", "generation": int(number)} if queue_state is not None:
                    if queue_state.generation < number <= GENERATION_MAX:
                        queue_state = replace(queue_state, generation=number, key_epochs=KeyEpochs())
                case {"op": "group", "id": str(text)} if queue_state is not None and queue_state.group is None:
                    queue_state = replace(queue_state, group=names.parse_queue_id(text))
                case {"op": "place", "place": [number, generation]} if queue_state is not None:
                    if _is_whole(number, 64) and (generation is None or _is_whole(generation, 32)):
                        queue_state = replace(queue_state, place=DirectoryIdentity(number, generation))
                case {"op": "allow-unsafe"} if queue_state is not None:
                    queue_state = replace(queue_state, allows_unsafe=True)
                case {"op": "ordered"} if queue_state is not None:
                    queue_state = replace(queue_state, is_ordered=True)
                case {"op": "keys", "generation": int(number)} if queue_state is not None:
                    if queue_state.generation == number:
                        queue_state = replace(queue_state, key_epochs=_later(queue_state.key_epochs, record))
                case {"op": "settings", "settings": dict(given)} if queue_state is not None:
                    settings = changed(queue_state.settings, given)
                    if settings.keep_payloads != queue_state.settings.keep_payloads:
                        longest = _longer(queue_state.payload_bytes_max, settings.keep_payloads)
                        at = record.get("at")
                        limited_at = at if _is_whole(at, TIME_BITS) else None
                        queue_state = replace(
                            queue_state, payload_bytes_max=longest, limited_at=limited_at, erased_at=None
                        )
                    queue_state = replace(queue_state, settings=settings)
                case {"op": "erased"} if queue_state is not None:
                    queue_state = _erased(queue_state, record)
                case {"op": "pause" | "resume", "group_limits": bool(is_limited)} if queue_state is not None:
                    queue_state = replace(queue_state, has_group_limits=is_limited)
                case {"op": "pause" | "resume", "limits": dict(given)} if queue_state is not None:
                    queue_state = _limited(queue_state, record, given)
                case {"op": "pause", "at": int(at)} if queue_state is not None:
                    queue_state = replace(queue_state, paused=_pause(at, record))
                case {"op": "resume"} if queue_state is not None:
                    queue_state = replace(queue_state, paused=None)
                case {"op": "stop"} if queue_state is not None:
                    queue_state = replace(queue_state, stops=queue_state.stops + 1)
                case {"op": "closed"} if queue_state is not None:
                    queue_state = replace(queue_state, closed=True)
        except (orjson.JSONDecodeError, InvalidArgument, TypeError, RecursionError):
            continue  # a RecursionError: from the text of an InvalidArgument about a deep value
    if wrong:
        raise NotAQueue(
            f"A line of {path}/{SETTINGS_FILE} is damaged: {wrong}. The queue was not opened, and nothing was changed: "
            f"its tasks are still there. Restore {SETTINGS_FILE} from a backup, or write the line again "
            "(docs/fsck.md says how)."
        )
    if queue_state is None:
        raise NotAQueue(
            f"{path} holds a queue.jsonl that is empty or damaged. Restore it from a backup, or use another path."
        )
    return queue_state


def _is_whole(value: object, bits: int) -> bool:
    """Return whether a value is an unsigned integer of at most `bits` bits."""
    return type(value) is int and 0 <= value < 1 << bits


def _longer(one: int | None, other: int | None) -> int | None:
    """Return the larger one of two limits of a length; None stands for no limit."""
    return None if one is None or other is None else max(one, other)


def _erased(state: QueueState, record: dict[str, Any]) -> QueueState:
    """Return the state after an `erased` line; the same if the setting was changed since the look that it tells of."""
    at: Any = record.get("at")
    of: Any = record.get("of")
    kept: Any = record.get("keep_payloads")
    is_void = not _is_whole(at, TIME_BITS) or not _is_whole(of, TIME_BITS) or type(kept) is not int
    if is_void or of != state.limited_at or kept != state.settings.keep_payloads or at <= (state.erased_at or 0):
        return state
    longest = kept if nothing_longer_comes(of, at) else state.payload_bytes_max
    return replace(state, erased_at=at, payload_bytes_max=longest)


def _limited(state: QueueState, record: dict[str, Any], given: dict[str, Any]) -> QueueState:
    """Return the state after a line that sets the limits. InvalidArgument if one is wrong: then the line is void."""
    settings, limits = limits_in(state.settings, record, given)
    paused = None if record.get("resumes") is True else state.paused
    return replace(state, settings=settings, limits=limits, paused=paused)


def limits_in(settings: Settings, record: dict[str, Any], given: dict[str, Any]) -> tuple[Settings, QueueLimits | None]:
    """Return the settings and the limits after a line that sets these. InvalidArgument if one is wrong."""
    fields: Any = given.get("fields", {})
    after = replace(
        settings, max_leased=given.get("max_leased"), limit=fields if fields else {}, rate=given.get("rate")
    )
    epoch = record.get("slots")
    limits = limits_of(after, epoch if isinstance(epoch, str) else "")
    if limits is not None and not names.is_slot_file(names.slot_file(limits.epoch)):
        raise InvalidArgument("it lacks the id under which the limits began")
    return after, limits


def limits_after(
    settings: Settings, limits: QueueLimits | None, given: dict[str, Any], epoch: str
) -> tuple[Settings, QueueLimits | None, dict[str, Any]]:
    """Return the settings after a change, the limits among them, and the settings that were changed.

    Limits by fields that are not named stay. `epoch`: the id for limits that need slots with more in them than there is
    in those of the present ones.
    """
    wanted = dict(given)
    if "limit" in given:
        wanted["limit"] = {name: most for name, most in (settings.limit | given["limit"]).items() if most is not None}
    after = replace(settings, **wanted)
    changes = {name: value for name, value in wanted.items() if getattr(after, name) != getattr(settings, name)}
    begins = not after.limit.keys() <= settings.limit.keys()  # slots have no such digests
    if limits is None or not limits.counts:  # leases have no slots
        begins = begins or after.max_leased is not None
    return after, limits_of(after, epoch if begins or limits is None else limits.epoch), changes


def nothing_longer_comes(limited_at: int, at: int) -> bool:
    """Return whether no process keeps payloads by the setting before any more: a whole day (UTC) has passed since."""
    return names.day_of(at) > names.day_of(limited_at + DAY_MS)


def _pause(at: int, record: dict[str, Any]) -> Pause:
    """Return the pause of a `pause` line. A field of it that is missing, or of the wrong kind, counts as not there."""
    reason, by = record.get("reason"), record.get("by")
    text = reason[:REASON_CHARS_MAX] if isinstance(reason, str) else None
    return Pause(at / 1000, text, by if isinstance(by, dict) else {})


def _later(epochs: KeyEpochs, record: dict[str, object]) -> KeyEpochs:
    """Return the key epochs after a line of `queue.jsonl`. Neither number goes back: the line may have come late."""
    match record:
        case {"at": int(at), "earlier": int(first), "present": int(last)} if 0 <= first <= last <= GENERATION_MAX:
            begun_at = at if last > epochs.present else epochs.begun_at
            return KeyEpochs(int(max(first, epochs.earlier)), int(max(last, epochs.present)), begun_at)
    return epochs


class Layout:
    """Build the paths of one generation of a queue. Cheap; no input or output.

    Methods take names of the types in `names`, and no plain strings: each name was parsed by the grammar before.
    """

    __slots__ = (
        "base",
        "cancelled",
        "commits",
        "completions",
        "dead_letters",
        "directory",
        "doorbell",
        "generation",
        "history_days",
        "limits",
        "logs",
        "nodes",
        "payload_days",
        "pending",
        "quarantine",
        "queue",
        "results",
        "settings_file",
        "shards",
        "staging",
        "tasks",
        "trash",
    )

    def __init__(self, queue: str, directory: names.Generation, shards: int) -> None:
        self.queue = queue
        self.directory = directory
        self.generation = int(directory.partition("-")[0])
        self.base = base = f"{queue}/{directory}"
        self.shards = shards
        self.settings_file = settings_file(queue)
        self.doorbell = f"{queue}/doorbell"
        self.trash = f"{queue}/.trash"
        self.quarantine = quarantine_of(queue)
        self.results = f"{queue}/{RESULTS}"
        self.staging = f"{base}/staging"
        self.commits = f"{base}/commits"
        self.pending = f"{base}/commits/pending"
        self.tasks = f"{base}/queue"
        self.logs = f"{base}/movements"
        self.nodes = f"{base}/nodes"
        self.limits = f"{base}/limits"
        self.completions = f"{base}/completions"
        self.cancelled = f"{base}/{CANCELLED_FILE}"
        self.dead_letters = f"{base}/dead"
        self.history_days = f"{base}/history"
        self.payload_days = f"{base}/payloads"

    def shard(self, batch: str) -> names.Shard:
        """Return the name of a batch's shard."""
        return names.shard_of(batch, self.shards)

    def task_file(self, name: names.TaskFileName) -> str:
        """Return the path of a published task file."""
        return f"{self.tasks}/{names.shard_of(name.batch, self.shards)}/{name}"

    def log(self, batch: names.Batch) -> str:
        """Return the path of a batch's movement log."""
        return f"{self.logs}/{names.shard_of(batch, self.shards)}/{names.log_file(batch)}"

    def staged(self, name: names.TaskFileName) -> str:
        """Return the path of a task file that is not published yet."""
        return f"{self.staging}/{name}"

    def counter(self, name: names.CounterName) -> str:
        """Return the path of one of the completion counters."""
        return f"{self.completions}/{name}"

    def node(self, node: str) -> str:
        """Return the path of the file that lists a node's failures in a row."""
        return f"{self.nodes}/{names.node_file(node)}"

    def slots(self, epoch: str) -> str:
        """Return the path of the file that lists which leases count against limits."""
        return f"{self.limits}/{names.slot_file(epoch)}"

    def keys(self, epoch: int) -> str:
        """Return the directory of a key epoch."""
        return f"{self.base}/{names.key_epoch(epoch)}"

    def key(self, digest: names.KeyDigest, epoch: int) -> str:
        """Return the path of the file that says which task has a key, in a key epoch."""
        return f"{self.keys(epoch)}/{names.shard_of(digest, self.shards)}/{names.key_file(digest)}"

    def dead(self, shard: names.Shard) -> str:
        """Return the path of a shard's dead letters."""
        return f"{self.dead_letters}/{shard}.jsonl"

    def dead_successor(self, shard: names.Shard, identity: str) -> str:
        """Return the path of a file that replaces a shard's file of dead letters once it is whole."""
        return f"{self.dead_letters}/{shard}.{identity}.jsonl"

    def settled(self, day: names.Day, shard: names.Shard) -> str:
        """Return the path of what a day gave back of a shard's dead letters: which were retried or purged."""
        return f"{self.history_days}/{day}/{shard}.settled.jsonl"

    def history(self, day: names.Day, shard: names.Shard) -> str:
        """Return the path of a day's history of a shard."""
        return f"{self.history_days}/{day}/{shard}.jsonl"

    def payloads(self, day: names.Day) -> str:
        """Return the directory of the task files of batches that finished on a day."""
        return f"{self.payload_days}/{day}"

    def attempt(self, attempt: names.Uuid, commit: names.CommitName) -> str:
        """Return the directory in which an attempt stages what it has for a commit."""
        return f"{self.staging}/{names.attempt(attempt, commit)}"

    def proposal(self, identity: names.Uuid) -> str:
        """Return the path of a commit's record that is proposed, or decided and not applied yet."""
        return f"{self.pending}/{names.proposal_file(identity)}"

    def ballot(self, identity: names.Uuid) -> str:
        """Return the path of a proposal's ballot, in the directory in which it is decided."""
        return f"{self.commits}/{names.ballot_file(identity)}"

    def record(self, commit: names.CommitName) -> str:
        """Return the path of a commit's record."""
        return f"{self.commits}/{names.record_file(commit)}"


def is_doctor_directory(name: str) -> bool:
    """Return whether a name in a directory is that of a directory in which `fsqueue doctor` works."""
    return _DOCTORS.fullmatch(name) is not None


_DOCTORS = re.compile(rf"{re.escape(DOCTOR)}(?:-[0-9a-f]{{16}})?")


def is_leftover(name: str) -> bool:
    """Return whether a name is a leftover: a queue may be created in a directory that has such names.

    It comes from another creation, from `fsqueue doctor`, or from a process that worked on in a deleted queue.
    """
    return name.startswith(".new-") or is_doctor_directory(name) or name in (".trash", "doorbell")


def quarantine_of(place: str) -> str:
    """Return the path of the quarantine of a queue, or of a group."""
    return f"{place}/.quarantine"


def settings_file(queue: str) -> str:
    """Return the path of a queue's `queue.jsonl`."""
    return f"{queue}/{SETTINGS_FILE}"


def parent_of(queue: str) -> str:
    """Return the parent of a queue's directory."""
    return queue.rpartition("/")[0] or "/"
