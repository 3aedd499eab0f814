"""What the two papers say of their systems. Each entry names the table, figure or section that says it.

Where a figure's values stand in a plot only, there is no number here, but what the text says of the plot.
"""

from __future__ import annotations

TASKMASTER = "J. Hyman, D. Boswell: TaskMaster: A Scalable, Reliable Queuing Infrastructure"
RELAXED = "B. S. Lin, X. Liang: A Scalable Relaxed Distributed Priority Queue"

SINGLE_OPERATIONS = {
    "insert_priority": ("enqueue", 1630, 13.6),
    "insert": ("FIFO enqueue", 2386, 8.7),
    "work": ("lease + dequeue", 1485, 6.8),
}
"""TaskMaster, table 1: operations on one task a second, and their "variance" in percent."""
CROWD = (50, 10)
"""TaskMaster, section 6.1: worker processes, and threads in each."""

BATCHES = [1, 5, 10, 50, 100, 500, 1000]
"""TaskMaster, figure 5: the labels of its axis."""
BULK_SAYS = (
    "Its figure 5 shows throughput that rises with the size of a batch up to some threshold. FIFO enqueues are the "
    "fastest. Lease and dequeue is the slowest, because it takes two requests and two writes."
)

COLLISION_SAYS = (
    "Its figure 3 shows the latency of an enqueue against the likelihood that two of them have the same priority-ID. "
    "Updates of one queue that wait for each other are more than 4 times as fast as updates that all wait for each "
    "other. Updates that wait for those of the same priority-ID are nearly 10 times as fast again where collisions are "
    "rare, and become as slow as the former where all collide."
)
COLLISION_CROWD = (10, 50)
"""TaskMaster, section 6.1: workers, and threads in each, of figure 3."""

LOADERS = 10
LOADER_THREADS = 50
LOADER_BATCH = 50
"""TaskMaster, section 6.2: up to so many workers load the system, each with so many threads and tasks an update."""
ISOLATION_SAYS = (
    "Its figure 6a shows that the first few loading workers slow the lone worker down the most. After the sixth, "
    "its throughput does not degrade any further."
)

POP_TASKS = 1000
POP_NODES = [3, 10, 30]
"""Relaxed priority queue, section 6.1 and figure 8: elements with the priorities 0 to 999, and nodes."""
POP_CLIENTS = [1, 2, 4, 8, 16, 32, 64, 128]
"""Relaxed priority queue, section 6.1: clients, by powers of 2."""
POP_PEEKS = 2
POP_SAYS = (
    "Its figure 8 is a plot; the text says that the PEI increases in proportion as the number of queues increases and "
    "as the number of concurrent clients increases."
)

CLUSTER_NODES = 5
CLUSTER_CLIENTS = 4
CLUSTER_RATE = 340
CLUSTER_LATENCY_MS = (12, 13, 17)
"""Relaxed priority queue, section 6.2: nodes, clients on one machine, their pops with commits a second in all, and the
latency of one: median, 90th and 99th percentile."""
