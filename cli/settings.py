"""set, pause, resume: settings of a queue in use, and whether its tasks are leased."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import click

import fsqueue

from .common import example, json_option, queue_argument, queue_at
from .options import ATTEMPTS, DURATION, KEPT_PAYLOAD, limit
from .printing import complain, done, print_json, say


def _duration(text: str) -> float:
    return DURATION.convert(text, None, None)


def _pair(text: str) -> tuple[float, ...]:
    parts = text.split(",")
    if len(parts) != 2:
        raise click.BadParameter(f"{text!r} is no pair. Write FIRST,MOST, the shortest and longest pause: 10s,30m.")
    return tuple(map(_duration, parts))


PARSERS: dict[str, Callable[[str], Any]] = {
    "max_attempts": lambda text: limit(ATTEMPTS.convert(text, None, None)),
    "lease_s": _duration,
    "backoff_s": _pair,
    "keep_payloads": lambda text: limit(KEPT_PAYLOAD.convert(text, None, None)),
}
"""How the value of each setting that can be changed is written."""
SHORT = {"lease": "lease_s", "backoff": "backoff_s"}
"""Names of settings as `fsqueue create` has them."""


def _given(assignments: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings in NAME=VALUE. Names that are none are left to the queue to refuse."""
    given: dict[str, Any] = {}
    for assignment in assignments:
        name, is_there, text = assignment.partition("=")
        if not is_there:
            raise click.UsageError(f"{assignment!r} is no setting. Write NAME=VALUE, as max_attempts=3.")
        name = name.replace("-", "_")
        name = SHORT.get(name, name)
        if name in given:
            raise click.UsageError(f"{name} is given twice.")
        try:
            given[name] = PARSERS[name](text) if name in PARSERS else text
        except click.BadParameter as error:
            raise click.UsageError(f"{name}: {error.message}") from None
    return given


def _text(name: str, value: Any) -> str:
    """Return the value of a setting as `set` takes it."""
    if isinstance(value, tuple):
        return ",".join(_text(name, each) for each in value)
    if value is None:
        return "all" if name == "keep_payloads" else "none"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


@click.command(
    epilog=example(
        """fsqueue set /scratch/me/tiles
fsqueue set /scratch/me/tiles max_attempts=3 lease_s=1h backoff=10s,30m"""
    )
)
@queue_argument
@click.argument("assignments", metavar="[NAME=VALUE]...", nargs=-1)
@json_option
def set_(queue: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Change settings of the queue Q in use, and show all of them. Without NAME=VALUE, only show them.

    \b
    NAME=VALUE is one of
      max_attempts=N         attempts before a task becomes a dead letter; or none
      lease_s=DURATION       how long a lease lasts unless renewed; also lease=
      backoff_s=FIRST,MOST   the first and the longest pause after failed attempts; also backoff=
      keep_payloads=BYTES    the size up to which payloads of finished tasks are kept; or all

    All other settings are fixed when the queue is created.

    All processes use the new values within two seconds. Leases that are held keep their length until they are renewed.
    If max_attempts becomes smaller, some tasks may have used up their attempts already. Each becomes a dead letter
    when it would be leased next. Dead letters stay dead: 'fsqueue dead retry' puts them back.
    """
    given = _given(assignments)
    with queue_at(queue) as q:
        settings = asdict(q.change_settings(**given) if given else q.settings)
        with done() if given else nullcontext():
            if as_json:
                print_json({"queue": str(q.path), "settings": settings})
                return
            for name, value in settings.items():
                say(f"{name:<16} {_text(name, value)}{'' if name in PARSERS else '  (fixed)'}")


@click.command(epilog=example('fsqueue pause /scratch/me/tiles --reason "the licence server is down"'))
@queue_argument
@click.option("--reason", metavar="TEXT", help="Why. Workers, status and wait show it.")
@json_option
def pause(queue: str, reason: str | None, as_json: bool) -> None:
    """Keep all processes from leasing tasks of Q until 'fsqueue resume Q'.

    Within two seconds, the workers on all hosts stop leasing, and say so. They finish the tasks that they hold. Then
    they wait, and do not end. Inserting, completing and everything else goes on. A purge does not end a pause.
    """
    with queue_at(queue) as q:
        is_new = q.pause(reason)
        _report(q, as_json, "is paused" if is_new else "is paused already", is_new)


@click.command(epilog=example("fsqueue resume /scratch/me/tiles"))
@queue_argument
@json_option
def resume(queue: str, as_json: bool) -> None:
    """End the pause of the queue Q: its tasks may be leased again.

    Idle workers of this host go on at once, those of other hosts within eight seconds.
    """
    with queue_at(queue) as q:
        is_new = q.resume()
        _report(q, as_json, "is resumed" if is_new else "was not paused", is_new)


def _report(q: fsqueue.Queue, as_json: bool, what: str, is_new: bool) -> None:
    found = q.paused
    with done():
        if as_json:
            print_json(
                {"queue": str(q.path), "changed": is_new, "paused": found.as_dict() if found is not None else None}
            )
        else:
            (say if is_new else complain)(f"{q.path} {what}" + (f" {found}" if found is not None else ""))
