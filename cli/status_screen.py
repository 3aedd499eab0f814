"""Draw with rich what `status --watch` and `wait` show: in the terminal's size, with characters that it has."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fsqueue.format.wording import duration

from .printing import can_show, plain
from .status_text import STATES, Look, details, is_above_zero, number, progress_line, total

LEAST_ROWS, LEAST_COLUMNS, TABLE_COLUMNS = 10, 50, 70
"""On a smaller terminal only numbers are shown. A table of several queues needs TABLE_COLUMNS."""
NAME_COLUMNS_MAX = 40
DETAIL_ROWS = 6
"""Number of rows kept free below a table of queues, for rates, failures and the slowest leased tasks."""


def line(console: Console, text: str) -> Text:
    """Return a text on one line that cannot drive the terminal, that its encoding has, and that is cut to its width."""
    known = plain(text).encode(console.encoding, "backslashreplace").decode(console.encoding)
    return Text(known, no_wrap=True, overflow=_overflow(console))


def _overflow(console: Console) -> Literal["ellipsis", "crop"]:
    return "ellipsis" if can_show("…", console.encoding) else "crop"


def screen(console: Console, looks: Sequence[Look]) -> RenderableType:
    """Return a screen that shows what was seen of one queue, or of several."""
    least = LEAST_COLUMNS if len(looks) == 1 else TABLE_COLUMNS
    if console.height < LEAST_ROWS or console.width < least:
        return _numbers(console, looks)
    if len(looks) == 1:
        return _one(console, looks[0])
    return _several(console, looks)


def _numbers(console: Console, looks: Sequence[Look]) -> RenderableType:
    if len(looks) > 1:
        return Group(*(line(console, progress_line(look, named=True)) for look in [total(looks), *looks]))
    said = line(console, progress_line(looks[0]) if looks else "")
    said.no_wrap, said.overflow = False, "fold"
    return said


def _one(console: Console, look: Look) -> RenderableType:
    heading = _heading(console, look.path)
    if look.error is not None:
        return Group(heading, line(console, str(look.error)))
    grid = _grid(console, None, 6, 6)
    for name in STATES:
        count = getattr(look.status, name)
        share = count / look.status.inserted if look.status.inserted else 0.0
        grid.add_row(name, _bar(share), f"{count:,}", f"{share:.1%}")
    return Group(heading, grid, *_details(console, look, console.height - len(STATES) - 1))


def _several(console: Console, looks: Sequence[Look]) -> RenderableType:
    whole = total(looks)
    room = max(3, console.height - 3 - DETAIL_ROWS)
    shown = sorted(looks, key=lambda look: look.status.drained and look.error is None)[:room]
    grid = _grid(console, min(NAME_COLUMNS_MAX, max(8, console.width - 66)), 6, 11, 7, 7, 7, 11)
    grid.add_row("", "", "done", "waiting", "leased", "dead", "per s", "left")
    failed = []
    for look in sorted(shown, key=lambda look: look.name):
        if look.error is None:
            _add_row(console, grid, look)
        else:
            failed.append(line(console, f"{look.name}: {look.error}"))
    _add_row(console, grid, whole)
    if len(shown) < len(looks):
        failed.append(line(console, f"and {len(looks) - len(shown):,} more"))
    rows = console.height - 1 - grid.row_count - len(failed)
    return Group(_heading(console, f"{len(looks)} queues"), grid, *failed, *_details(console, whole, rows))


def _add_row(console: Console, grid: Table, look: Look) -> None:
    status, found = look.status, look.activity
    share = status.completed / status.inserted if status.inserted else 0.0
    left = duration(look.left.likely_s) if look.left is not None and status.remaining else ""
    rate = number(found.finished.per_s) if found is not None and is_above_zero(found.finished) else ""
    counts = (status.waiting + status.delayed, status.leased, status.dead)
    grid.add_row(line(console, look.name), _bar(share), f"{share:.1%}", *map("{:,}".format, counts), rate, left)


def _grid(console: Console, name_columns: int | None, *least_columns: int) -> Table:
    """Return a table of a name, a bar that takes the room that is left, and numbers."""
    overflow = _overflow(console)
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(max_width=name_columns, no_wrap=True, overflow=overflow)
    grid.add_column(ratio=1, no_wrap=True, overflow=overflow)
    for columns in least_columns:
        grid.add_column(justify="right", no_wrap=True, min_width=columns, overflow=overflow)
    return grid


def _details(console: Console, look: Look, rows: int) -> list[Text]:
    return [line(console, text) for text in details(look, rows, "±" if can_show("±", console.encoding) else "+-")]


def _heading(console: Console, name: str) -> RenderableType:
    now = time.strftime("%H:%M:%S")
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1, no_wrap=True)
    grid.add_column(width=len(now) + 1, justify="right", no_wrap=True, overflow="crop")
    grid.add_row(line(console, name), now)
    return grid


def _bar(share: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=min(max(share, 0.0), 1.0))
