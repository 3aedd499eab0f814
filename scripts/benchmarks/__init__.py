"""The benchmark behind scripts/bench. Nothing here is imported by fsqueue, and nothing of it is installed.

| module | its room |
|---|---|
| `__main__`, `main` | the command: options, progress, what is written where |
| `campaign` | which steps run, in which order, in whose turn; the peers' time budgets |
| `launch` | one step in a process of its own; several at once for the steps with many workers |
| `worker` | that process: reads a request, does a step, prints what it measured |
| `steps` | the steps: insert, lease, drain, delete, ... the same code for every system |
| `alive` | what looks cost after a long past, and with zeros behind files |
| `wake` | from an insert to the start of a task, by how long the workers have idled |
| `order` | the benchmarks of priorities and keys: `scripts/bench order`, `keys`, `pei`, `taskmaster` |
| `growth` | scripts/soak-growth: what everything costs in each tenth of two million movements |
| `systems` | one small adapter a system, by its public interface; `floor` is the bare system calls |
| `peers` | the virtualenv with the peers from PyPI |
| `machine` | on what was measured; file trees |
| `summary`, `figures` | medians of the rounds; the figures to reach, computed |
| `report`, `plot` | Markdown and SVG |
"""
