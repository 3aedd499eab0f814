"""Atomic updates, broken on purpose: the rules that docs/design.md has in 4.22, each left out."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "an update is aborted in a log and not in its file",
        "the updater commits after that, and the other logs act",
        "update-stop",
        (("ask_in", "return vote_against(group, name, update, clock, entropy)", "return ABORTED"),),
    ),
    Mutation(
        "an error at the decision counts as no decision",
        "the line stands in the file, and the updater aborts its logs",
        "update-error",
        (("_Try.apply", "decision = self._settle(file.name, error)", "decision = ABORTED"),),
    ),
    Mutation(
        "an update is decided before its logs are on disk",
        "a power loss takes the prepared records of one log, and keeps the decision",
        "update-power",
        (("_Try._sync", "if not self._syncs: ...", "if True: ..."),),
    ),
    Mutation(
        "a log goes before its task file is gone for good",
        "a power loss takes the unlinking of the file alone: what the update has ended is back",
        "update-change-power",
        (("finish", "log.sync or (store.sync_inserts and _has_update(locked))", "log.sync"),),
    ),
    Mutation(
        "a decision is not on disk before the outcomes",
        "a power loss takes the decision, and keeps the outcome in one log",
        "update-power",
        (
            (
                "OwnDecisionFile._sync",
                """
                try:
                    fs.fsync(opened.fd)
                except OSError as error: ...
                else: ...
                """,
                "return",
            ),
        ),
    ),
    Mutation(
        "an updater does not ask whether a queue was purged",
        "two queues are purged beside it: it ends a task of the first, and its insert stands after the second purge",
        "update-purges",
        (("_Try._look", "for opened in self._queues: ...", "for opened in (): ..."),),
        first=30,
    ),
    Mutation(
        "an updater does not ask whether a queue was deleted",
        "two queues are deleted beside it: it ends a task of the first, and its insert stands in the next second one",
        "update-ends",
        (("_Try._look", "raise _Anew('A queue was deleted just now.') from None", "continue"),),
        first=1018,
    ),
    Mutation(
        "a prepared record freezes nothing",
        "a lease that runs out is taken over, and the commit acts on another one's task",
        "update-stop",
        (("task_states.States.freeze", "self.frozen.update(dict.fromkeys(tasks, prepared.update))", "pass"),),
    ),
    Mutation(
        "a task that an update depends on is not frozen",
        "its lease ends between the look and the decision, and the update happens all the same",
        "update-depends",
        (("task_states.States.freeze", "self.frozen.setdefault(index, prepared.update)", "pass"),),
    ),
    Mutation(
        "the first line of a decision file is written when it pleases the client",
        "it comes over the abort of another host, which has aborted a log by then",
        "update-steps",
        (("OwnDecisionFiles._made", "if group.fs.shared: ...", "if False: ..."),),
        first=1117,
    ),
    Mutation(
        "a process that meets a prepared record decides by itself",
        "it gives one log an `abort`, and the decision file says `commit`",
        "update",
        (
            (
                "deciding.decide",
                "decided = decisions.ask_all("
                "store, [DecisionRequest(each.file, each.update, each.is_old, each.beside) for each in wanted])",
                'decided = {each.update: Decision("abort", ()) for each in wanted if each.is_old}',
            ),
        ),
    ),
    Mutation(
        "a decision file that is gone counts as a commit",
        "an update whose process died while it prepared acts in the logs that it had come to",
        "update-gc",
        (
            (
                "_ask_further",
                "if is_over: ...",
                'if is_over: return Decision("commit")',
            ),
            (
                "ask_in",
                "ABORTED if found is None else found.about(update)",
                'Decision("commit", ()) if found is None else found.about(update)',
            ),
        ),
    ),
    Mutation(
        "an update is decided before all of it is prepared",
        "its process dies in between: the inserts are missing",
        "update",
        (
            (
                "_Try.apply",
                """
                file = self._coordinator.files.present(...)
                logs = ...
                vote = Vote(...)
                try: ...
                except BaseException as error: ...
                else: ...
                """,
                """
                file = self._coordinator.files.present(...)
                logs = ...
                vote = Vote(...)
                self.decide_early = lambda: (
                    vote.logs.extend([one.name for one in self._touched]),
                    file.decide(vote, self._clock, self._entropy, self._syncs),
                )
                try: ...
                except BaseException as error: ...
                else: ...
                """,
            ),
            (
                "_Try._prepare",
                """
                for opened in self._queues:
                    tasks_max = opened.store.settings.batch_tasks_max
                    for chunk in opened.plan.chunks(tasks_max): ...
                """,
                """
                if self._touched and any([one.plan.has_inserts for one in self._queues]):
                    self.decide_early()
                for opened in self._queues:
                    tasks_max = opened.store.settings.batch_tasks_max
                    for chunk in opened.plan.chunks(tasks_max): ...
                """,
            ),
        ),
    ),
    Mutation(
        "a batch is finished beside prepared records",
        "a prepared insert is lost with the log",
        "update",
        (
            (
                "finishing.finish",
                "not replay_state.opened or replay_state.remaining or replay_state.prepared",
                "not replay_state.opened or replay_state.remaining",
            ),
            (
                "replay._finish",
                "replay_state.remaining or not replay_state.opened or replay_state.prepared",
                "replay_state.remaining or not replay_state.opened",
            ),
        ),
    ),
    Mutation(
        "the index of a prepared insert is given again",
        "two tasks have one id, or the second one takes the place of the first",
        "update",
        (
            ("States.reserve", "self.skip_to(index + 1, at, offset)", "pass"),
            (
                "States.bring",
                "self.state[index], self.since[index], self.version[index] = AVAILABLE, available_at, offset",
                """
                self.skip_to(index + 1, available_at, offset)
                self.state[index], self.since[index], self.version[index] = AVAILABLE, available_at, offset
                """,
            ),
        ),
    ),
    Mutation(
        "a frozen task counts as lost",
        "an update says that no worker has the lease that it was given, while another update is under way",
        "update-nfs",
        (("_Try._in_log", "if not wanted: ...", "if True: ..."),),
        first=869,
    ),
    Mutation(
        "readers do not ask what is decided",
        "one queue shows its part of an update, and another one does not yet",
        "update-seen",
        (
            (
                "read_replay_state",
                "return decided.seen(store, found, read) if found is not None and found.prepared else found",
                "return found",
            ),
            (
                "read_present_state",
                "return decided.seen(store, found, read) if found is not None and found.prepared else found",
                "return found",
            ),
        ),
    ),
    Mutation(
        "a task that an update inserts is looked for before its log has the outcome",
        "it is shown, and cannot be cancelled: it is executed",
        "update-seen",
        (
            (
                "deciding.freezing",
                "not wanted.isdisjoint(each.tasks) or not wanted.isdisjoint(each.inserted)",
                "not wanted.isdisjoint(each.tasks)",
            ),
        ),
    ),
    Mutation(
        "an update believes an empty log",
        "a lessee has just made it, or died before it wrote there: the tasks seem to be gone",
        "update-change-nfs",
        (
            ("UpdateInOneLog._apply_in", "if not locked.replay_state.opened: ...", "if False: ..."),
            ("_Try._in_log", "if not locked.replay_state.opened: ...", "if False: ..."),
        ),
    ),
    Mutation(
        "a decision file is removed whose logs lack their outcomes",
        "what is prepared in them is aborted, and others have acted",
        "update-gc",
        (("decision_files._retire", "not state.is_gone and not all(...)", "False"),),
    ),
    Mutation(
        "outcomes are not on disk before their decision file goes",
        "a power loss takes the outcome of one log, and nothing tells it any more",
        "update-gc-power",
        (("decision_files._give", "queue.fs.fsync(locked.log.fd)", "pass"),),
        first=4356,
    ),
    Mutation(
        "a prepared insert counts as no task of its key",
        "another insert with the key makes a second one: both live",
        "update-keyed",
        (
            (
                "Claims._read",
                """
                if update is not None:
                    raise _Prepared(state.prepared[update], is_insert=True)
                """,
                "",
            ),
            (
                "Claims._find_in_open_log",
                "if locked.replay_state.prepared_insert(identity) is None: ...",
                "if True: ...",
            ),
        ),
    ),
    Mutation(
        "what an update depends on must be free",
        "it is told that a leased task has changed, which is as it was seen",
        "update-change",
        (
            (
                "_may_be_changed",
                "return replay_state.state[task.index] in (AVAILABLE, LEASED)",
                "return replay_state.state[task.index] == AVAILABLE",
            ),
        ),
    ),
    Mutation(
        "a lessee asks what is decided only about what is old",
        "it says that the queue is empty, beside a task whose insert is decided",
        "update-decided",
        (
            (
                "Leaser._note_undecided",
                "self._wanted = locked.undecided()",
                "self._wanted = [each for each in locked.undecided() if each.is_old]",
            ),
        ),
    ),
    Mutation(
        "a queue is called drained beside what is not decided",
        "a worker ends, and the task that was being inserted is left to no worker",
        "update",
        (
            (
                "_Remains._work_in",
                "if replay_state.remaining > 0 or replay_state.prepared: ...",
                "if replay_state.remaining > 0: return True, replay_state.count",
            ),
        ),
    ),
    Mutation(
        "a payload is replaced under a lease that has run out",
        "its worker completes the old payload, and no worker ever executes the new one",
        "update-late",
        (
            (
                "_may_be_changed",
                'return replay_state.is_free(task.index, at) and (is_available or ending.kind == "cancel")',
                "return replay_state.is_free(task.index, at)",
            ),
        ),
    ),
]
