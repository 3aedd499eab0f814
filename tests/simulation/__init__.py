# ruff: noqa: E501
"""A deterministic simulator: several workers' real code over a simulated filesystem, interleaved at every call.

    python -m tests.simulation --schedules 100000 --jobs 2    # tell many stories
    python -m tests.simulation 4711 --scenario cut -v         # one again, call by call
    python -m tests.simulation --kept FILE -v                 # one of the corpus, which went wrong once
    python -m tests.simulation.exhaustive complete lease      # one verb at every call of another

What runs is `fsqueue` itself, from `Queue` down to the filesystem layer; only `os` below it, the clock, randomness and the names
of machines are the simulator's (`wiring`). One seed decides everything, and replays exactly.

| module | what it holds |
|---|---|
| `disk` | the truth: inodes, directories, and what a power loss leaves of them |
| `handles`, `kernel`, `nfs` | what a process sees of it: on one coherent host; as a client with caches of names and pages |
| `world` | time, and whose turn it is: one thread a worker, of which one moves |
| `faults` | what goes wrong: death, power loss, lost replies, errors, a full disk, delays, stopped holders, clients cut off |
| `stories`, `acts`, `scenarios` | random scripts of verbs, how they begin and end, and the kinds there are |
| `history`, `replay`, `invariants` | what was called and answered; a second reading of the logs; the judgement |
| `books`, `retelling`, `corpus` | stories written down as calls and faults, told again, and kept as files |
| `order` | the judgement of priorities: what names promise, and which task comes next |
| `verbs`, `fates`, `exhaustive` | small cases, all of them: every fault at every call of a verb, every verb at every call of another |
| `relays` | two queues that feed each other, and the judgement of what is asked of both |
| `moves` | a move between two queues: each fault at calls of the mover, and what others do meanwhile |
| `slurm` | a Slurm in memory: its commands as processes call them, and its jobs |
| `campaigns`, `struck_campaigns` | jobs that submit their successors, and the judgement; each fault at each call of one of them |
| `group_acts` | queues of a group, which come into being in the story, and the judgement of the group |
| `update_acts` | atomic updates over queues of a group, with keys, cancellations and new payloads, and looks at them |
| `update_judge`, `precedence` | the judgement of updates; whether there is an order in which all could happen |
| `fork_acts` | forks in the streams that verbs read, and in loops, and the judgement of what the child does |
| `claims` | the judgement of what the errors of inserts and of named commits say |
| `mutations`, `trials` | the protocol, broken on purpose: each must be caught |
| `patterns`, `places` | how mutations find what they change, whatever its module and the names of its locals |

**Modelled.** Cached names that are a minute old, in both directions; listings that are old (never twice in a row), or
torn by changes meanwhile; close-to-open pages, buffered writes, locks that are lost and writes that then go nowhere;
ESTALE of files that others removed, `.nfs…` files; replies that are lost after the call was done; errors before and
after a call; clean-ups that fail behind them, or behind what was done: removals, and locks that are given back; errors
of closing, with which an NFS client loses what was not synced; short writes; clocks that differ by minutes; workers
that are killed at a call, in the middle of a write, interrupted by Ctrl-C, or stopped with a lock; children that are
forked inside a critical section, and have its files open, and its locks, from then on; streams of payloads that fork;
loops that fork, with which parent and child go on; clients that are cut off or away for days, lose their locks and go
on; cleaners that remove empty directories; limits of the package that are small; a power loss that keeps any subset of
the directory operations that were not synced, both names of a renaming, and any part of the data that was not; jobs of Slurm
that die, are requeued, cancelled or out of time at any call; commands of Slurm that are refused, do not answer, or are
done although their answers are lost, at once or later.

**Judged.** What was inserted is done or a letter, whatever came to pass, unless the queue was purged or deleted after
the insert had begun; what was reported is what the logs say, and no lease is called lost that nobody took; what an
error says of the queue, in numbers and in words, is what came into it; no verb leaves a lock, to itself or to a child;
nothing is there twice; "empty", "drained" and the numbers are true, of two queues that feed each other, too; names
promise nothing too late where nothing went wrong, and nothing less urgent than what is there; nothing is leased beyond
a bound, and a worker that is alone keeps the order exactly; what was synced before it was reported has outlived a
power loss; of jobs that replace themselves no more run than were asked for, none has two successors, none that works has
none, and all end when the work does; upkeep leaves nothing, and what fsck finds it mends.

**Not modelled.** Threads that share one queue object, forks between two instructions of a verb after which parent and
child both go on, `Worker` and the command line (other tests have them; of it the first step of a job is here); mmap; writes of one client torn among those of
another within a lock; a file server that loses what it said was stable; a lock lost without the client's later fsync
failing.
"""
