"""Simulate a relaxed priority queue that is spread over nodes: how far from the first is the element that a pop gives?

The model is that of "A Scalable Relaxed Distributed Priority Queue" (Lin and Liang), sections 4.1 to 4.3. A queue is
spread over nodes, each with a priority queue of its own. A client adds to a node drawn at random. To pop, it peeks at
some nodes and pops from the one whose first element is best. No client sees all nodes, so it may miss the best element.
The popped element index (PEI) is the number of better elements that were in the queue at that moment, 0 at best.

`simulate` returns the distribution of the PEI; `Distribution.of` makes one of indexes that were measured elsewhere.
`fsqueue.simulation.figures` repeats the paper's figures. Nothing here touches a queue or a file.

Where the paper is silent:

- **Priorities** are uniform in [0, 1), and a lower number is better. All of a run are drawn in advance, and replaced by
  their ranks: only the order matters. Of two equal ones, of which there are hardly any, the one added first is better.
  (The paper breaks ties by an identifier.)
- **The start**: `lag` elements are added, as all others are. The first pop counts: there is no warm-up.
- **Peeks are with replacement**: a client may draw the same node twice. It then knows one node less.
- **An empty node** that is drawn for a peek or a pop passes the client on to the next node that is not empty, in the
  order of their numbers.
- **Peek before add** chooses the peeked node that has the fewest elements better than the new one; of several such
  nodes the first that was drawn. So does the simulation that the authors published
  (https://github.com/bslin/distributed-pq). The paper says "the peeked queue with the highest top priority". By the
  first elements alone, the best one or the worst, a peek before an add does worse than none: figure 3 cannot come out.
- **Concurrent clients** (section 4.3) work in rounds: each adds an element, then each peeks at its nodes, then each
  pops, one after the other. At the end of a round the lag is what it was. The last round may have fewer clients.
- **A node that others have emptied** since the peek: the client peeks anew, and pops from the best node of those.
- **The better policy** (section 4.3, a to c) knows a second best element only if it peeked at two nodes or more. "Not
  lower than the second best" is judged by the first element that the second best node had at the peek. An element that
  is put back is there again before the next client pops.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Literal, get_args

from fsqueue.errors import InvalidArgument

Strategy = Literal["pop", "add", "none"]
"""When a client peeks: before it pops, before it adds, or never (section 4.1; figure 3)."""
Policy = Literal["basic", "better"]
"""What a client does with the element that a pop gives: keep it, or compare it with the second best (section 4.3)."""

NODES_MAX = 100_000
PEEKS_MAX = 100_000
CONCURRENT_MAX = 100_000
ELEMENTS_MAX = 10_000_000
"""As many elements may be added in a run, the first `lag` included. Each takes about 100 bytes of memory."""
RUNS_MAX = 100_000
TELL_EACH = 1_000
"""Number of pops between two calls of `tell`."""


@dataclass(frozen=True)
class Distribution:
    """Hold how often each index was popped, by index, from the lowest on. It has at least one pop.

    Percentiles are by nearest rank: the lowest index such that this percentage of the pops had it or a lower one.
    """

    counts: dict[int, int]

    @classmethod
    def of(cls, indexes: Iterable[int]) -> Distribution:
        """Return the distribution of indexes, one for each pop. InvalidArgument if there is none, or if one is no whole
        number from 0 on.
        """
        counts = Counter(indexes)
        if not counts:
            raise InvalidArgument("A distribution needs the index of at least one pop.")
        for index in counts:
            if isinstance(index, bool) or not isinstance(index, int) or index < 0:
                raise InvalidArgument(f"The index of a popped element is a whole number from 0 on, not {index!r:.100}.")
        return cls(dict(sorted(counts.items())))

    @property
    def pops(self) -> int:
        """Return the number of pops."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """Return the mean index."""
        return sum(index * count for index, count in self.counts.items()) / self.pops

    @property
    def median(self) -> int:
        """Return the median index."""
        return self.percentile(50)

    @property
    def p90(self) -> int:
        """Return the 90th percentile."""
        return self.percentile(90)

    @property
    def p99(self) -> int:
        """Return the 99th percentile."""
        return self.percentile(99)

    @property
    def greatest(self) -> int:
        """Return the greatest index."""
        return max(self.counts)

    def percentile(self, percent: int) -> int:
        """Return the lowest index that at least `percent` (1 to 100) of the pops did not exceed."""
        _whole("percent", percent, 1, 100)
        wanted, so_far = self.pops * percent, 0
        for index, count in self.counts.items():
            so_far += count
            if so_far * 100 >= wanted:
                return index
        raise AssertionError("the counts add up to all pops")

    def share(self, index: int) -> float:
        """Return which part of the pops (0 to 1) gave the element of this index."""
        return self.counts.get(index, 0) / self.pops

    def as_dict(self) -> dict[str, float]:
        """Return the figures that tables show: pops, mean, median, p90, p99, greatest, and the share of index 0."""
        return {
            "pops": self.pops,
            "mean": self.mean,
            "median": self.median,
            "p90": self.p90,
            "p99": self.p99,
            "greatest": self.greatest,
            "share_of_first": self.share(0),
        }


class Ranks:
    """Count the ranks below another among those that are present: a Fenwick tree, exact.

    A step takes time in proportion to the logarithm of `size`. Ranks are 0 to `size` - 1.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._tree = [0] * (size + 1)

    def add(self, rank: int) -> None:
        """Make a rank present that is not."""
        tree, size, at = self._tree, self._size, rank + 1
        while at <= size:
            tree[at] += 1
            at += at & -at

    def remove(self, rank: int) -> int:
        """Take a present rank away, and return how many lower ones are present."""
        tree, size, at = self._tree, self._size, rank + 1
        while at <= size:
            tree[at] -= 1
            at += at & -at
        lower, at = 0, rank
        while at:
            lower += tree[at]
            at &= at - 1
        return lower


def simulate(
    nodes: int = 20,
    peeks: int = 2,
    lag: int = 10_000,
    pops: int = 10_000,
    strategy: Strategy = "pop",
    policy: Policy = "basic",
    concurrent: int = 1,
    runs: int = 1,
    seed: int | None = None,
    tell: Callable[[int], object] | None = None,
) -> Distribution:
    """Return the distribution of the PEI over `runs` runs of `pops` pops, each run with a queue of its own.

    Each pop follows an add, so `lag` elements are left after it (section 4.1). `strategy` says when a client peeks at
    `peeks` nodes: before a "pop", before an "add", or never ("none": `peeks` does not matter). `concurrent` clients
    work in rounds, and `policy` says what they do with what a pop gives (section 4.3).

    The same arguments and `seed` give the same result, with every version of Python; run number R of several (from 0)
    is the one run of the seed `seed` + R. Without a seed each call differs. `tell` is called now and then with the
    number of pops that were done since the last time. InvalidArgument if an argument makes no sense.
    """
    _whole("nodes", nodes, 1, NODES_MAX)
    _whole("peeks", peeks, 1, PEEKS_MAX)
    _whole("lag", lag, 0, ELEMENTS_MAX)
    _whole("pops", pops, 1, ELEMENTS_MAX)
    _whole("concurrent", concurrent, 1, CONCURRENT_MAX)
    _whole("runs", runs, 1, RUNS_MAX)
    _one_of("strategy", strategy, get_args(Strategy))
    _one_of("policy", policy, get_args(Policy))
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise InvalidArgument(f"seed must be a whole number or None, not {seed!r}.")
    if lag + pops > ELEMENTS_MAX:
        raise InvalidArgument(f"lag and pops must not be more than {ELEMENTS_MAX:,} together, not {lag + pops:,}.")
    if policy == "better" and strategy != "pop":
        raise InvalidArgument(
            f'The policy "better" compares with what was peeked before the pop: with the strategy "{strategy}" that is '
            'nothing. Use the strategy "pop", or the policy "basic".'
        )
    counts: Counter[int] = Counter()
    for run in range(runs):
        random = Random(None if seed is None else seed + run).random
        queue = _Nodes(nodes, lag + pops, random, strategy == "add")
        _run(queue, peeks, lag, pops, strategy, policy, concurrent, counts, tell)
    return Distribution(dict(sorted(counts.items())))


class _Nodes:
    """The elements on their nodes. Each is a rank; 0 is the best of all that are ever added.

    `is_sorted`: nodes are sorted lists, so that `add` finds places in them. Otherwise they are heaps, whose first
    element is the best one, too, and which are cheaper where nodes are large.
    """

    def __init__(self, nodes: int, size: int, random: Callable[[], float], is_sorted: bool) -> None:
        self._nodes: list[list[int]] = [[] for _ in range(nodes)]
        draws = [random() for _ in range(size)]
        ranks = [0] * size
        for rank, element in enumerate(sorted(range(size), key=draws.__getitem__)):
            ranks[element] = rank
        self._ranks = iter(ranks)
        self._present = Ranks(size)
        self._random = random
        self._push = insort if is_sorted else heappush
        self._take = _take_first if is_sorted else heappop
        self._none = size
        """A rank that no element has: it is worse than all."""

    def add(self, peeks: int) -> None:
        """Add an element to a node drawn at random. Of several `peeks`: to the node with the fewest better elements."""
        nodes, random = self._nodes, self._random
        rank = next(self._ranks)
        chosen = nodes[int(random() * len(nodes))]
        if peeks > 1:
            better = bisect_left(chosen, rank)
            for _ in range(peeks - 1):
                node = nodes[int(random() * len(nodes))]
                place = bisect_left(node, rank)
                if place < better:
                    chosen, better = node, place
        self._push(chosen, rank)
        self._present.add(rank)

    def peek(self, peeks: int) -> tuple[int, int, int]:
        """Return the node with the best first element among the peeked ones, the second best, and what that one has.

        If one node alone was peeked at, the second is -1, and has a rank that is worse than all.
        """
        nodes, random = self._nodes, self._random
        count = len(nodes)
        best = second = -1
        best_rank = second_rank = self._none
        for _ in range(peeks):
            node = int(random() * count)
            while not nodes[node]:
                node = (node + 1) % count
            rank = nodes[node][0]
            if rank < best_rank:
                best, best_rank, second, second_rank = node, rank, best, best_rank
            elif best_rank < rank < second_rank:
                second, second_rank = node, rank
        return best, second, second_rank

    def pop(self, peeked: tuple[int, int, int], peeks: int, policy: Policy) -> int:
        """Pop as a client that has `peeked` does, and return the index of the element that it keeps."""
        best, second, second_rank = peeked
        node = self._nodes[best]
        if policy == "better" and second >= 0 and (not node or node[0] > second_rank):
            node = self._nodes[second]
        while not node:  # the pops before this one in the round have emptied it
            node = self._nodes[self.peek(peeks)[0]]
        return self._present.remove(self._take(node))


def _take_first(node: list[int]) -> int:
    """Take the first element out of a sorted list. (heapq.heappop would leave it unsorted.)"""
    return node.pop(0)


def _run(
    nodes: _Nodes,
    peeks: int,
    lag: int,
    pops: int,
    strategy: Strategy,
    policy: Policy,
    concurrent: int,
    counts: Counter[int],
    tell: Callable[[int], object] | None,
) -> None:
    """Simulate one run, and count the indexes of the elements that it pops."""
    before_add = peeks if strategy == "add" else 1
    before_pop = peeks if strategy == "pop" else 1
    for _ in range(lag):
        nodes.add(before_add)
    done = told = 0
    while done < pops:
        clients = min(concurrent, pops - done)
        for _ in range(clients):
            nodes.add(before_add)
        for peeked in [nodes.peek(before_pop) for _ in range(clients)]:
            counts[nodes.pop(peeked, before_pop, policy)] += 1
        done += clients
        if tell is not None and (done - told >= TELL_EACH or done == pops):
            tell(done - told)
            told = done


def _whole(name: str, value: object, least: int, most: int) -> None:
    """Raise InvalidArgument unless `value` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgument(f"{name} must be a whole number from {least:,} to {most:,}, not {value!r}.")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raise InvalidArgument unless `value` is one of the known words."""
    if value not in known:
        raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}.")
