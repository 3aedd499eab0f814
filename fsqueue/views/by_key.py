"""Find the unfinished task that has a key (docs/format.md, "Keys")."""

from __future__ import annotations

from fsqueue.errors import TaskNotFound
from fsqueue.format import names
from fsqueue.format.models import TaskInfo
from fsqueue.storage import keys
from fsqueue.storage.store import Store
from fsqueue.views import inspection


def find(store: Store, key: str) -> TaskInfo:
    """Return what is known of the unfinished task that has a key; TaskNotFound. A hint while others insert.

    It reads the key's file and one batch, however many tasks the queue has.
    """
    store.verify()
    epochs, digest = store.queue_state.key_epochs, names.key_digest(key)
    for epoch in dict.fromkeys((epochs.present, epochs.earlier)):
        claim = keys.read(store, store.layout.key(digest, epoch), key)
        if claim is None:
            continue
        tasks = inspection.unfinished(store, claim.batch, range(store.settings.batch_tasks_max))
        for task in tasks.values():
            if task.key == key:
                return task
        break
    raise TaskNotFound(
        f"No unfinished task of {store.path} has the key {key!r:.200}. A key is free again once its task has ended: "
        "'fsqueue results' lists those that have."
    )
