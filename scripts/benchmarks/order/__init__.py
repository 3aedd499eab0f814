"""The benchmarks of priorities and keys: `scripts/bench order`, `keys`, `pei`, `taskmaster`.

| module | what it does |
|---|---|
| `main` | the command: options, progress, what is written where |
| `campaign` | which steps run, how large they are, in which order |
| `steps` | the steps: fill, work, pop, insert, load, keys |
| `crowd` | many processes with many threads each, that begin at one moment |
| `pops` | in which order tasks were popped, and how many more urgent ones each pop passed over (PEI) |
| `papers` | what the two papers say, with the table or figure that says it |
| `figures` | the figures to reach, computed |
| `report`, `plot` | Markdown and SVG |
"""
