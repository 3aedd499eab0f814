# ruff: noqa: E501
"""Named commits, broken on purpose."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "a commit's record is created, then written",
        "a crash in between leaves half a record, and the name is burnt",
        ("local", "publish-staged", "", "killed"),
        (
            (
                "storage.commits:decide",
                "            store.fs.link(layout.ballot(record.id), layout.record(record.name))\n",
                "            fd = store.fs.create(layout.record(record.name))\n            store.fs.write_all(fd, record.encode())\n            store.fs.close(fd)\n",
            ),
        ),
    ),
    Mutation(
        "a record that exists is taken for done",
        "who died before applying it has left its tasks in staging, and a repeat reports success",
        ("local", "publish-staged", "commit-anew", "killed"),
        (
            ("commit:Commit._finish", "    commits.apply(store, layout, record)\n", "    if not repeated:\n        commits.apply(store, layout, record)\n"),
            ("storage.commits:apply_pending", "    met = pending(store, layout)\n", "    met = []\n"),
            ("storage.commits:settle", "    if record is not None and is_decided(store, layout, record):", "    if False:"),
        ),
    ),
    Mutation(
        "nobody looks for what is pending",
        "after a crash a queue with committed tasks is called empty",
        "commits-crash",
        (("protocol.leasing:Leaser._lease_from_heads", "if commits.apply_pending(store) and anew:", "if False:"),),
    ),
    Mutation(
        "nobody looks for what is pending before he goes home",
        "the same, and everybody goes home",
        "commits-crash",
        (("views.inspection:DrainCheck.__call__", "if commits.apply_pending(self.store):", "if False:"),),
    ),
    Mutation(
        "the proposal goes before its files are in their place",
        "a crash in between leaves a decision that nothing leads to",
        "commits-crash",
        (
            ("storage.commits:apply", "    try:\n        if store.sync_inserts:\n            store.secure_generation()\n", "    store.fs.unlink(layout.proposal(record.id))\n    try:\n        if store.sync_inserts:\n            store.secure_generation()\n"),
        ),
    ),
    Mutation(
        "the decision is not synced before it is applied",
        "a power loss keeps some of the files and loses the decision",
        "commits-power",
        (("storage.commits:apply", "            store.names.sync(layout.commits)", "            pass"),),
    ),
    Mutation(
        "the shards are not synced before the proposal goes",
        "a power loss puts the files back into staging, and nothing leads to them",
        "commits-power",
        (("storage.commits:apply", "                    _sync(store, f\"{layout.tasks}/{shard}\")\n", "                    pass\n"),),
    ),
    Mutation(
        "what is staged is not synced",
        "its names survive a power loss, the tasks do not",
        "commits-power",
        (("commit:_Stager._sync", "for fd in done if self.store.sync_inserts else ():", "for fd in ():"),),
    ),
    Mutation(
        "an attempt's directory is not synced",
        "parts that were reported staged are gone after a power loss",
        "commits-power",
        (
            ("commit:_Stager._finish_part", "if store.sync_inserts:", "if False:"),
            ("storage.commits:_is_whole", "    return not files and not tasks\n", "    return True\n"),
        ),
    ),
    Mutation(
        "nothing is proven",
        "what was discarded is committed, and reported so",
        ("nfs", "publish-staged", "discard-staged", "on"),
        (("storage.commits:_is_whole", "    return not files and not tasks\n", "    return True\n"),
         ("storage.commits:prove", "    except FileNotFoundError:\n        whole = False\n", "    except FileNotFoundError:\n        whole = True\n")),
    ),
    Mutation(
        "reaped without looking for proposals",
        "what was proven is gone when it is decided",
        ("nfs", "publish-staged", "discard-staged", "on"),
        (("storage.commits:reap", "for identity in {one for _ in range(2) for one in proposals(store, layout)}:", "for identity in []:"),),
    ),
    Mutation(
        "reaped without looking for the record",
        "what was decided is reaped",
        ("nfs", "publish-staged", "discard-staged", "on"),
        (
            ("storage.commits:reap", "        if record is None or attempt not in record.attempts():\n", "        if True:\n"),
        ),
    ),
    Mutation(
        "proven before it is proposed",
        "who reaps in between sees no proposal",
        ("nfs", "publish-staged", "discard-staged", "on"),
        (
            ("storage.commits:decide", "        with _proposed(store, layout, record):\n            _prove(store, layout, record)\n", "        _prove(store, layout, record)\n        with _proposed(store, layout, record):\n"),
        ),
    ),
    Mutation(
        "applied before it is decided",
        "half of a commit that is never decided is executed",
        ("local", "publish-staged", "lease-many", "killed"),
        (
            ("storage.commits:decide", "            _prove(store, layout, record)\n", "            _prove(store, layout, record)\n            for attempt, parts in record.attempts().items():\n                _publish(store, layout, attempt, record.name, parts)\n"),
        ),
    ),
    Mutation(
        "each publishes his own parts, whoever won",
        "the tasks of both are executed",
        ("nfs", "publish-staged", "commit-anew", "on"),
        (
            (
                "commit:Commit.publish",
                "        repeated = known.id != own.id\n",
                "        repeated = known.id != own.id\n        for attempt, mine in own.attempts().items():\n            commits._publish(store, layout, attempt, self.name, mine)\n",
            ),
        ),
    ),
    Mutation(
        "a generation begins before its record is in it",
        "a crash in between leaves an empty queue, and what was to be in it is lost",
        ("local", "overwrite-staged", "", "killed"),
        (
            ("protocol.overwriting:begin", "        _note(store, following, record)\n        try:\n            jsonl.append(fs, fd, generation_record(begun, store.clock.now_ms()), True)\n", "        try:\n            jsonl.append(fs, fd, generation_record(begun, store.clock.now_ms()), True)\n            _note(store, following, record)\n"),
        ),
    ),
    Mutation(
        "a generation begins before its names are durable",
        "a power loss keeps the line that begins it, and nothing of what was to be in it",
        "commits-overwrite-power",
        (("protocol.overwriting:_note", "            fs.sync_directory(directory)\n", "            pass\n"),),
    ),
    Mutation(
        "the ballot is not synced",
        "a power loss leaves a decision without its content",
        ("lossy", "publish-staged", "", "power-names"),
        (("storage.ballots:cast", "        if store.sync_inserts:\n", "        if False:\n"),),
    ),
    # -- tasks with priorities -----------------------------------------------------------------------
    Mutation(
        "staging does not make it known that there are priorities",
        "a worker with a bound believes that there are none",
        "commits-order",
        (("commit:_Stager._write", "    ordering.mark(store, min(encoded.rank for encoded in group))\n", ""),),
    ),
    Mutation(
        "the process that publishes makes it known that there are priorities, when all is in its place",
        "it dies between the two, or a worker with a bound comes first",
        "commits-order",
        (("commit:_Stager._write", "    ordering.mark(store, min(encoded.rank for encoded in group))\n", ""),
         ("commit:Commit._finish", "    commits.apply(store, layout, record)\n", "    commits.apply(store, layout, record)\n    ordering.mark(store, b'')\n")),
    ),
    Mutation(
        "staged files have names without priorities",
        "no worker looks for the urgent tasks in them",
        "commits-order-calm",
        (("commit:_Stager._write", ".ranked(encoded.rank)", ""),),
    ),
    Mutation(
        "what a commit publishes loses the priority of its name",
        "no worker looks for the urgent tasks in it",
        "commits-order-calm",
        (("storage.commits:_publish", "layout.task_file(name)", "layout.task_file(name._replace(priority=None))"),),
    ),
]  # fmt: skip
