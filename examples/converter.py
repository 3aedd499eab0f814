"""A converter of documents: growing pauses between attempts, a bounded number of them, and the reason is kept.

    python examples/converter.py texts /scratch/me/converter

The first argument is a directory of text files, the second a new directory for a group. Each text is converted to HTML.
A conversion that fails is tried again after a pause, and the next pause is longer. After three attempts the text is
given up: its task becomes a dead letter with the error. Each page that was made is counted by a second stage. Its task
is inserted in one step with the completion of the first one: so no page is counted twice, and none is left out.
"""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import Any

import fsqueue


def convert(text: str, page: str) -> Any:
    """Write the text file `text` as HTML to `page`. A file that is not there, or is no UTF-8, fails."""
    content = Path(text).read_text(encoding="utf-8")
    made = Path(page).with_suffix(".new")
    made.write_text(f"<!doctype html><pre>{html.escape(content)}</pre>\n")
    made.replace(page)  # whole or not at all, also if two workers convert the same text
    return fsqueue.Then({"characters": len(content)}, [("count", {"page": page})])


def count(page: str) -> int:
    """Return how many lines a page has."""
    return len(Path(page).read_text().splitlines())


def main(texts: str, place: str) -> None:
    """Convert all texts of a directory, then print what became of them."""
    group = fsqueue.Group.create(place, max_attempts=3, backoff_s=(0.05, 1))  # seconds; by default up to an hour
    pages = Path(place).parent / "pages"
    pages.mkdir(exist_ok=True)
    group["convert"].insert_many(
        {"text": str(path), "page": str(pages / f"{path.stem}.html")} for path in sorted(Path(texts).glob("*.txt"))
    )
    fsqueue.Worker(group["convert"], convert, processes=2, stop_after_failures=1000).run()
    fsqueue.Worker(group["count"], count).run()
    lines = [one.result for one in group["count"].results()]
    print(f"{len(lines)} pages with {sum(lines)} lines")
    for letter in group["convert"].dead():
        name, why = Path(letter.payload["text"]).name, letter.reason.partition("\n")[0]
        print(f"given up after {letter.attempt} attempts: {name}: {why}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
