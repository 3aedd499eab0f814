"""What is said of a paused queue (docs/format.md, "`queue.jsonl`")."""

from __future__ import annotations

from collections.abc import Iterable

from fsqueue.storage.store import Store


def news(stores: Iterable[Store]) -> list[str]:
    """Return a sentence for each queue that was paused or resumed, as last read. Each is returned once for a store."""
    found = []
    for store in stores:
        pause = store.queue_state.paused
        if pause == store.noted_pause:
            continue
        store.noted_pause = pause
        if pause is None:
            found.append(f"{store.path} is resumed: its tasks are leased again.")
        else:
            found.append(
                f"{store.path} is paused {pause}. No task of it is leased until 'fsqueue resume {store.path}'."
            )
    return found
