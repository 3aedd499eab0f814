# ruff: noqa: E501
"""Unique keys, broken on purpose: what is written first, what is proven, and what is made durable."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

CLAIMS = "protocol.keyed_inserts:Claims"

MUTATIONS = [
    Mutation(
        "the record of a keyed task comes before the key's line",
        "its inserter dies between the two: the next insert finds no line, and inserts a second task",
        "keyed",
        (
            ("protocol.single_inserts:SingleInserter.insert", "if announce is not None:\n            announce(layout, batch, identity)\n", "pass\n"),
            ("protocol.single_inserts:SingleInserter.insert", "index = self._into(batch, identity, line, when, rank)", "index = self._into(batch, identity, line, when, rank)\n            if announce is not None and index is not None:\n                announce(layout, batch, identity)"),
        ),
    ),
    Mutation(
        "a batch in which a key's record is not is left unsealed",
        "the record of an inserter that was cut off comes later: two tasks live",
        "keyed-cut",
        ((f"{CLAIMS}._end", "if not is_known and locked.replay_state.takes_inserts:", "if False:"),),
    ),
    Mutation(
        "a batch without a log counts as ended on a network mount",
        "the inserter that has named it may be about to make the log",
        "keyed-cut",
        ((f"{CLAIMS}._in_log", "if not store.fs.shared:\n                return None", "if True:\n                return None"),),
    ),
    Mutation(
        "a task lives because the key's last line names it",
        "it ended long ago: what should be inserted is not",
        "keyed",
        (("protocol.keyed_inserts:_found", " and state.state[first] in LIVING", ""),
         ("protocol.keyed_inserts:_found", "state.places.get(first) == begin", "True")),
    ),
    Mutation(
        "upkeep removes the file of a key without its lock",
        "an inserter that has it open goes on, another begins a new file: two tasks live",
        "keyed-gc",
        (("upkeep.collect:reap_key", "with keys.held(store, store.layout, path, finishing.WAIT_S) as held:", "with __import__('contextlib').nullcontext(keys.KeyFile(store, store.layout, store.fs.look(path), path)) as held:"),),
    ),
    Mutation(
        "an inserter does not look whether the path still names the key's file",
        "it writes into a file that upkeep has removed",
        "keyed-gc",
        (("storage.keys:locked", "if fs.same_file(fd, path):", "if True:"),),
    ),
    Mutation(
        "a key is taken whose task has ended, and that is not synced",
        "a power loss takes the completion: two tasks live",
        "keyed-again-power",
        ((f"{CLAIMS}._make_end_durable", "if not self.store.sync_movements:", "if False:"),),
    ),
    Mutation(
        "the key's line is not synced",
        "a power loss takes it, and keeps the task",
        "keyed-power",
        (("storage.keys:KeyFile.append", "jsonl.append(store.fs, self._fd, line, store.sync_inserts)", "jsonl.append(store.fs, self._fd, line, False)"),),
    ),
    Mutation(
        "the name of the key's file is not synced",
        "a power loss takes the file, and keeps the task",
        "keyed-power",
        (("storage.keys:KeyFile.append", "if store.sync_inserts:", "if False:"),),
    ),
    Mutation(
        "an inserter goes on after a purge with the key of the generation before",
        "another inserts with the key in the new generation: two tasks live",
        "keyed-purge",
        (("protocol.keyed_inserts:KeyedInserter._announcing", "if layout.generation != held.layout.generation:", "if False:"),),
    ),
    Mutation(
        "a listing proves that a task with a file of its own lives",
        "the listing is old, and the task has ended",
        "keyed-files-nfs",
        ((f"{CLAIMS}._with_own_file", "any(store.fs.exists(layout.task_file(one)) for one in listed)", "listed"),),
    ),
    Mutation(
        "a staged file that a key's line names is not published",
        "its key can never be used again",
        "keyed-files",
        ((f"{CLAIMS}._with_own_file", "if staging.publish_named(store, layout, str(name)):", "if False:"),),
    ),
    Mutation(
        "a task with a file of its own is published before the key's line",
        "its inserter dies between the two: the next insert finds no line, and inserts a second task",
        "keyed-files",
        (
            ("protocol.keyed_inserts:KeyedInserter._with_own_file", "held.append(self._claim(key, staged.name.batch, staged=staged.name))", "pass"),
            ("protocol.keyed_inserts:KeyedInserter._with_own_file", "is_published = True\n", "is_published = True\n            held.append(self._claim(key, staged.name.batch, staged=staged.name))\n"),
        ),
    ),
]  # fmt: skip
