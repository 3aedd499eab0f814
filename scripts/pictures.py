"""Draw what a terminal shows, as SVG: `scripts/pictures`. No script, no font and no image is in the picture."""

from __future__ import annotations

import argparse
import fcntl
import html
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pyte
from pyte.screens import Char

TOP = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 92, 26
CELL_W, CELL_H, MARGIN = 8.4, 18, 14
COLOURS = {
    "default": "#d0d4dc", "black": "#5c6370", "red": "#e06c75", "green": "#8ec07c", "brown": "#e5c07b",
    "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#d0d4dc",
    "brightblack": "#5c6370", "brightgreen": "#8ec07c", "brightred": "#e06c75", "brightbrown": "#e5c07b",
    "brightblue": "#61afef", "brightmagenta": "#c678dd", "brightcyan": "#56b6c2", "brightwhite": "#ffffff",
}  # fmt: skip
"""Of a terminal's names; others are hexadecimal already."""
BACKGROUND = "#1e2128"


def shown(command: list[str | Path], seconds: float, place: Path) -> pyte.Screen:
    """Run a command on a terminal for some time, and return its screen."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = os.environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=env, cwd=place)
    os.close(side)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and process.poll() is None:
        if select.select([main], [], [], left)[0]:
            stream.feed(os.read(main, 1 << 16))
    process.kill()
    process.wait()
    os.close(main)
    return screen


def runs(line: dict[int, Char]) -> Iterator[tuple[int, str, Char]]:
    """Yield what stands in a line in one style: its first column, its text and its style."""
    cells = [(column, line[column]) for column in range(COLUMNS)]
    for _, group in groupby(cells, key=lambda cell: cell[1]._replace(data="")):
        found = list(group)
        text = "".join(cell.data for _, cell in found)
        if text.strip():
            yield found[0][0], text, found[0][1]


def svg(screen: pyte.Screen, typed: str, place: Path) -> str:
    """Return a screen as SVG, below the line that was typed. The queue seems to lie in /scratch/me."""
    lines = [line for line in screen.display if line.strip()]
    last = max(n for n, line in enumerate(screen.display) if line.strip()) if lines else 0
    width, height = COLUMNS * CELL_W + 2 * MARGIN, (last + 3) * CELL_H + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{html.escape(typed)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        '<g font-family="ui-monospace, Consolas, DejaVu Sans Mono, monospace" font-size="14">',
        text_at(0, -1, f"$ {typed}", COLOURS["default"], False),
    ]
    for row in range(last + 1):
        for column, found, style in runs(screen.buffer[row]):
            text = found.replace(str(place), "/scratch/me").ljust(len(found))
            name = style.bg if style.reverse and style.bg != "default" else style.fg
            parts.append(text_at(column, row, text, COLOURS.get(name, f"#{name}"), style.bold))
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def text_at(column: int, row: int, text: str, colour: str, is_bold: bool) -> str:
    """Return a piece of a line; its length is fixed, so that columns meet in any font."""
    x, y = MARGIN + column * CELL_W, MARGIN + (row + 2) * CELL_H
    weight = ' font-weight="bold"' if is_bold else ""
    kept = html.escape(text).replace(" ", "\u00a0")  # else spaces in a row count as one
    return (
        f'<text x="{x:.1f}" y="{y:.0f}" fill="{colour}"{weight} textLength="{len(text) * CELL_W:.1f}" '
        f'lengthAdjust="spacingAndGlyphs">{kept}</text>'
    )


def main() -> None:
    """Fill a queue, start a worker whose command fails now and then, and draw the watch."""
    parser = argparse.ArgumentParser(prog="scripts/pictures", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=TOP / "docs" / "status-watch.svg", help="[docs/status-watch.svg]")
    out: Path = parser.parse_args().out
    fsqueue = [sys.executable, "-m", "fsqueue_cli"]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "render").write_text(
            '#!/bin/sh\nsleep 0.1; [ "$1" != 7 ] || { echo "tile 7: no data" >&2; exit 65; }\n'
        )
        (place / "render").chmod(0o755)
        subprocess.run([*fsqueue, "create", "tiles"], cwd=place, check=True, capture_output=True)
        tasks = "".join(f"{n % 500}\n" for n in range(3000))
        subprocess.run(
            [*fsqueue, "insert", "tiles"], cwd=place, input=tasks, text=True, check=True, capture_output=True
        )
        worker = [*fsqueue, "run", "tiles", "-j", "4", "--sysexits", "--", "./render", "{}"]
        with (place / "log").open("w") as log:
            at_work = subprocess.Popen(worker, cwd=place, stdout=log, stderr=log)
            try:
                time.sleep(5)
                screen = shown([*fsqueue, "status", place / "tiles", "--watch"], 20, place)
            finally:
                at_work.terminate()
                at_work.wait()
    out.write_text(svg(screen, "fsqueue status /scratch/me/tiles --watch", place), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
