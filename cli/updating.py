"""update: change tasks in several queues of a group, all or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

import fsqueue
from fsqueue.format import user_json
from fsqueue.views import outcomes

from .common import (
    GATEWAY_PATIENCE_S,
    example,
    group_at,
    json_option,
    named,
    path_of,
    queue_at,
    worker_option,
)
from .options import DURATION, OneScreen
from .printing import complain, print_done, print_json, quoted
from .targets import is_address, why_lost

if TYPE_CHECKING:
    from .targets import AnyQueue

    AnyGroup = fsqueue.Group | fsqueue.RemoteGroup

OPERATIONS_MAX = 10_000
"""Maximum number of operations of an update."""
LINE_BYTES_MAX = 1 << 20
"""Maximum number of bytes in a line of standard input: a payload may take 64 KiB, a result the same."""
SEARCHED_MAX = 64
"""Number of queues in which a task is looked for whose queue is not named."""
FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "insert": {"queue": (str,), "payload": (), "key": (str,), "priority": (str, int), "delay_s": (int, float),
               "available_at": (int, float)},
    "complete": {"token": (str,), "queue": (str,), "result": ()},
    "renew": {"token": (str,), "queue": (str,), "lease_s": (int, float)},
    "release": {"token": (str,), "queue": (str,), "delay_s": (int, float)},
    "fail": {"token": (str,), "queue": (str,), "error": (str,), "delay_s": (int, float)},
    "bury": {"token": (str,), "queue": (str,), "reason": (str,)},
    "cancel": {"token": (str,), "id": (str,), "version": (int,), "queue": (str,)},
    "replace": {"token": (str,), "id": (str,), "version": (int,), "queue": (str,), "payload": ()},
    "depends": {"token": (str,), "id": (str,), "version": (int,), "queue": (str,)},
}  # fmt: skip
"""The fields of each operation, and their types; () for any JSON."""
NEEDS = {"insert": ("queue", "payload"), "fail": ("token", "error"), "bury": ("token", "reason"), "cancel": (),
         "replace": ("payload",), "depends": ()}  # fmt: skip
"""The fields that an operation must have; of the others it is the token. Some name a task by its token, or by its id
and the version that was seen."""
LEASE_DIGITS = 16
"""The length of what stands behind the @ of a token. A version is shorter: an offset in a file."""


LISTS = ("missing", "changed", "owned", "depends", "busy")
"""What a conflict tells."""
NOT_HELD = ("taken over", "given back")
"""How the reason of a lost lease begins if the task has not ended."""
Lists = dict[str, list[dict[str, str]]]
"""What is in the way of an update, by the names in LISTS."""
Found = TypeVar("Found")


class Typed(NamedTuple):
    """An operation as it was typed: the verb, its fields, and where it stands, for errors."""

    verb: str
    fields: dict[str, Any]
    where: str


@click.command(
    cls=OneScreen,
    epilog=example(
        """fsqueue update /scratch/me/crawl --complete fetch="$token" --insert extract='{"page": 1}'
fsqueue update "$FSQUEUE_QUEUE" --complete "$FSQUEUE_TOKEN" --insert extract=1 --insert extract=2   # within a command
fsqueue update /scratch/me/crawl --cancel fetch=ID@VERSION --insert fetch='{"page": 2}'      # if it still waits
fsqueue update /scratch/me/crawl --insert extract=1 --depends leader="$token"     # only while that lease holds
fsqueue update /scratch/me/crawl --json < operations.jsonl
fsqueue update http://localhost:8750/ --complete fetch="$token" --insert extract='{"page": 1}'   # a gateway's group"""
    ),
)
@click.argument("group", metavar="GROUP")
@click.option("--complete", "completes", metavar="[QUEUE=]TOKEN", multiple=True, help="Complete a leased task.")
@click.option("--result", metavar="JSON", help="Its result, with a single --complete.")
@click.option("--insert", "inserts", metavar="QUEUE=JSON", multiple=True, help="Insert a task.")
@click.option("--renew", "renews", metavar="[QUEUE=]TOKEN", multiple=True, help="Extend a lease.")
@click.option("--lease", "lease_s", type=DURATION, help="How long from now, for --renew [the queue's].")
@click.option("--release", "releases", metavar="[QUEUE=]TOKEN", multiple=True, help="Put a task back.")
@click.option("--fail", "fails", metavar="[QUEUE=]TOKEN", multiple=True, help="Report a failed attempt.")
@click.option("--bury", "buries", metavar="[QUEUE=]TOKEN", multiple=True, help="Make a task a dead letter.")
@click.option(
    "--cancel", "cancels", metavar="[QUEUE=]TOKEN|ID@VERSION", multiple=True,
    help="Take a task out that is leased; or one that waits, if it still has this version ('show', 'ls --json').",
)  # fmt: skip
@click.option(
    "--depends", "dependencies", metavar="[QUEUE=]TOKEN|ID@VERSION", multiple=True,
    help="Do it only if this lease holds, or the task still has this version. The task is left as it is.",
)  # fmt: skip
@click.option("--reason", help="What went wrong, for --fail and --bury.")
@click.option("--delay", "delay_s", type=DURATION, help="How long until tasks of --release and --fail are available.")
@worker_option
@json_option
def update(
    group: str, completes: tuple[str, ...], result: str | None, inserts: tuple[str, ...], renews: tuple[str, ...],
    lease_s: float | None, releases: tuple[str, ...], fails: tuple[str, ...], buries: tuple[str, ...],
    cancels: tuple[str, ...], dependencies: tuple[str, ...], reason: str | None, delay_s: float | None,
    worker: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Change tasks in several queues of GROUP in one step: either all of it happens, or nothing.

    Without options for operations, standard input has them, one in JSON on each line, and all of them are one update:

    \b
      {"insert": {"queue": "extract", "payload": {"page": 1}, "priority": 3, "delay_s": 60}}
      {"complete": {"queue": "fetch", "token": "...", "result": 5}}
      {"renew": {"token": "...", "lease_s": 600}}    {"release": {"token": "...", "delay_s": 0}}
      {"fail": {"token": "...", "error": "..."}}     {"bury": {"token": "...", "reason": "..."}}
      {"cancel": {"token": "..."}}                   {"cancel": {"id": "...", "version": 812}}
      {"replace": {"token": "...", "payload": 6}}    {"replace": {"id": "...", "version": 812, "payload": 6}}
      {"depends": {"token": "..."}}                  {"depends": {"id": "...", "version": 812}}

    A version is what 'fsqueue show' and 'ls --json' print of a task. An operation that names it is refused if the task
    was changed since; "cancel" and "replace" also if it is leased. "depends" changes nothing: the update is done only
    if the task is so.

    An insert may have a "key". While a task with it is waiting, delayed or leased, nothing is inserted for it, and the
    rest is done: the line says "taken by" and the id of that task; --json has "inserted": false.

    A token is what 'fsqueue lease' prints. Name its queue, too, as QUEUE=TOKEN or "queue": otherwise the task is looked
    for in all queues of the group, if these are at most 64. GROUP may be GROUP/QUEUE: then tokens are of that queue.
    Both may be addresses of a gateway.

    A queue comes into being with its first task. Payloads may take 64 KiB, and an update may have 10,000 operations.

    \b
    Exit codes:
      0    all was done
      1    it is not known whether it was done: the error says how to find out
      2    an operation is wrong; nothing was done
      6    conflict: a lease was lost, a task was changed, or other updates were in the way; nothing was done. --json
           prints the lists: missing, changed, owned, depends, busy
    """
    given = _from_options(
        completes, result, inserts, renews, lease_s, releases, fails, buries, cancels, dependencies, reason, delay_s
    )
    operations = given or _from_stdin()
    opened, default = _group_at(group, worker)
    prepared = opened.update()
    lost: Lists = {name: [] for name in LISTS}
    for operation in operations:
        _add(opened, default, prepared, operation, lost)
    if any(lost.values()):
        _conflict(lost, as_json)
    try:
        results = prepared.apply()
    except fsqueue.UpdateConflict as conflict:
        lists = {name: [_as_dict(one) for one in getattr(conflict, name)] for name in LISTS}
        _conflict(lists, as_json)
    done = [_done(operation, result) for operation, result in zip(operations, results, strict=True)]
    print_done(as_json, {"done": done}, *map(_as_line, done))


def _from_options(
    completes: Sequence[str], result: str | None, inserts: Sequence[str], renews: Sequence[str], lease_s: float | None,
    releases: Sequence[str], fails: Sequence[str], buries: Sequence[str], cancels: Sequence[str],
    dependencies: Sequence[str], reason: str | None, delay_s: float | None,
) -> list[Typed]:  # fmt: skip
    """Return the operations that options ask for; UsageError."""
    for name, value, users, of in (
        ("--result", result, completes, "--complete"), ("--lease", lease_s, renews, "--renew"),
        ("--reason", reason, (*fails, *buries), "--fail or --bury"),
        ("--delay", delay_s, (*releases, *fails), "--release or --fail"),
    ):  # fmt: skip
        if value is not None and not users:
            raise click.UsageError(f"{name} needs {of}. Nothing was done.")
    if result is not None and len(completes) > 1:
        raise click.UsageError("--result is for a single --complete. Give several results on standard input.")
    if reason is None and (fails or buries):
        raise click.UsageError("--fail and --bury need --reason TEXT. Nothing was done.")
    delay = {} if delay_s is None else {"delay_s": delay_s}
    found = [
        *_with_tokens("complete", completes, {} if result is None else {"result": _decoded(result, "--result")}),
        *_with_tokens("renew", renews, {} if lease_s is None else {"lease_s": lease_s}),
        *_with_tokens("release", releases, delay),
        *_with_tokens("fail", fails, {"error": reason, **delay}),
        *_with_tokens("bury", buries, {"reason": reason}),
        *map(_with_version, _with_tokens("cancel", cancels, {})),
        *map(_with_version, _with_tokens("depends", dependencies, {})),
    ]
    for text in inserts:
        queue, equals, payload = text.partition("=")
        if not equals:
            raise click.UsageError(
                f"--insert {text!r:.100} is not QUEUE=JSON, as in --insert extract='{{\"page\": 1}}'. Nothing was done."
            )
        where = f"--insert {queue}"
        found.append(Typed("insert", {"queue": queue, "payload": _decoded(payload, where)}, where))
    return found


def _with_tokens(verb: str, given: Sequence[str], more: dict[str, Any]) -> Iterator[Typed]:
    for text in given:
        queue, equals, token = text.rpartition("=")
        fields = {"token": token, **more, **({"queue": queue} if equals else {})}
        yield Typed(verb, fields, f"--{verb}")


def _with_version(operation: Typed) -> Typed:
    """Return an operation with an id and a version, if ID@VERSION stands in place of its token."""
    id, at, version = operation.fields["token"].rpartition("@")
    if not at or len(version) == LEASE_DIGITS or not version.isascii() or not version.isdigit():
        return operation
    rest = {name: value for name, value in operation.fields.items() if name != "token"}
    return operation._replace(fields={"id": id, "version": int(version), **rest})


def _decoded(text: str, where: str) -> Any:
    try:
        return user_json.decode_with_constants(text) if where == "--result" else user_json.decode(text)
    except user_json.NotExact as error:
        raise click.UsageError(f"{where} {error}. Nothing was done.") from None


def _from_stdin() -> list[Typed]:
    """Return the operations on standard input; UsageError names the first line that is none. TaskTooLarge."""
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("Give operations, such as --complete and --insert, or JSON Lines on standard input.")
    found: list[Typed] = []
    read = sys.stdin.buffer
    for number, line in enumerate(iter(lambda: read.readline(LINE_BYTES_MAX + 1), b""), 1):
        where = f"Standard input, line {number},"
        if len(line) > LINE_BYTES_MAX:
            raise fsqueue.TaskTooLarge(f"{where} takes more than {LINE_BYTES_MAX:,} bytes. Nothing was done.")
        if not line.strip():
            continue
        if len(found) >= OPERATIONS_MAX:
            raise click.UsageError(f"An update has at most {OPERATIONS_MAX:,} operations. Nothing was done.")
        value = _decoded(line.decode("utf-8", "surrogateescape"), where)
        if not isinstance(value, dict) or len(value) != 1 or not isinstance(fields := next(iter(value.values())), dict):
            raise click.UsageError(f'{where} is no operation, such as {{"complete": {{"token": "..."}}}}.'
                                   " Nothing was done.")  # fmt: skip
        found.append(_checked(Typed(next(iter(value)), fields, where)))
    if not found:
        raise click.UsageError("Standard input has no operation. Nothing was done.")
    return found


def _checked(operation: Typed) -> Typed:
    """Return an operation that has the fields that it needs, and no others; UsageError."""
    verb, fields, where = operation
    if verb not in FIELDS:
        raise click.UsageError(f"{where} has the operation {verb!r:.100}, which is none of {', '.join(FIELDS)}. "
                               "Nothing was done.")  # fmt: skip
    known = FIELDS[verb]
    if unknown := [name for name in fields if name not in known]:
        raise click.UsageError(f"{where} has the field {unknown[0]!r:.100}; {verb} knows {', '.join(known)}. "
                               "Nothing was done.")  # fmt: skip
    if missing := [name for name in NEEDS.get(verb, ("token",)) if name not in fields]:
        raise click.UsageError(f"{where} lacks the field {missing[0]!r}. Nothing was done.")
    for name, value in fields.items():
        if known[name] and (not isinstance(value, known[name]) or isinstance(value, bool)):
            raise click.UsageError(f"{where} has the field {name!r} with a value of a wrong type. Nothing was done.")
    names_task = sorted(fields.keys() & {"token", "id", "version"})
    if "version" in known and names_task not in (["token"], ["id", "version"]):
        raise click.UsageError(f'{where} needs the field "token", or "id" and "version". Nothing was done.')
    return operation


def _group_at(path: str, worker: str | None) -> tuple[AnyGroup, str | None]:
    """Return the group at a path or an address, or of the queue at it, and the name of that queue. GroupNotFound,
    NotAQueue.
    """
    if is_address(path):
        return _group_at_gateway(path, worker)
    group = group_at(path, worker=worker)
    if group is not None:
        return group, None
    try:
        queue = queue_at(path, worker)
    except fsqueue.QueueNotFound:
        return fsqueue.Group(path, worker=worker), None  # GroupNotFound
    if not isinstance(queue, fsqueue.GroupQueue):
        fsqueue.Group.at(queue.path.parent)  # GroupNotFound if it is one without its own file
        raise click.UsageError(
            f"{path} is a queue of no group, and an update changes queues of a group. Nothing was done. To make one: "
            "fsqueue create --group PATH"
        )
    return fsqueue.Group(queue.group.path, worker=worker), queue.name


def _group_at_gateway(url: str, worker: str | None) -> tuple[fsqueue.RemoteGroup, str | None]:
    """Return the group of a gateway, and the name of the queue that an address names."""
    found, name = fsqueue.connect(url, worker=worker, patience_s=GATEWAY_PATIENCE_S), None
    if isinstance(found, fsqueue.RemoteQueue):
        name = found.name
        found = fsqueue.connect(f"{found.gateway}/", worker=worker, patience_s=GATEWAY_PATIENCE_S)
    if isinstance(found, fsqueue.RemoteGroup):
        return found, name
    raise click.UsageError(
        f"{url} is a gateway that serves one queue, and an update changes queues of a group. Nothing was done. To "
        "serve a group: fsqueue serve GROUP"
    )


def _add(group: AnyGroup, default: str | None, prepared: Any, operation: Typed, lost: Lists) -> None:
    """Add an operation to an update; note a lease that does not hold, in the list in which an update names it."""
    verb, fields = operation.verb, dict(operation.fields)
    if verb == "insert":
        prepared.insert(named(group, fields.pop("queue")), fields.pop("payload"), **fields)
        return
    token, queue = fields.pop("token", fields.get("id", "")), fields.pop("queue", default)
    if "id" not in fields and "@" not in token:
        seen = ", nor ID@VERSION" if "version" in FIELDS[verb] else ""
        raise click.UsageError(
            f"{operation.where} {token!r:.100} is not a token, as 'fsqueue lease' prints them{seen}. Nothing was done."
        )
    try:
        if "id" in fields:
            task: Any = replace(_seen(group, queue, fields.pop("id")), version=fields.pop("version"))
        else:
            task = _task_of(group, queue, token)
    except (fsqueue.LeaseLost, fsqueue.TaskNotFound) as error:
        why = error.reason if isinstance(error, fsqueue.LeaseLost) else _why_absent(group, queue, token, error)
        among = "depends" if verb == "depends" else "owned" if why.startswith(NOT_HELD) else "missing"
        lost[among].append({"op": verb, "queue": queue or "", "id": token.partition("@")[0], "reason": why})
        return
    act: Callable[..., object] = getattr(prepared, verb)
    act(task, **fields)


def _task_of(group: AnyGroup, queue: str | None, token: str) -> fsqueue.LeasedTask:
    """Return the leased task that a token means. LeaseLost, TaskNotFound."""
    return _found(group, queue, lambda one: one.attach(token))


def _seen(group: AnyGroup, queue: str | None, id: str) -> fsqueue.TaskInfo:
    """Return what is known of a task. TaskNotFound."""
    return _found(group, queue, lambda one: one.task(id))


def _found(group: AnyGroup, queue: str | None, look: Callable[[AnyQueue], Found]) -> Found:
    """Return what a look into the task's queue finds; into all of them, if it is not named. TaskNotFound."""
    if queue is not None:
        return look(group[named(group, queue)])
    each: Iterator[fsqueue.GroupQueue | fsqueue.RemoteQueue] = group.queues(tasks_min=0)
    queues = list(islice(each, SEARCHED_MAX + 1))
    if len(queues) > SEARCHED_MAX:
        raise click.UsageError(
            f"The group has more than {SEARCHED_MAX} queues. Name the queue of each token: QUEUE=TOKEN. "
            "Nothing was done."
        )
    found: list[tuple[fsqueue.GroupQueue | fsqueue.RemoteQueue, Found]] = []
    lost: fsqueue.LeaseLost | None = None
    for one in queues:
        try:
            if not found or _may_be_copy(one, found[0][0]):
                found.append((one, look(one)))
        except fsqueue.LeaseLost as error:
            lost = lost or error  # a copy of the queue, made before the lease, does not know it
        except (fsqueue.TaskNotFound, fsqueue.QueueNotFound, fsqueue.NotAQueue):
            continue
    if len(found) > 1:
        first, second = (quoted(path_of(one)) for one, _ in found[:2])
        raise click.UsageError(
            f"{first} and {second} have the same id: one is a copy of the other, and both have this task. Name the "
            'queue: QUEUE=TOKEN, or "queue" on standard input. Nothing was done.'
        )
    if found:
        return found[0][1]
    if lost is not None:
        raise lost
    raise fsqueue.TaskNotFound(
        "No queue of the group has this task to do. Name its queue to learn what became of the task: QUEUE=TOKEN, or "
        '"queue" on standard input.'
    )


def _may_be_copy(one: fsqueue.GroupQueue | fsqueue.RemoteQueue, other: object) -> bool:
    """Return whether a queue may have the same tasks as another one. A gateway does not tell: it is asked for them."""
    if isinstance(one, fsqueue.Queue) and isinstance(other, fsqueue.Queue):
        return one.store.queue_state.id == other.store.queue_state.id
    return True


def _why_absent(group: AnyGroup, queue: str | None, token: str, error: fsqueue.FsqueueError) -> str:
    """Return why a task is not at work, as the history tells it."""
    if "@" in token and queue is not None and group[queue].exists():
        loss = why_lost(group[queue], [token])[token]
        if loss is not None:
            return outcomes.DONE_BEFORE[0] if loss.is_completed else loss.why
    return str(error)


def _conflict(lists: Lists, as_json: bool) -> None:
    """Say what stood in the way of an update, and end."""
    if as_json:
        print_json({"conflict": lists})
    for name, conflicts in lists.items():
        for one in conflicts:
            task = " ".join(filter(None, (one["op"], one["queue"], one["id"])))
            complain(f"{name}: {task}: {one['reason']}")
    if all(
        one["reason"] in outcomes.DONE_BEFORE and name == "missing" for name, found in lists.items() for one in found
    ):
        complain("nothing was done now: an earlier update, or 'fsqueue complete', has succeeded with this lease")
    else:
        complain("nothing was done")
    raise click.exceptions.Exit(fsqueue.UpdateConflict.exit_code)


def _as_dict(conflict: Any) -> dict[str, str]:
    return {name: getattr(conflict, name) for name in ("op", "queue", "id", "reason")}


def _done(operation: Typed, result: Any) -> dict[str, Any]:
    """Return what an operation did: of an insert with the id of the new task, or of the one that has the key."""
    token = operation.fields.get("token", operation.fields.get("id"))
    task = token.partition("@")[0] if token is not None else str(result) if result is not None else ""
    found: dict[str, Any] = {"op": operation.verb, **({"id": task} if task else {})}
    if isinstance(result, fsqueue.TaskRef) and not result.inserted:
        found["inserted"] = False
    return found


def _as_line(done: dict[str, Any]) -> str:
    """Return what an operation did, for people."""
    taken = "" if done.get("inserted", True) else "taken by "
    return f"{done['op']:<9}{taken}{done.get('id', '')}".rstrip()
