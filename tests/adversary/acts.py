"""What the adversary does: another user, who may write in the queue and beside it, changes everything while it is used.

The choice of acts follows from a seed, so that it can be played again; when they meet what the victim does is a matter
of the machine. Nothing here is fsqueue's own code: this process is the enemy.
"""

from __future__ import annotations

import ctypes
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress

EXCHANGE = 2
"""RENAME_EXCHANGE of renameat2(2): two names change places at once."""
AT_FDCWD = -100
OLD = (1e9, 1e9)
"""Times of what is to look like a leftover."""
DEEP = 300
DEPTH_MAX = 6
"""How deep the adversary looks for directories to exchange."""
CROWDS = {3: 3, 30: 4, 300: 3, 1000: 1}
"""How many names it plants in a directory, and how often: the more, the longer the victim is at them."""
AMBUSH_S = 1.5
"""How long it waits for the victim to be at work in a directory."""
HOLD_S = 0.2
"""How long an exchanged directory stays so, at most."""

_libc = ctypes.CDLL(None, use_errno=True)

Tree = dict[str, list[tuple[str, bool]]]
"""The canary's directories by path: the names in each, and which are directories."""


def exchange(one: str, other: str) -> None:
    """Let two names change places. OSError."""
    call = getattr(_libc, "renameat2", None)
    if call is not None and not call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), EXCHANGE):
        return
    spare = f"{one}.spare"
    os.rename(one, spare)
    os.rename(other, one)
    os.rename(spare, other)


class Adversary:
    """One life of it: it plants, says that it is ready, waits until the victim begins, and acts until it is killed."""

    def __init__(
        self, seed: str, places: list[str], canary: Tree, likely: list[str], say: Callable[[str], None]
    ) -> None:
        self.rng = random.Random(seed)
        self.places, self.canary, self.likely, self.say = places, canary, likely, say
        self.den = f"{places[0]}/.den"
        """Where it keeps what it made and what it took away."""
        self.count = 0
        with suppress(OSError):
            os.mkdir(self.den)

    # -- choosing ------------------------------------------------------------------------------------

    def directories(self) -> list[str]:
        """Return directories that it can reach."""
        found, left = [], [(place, 0) for place in self.places]
        while left and len(found) < 200:
            directory, depth = left.pop()
            found.append(directory)
            with suppress(OSError), os.scandir(directory) as entries:
                inner = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
                if depth < DEPTH_MAX:
                    left += [(path, depth + 1) for path in sorted(inner) if path != self.den]
        return sorted(found)

    def target(self) -> str:
        """Return a directory of the queue or beside it."""
        if self.likely and self.rng.random() < 0.8:
            return self.rng.choice(self.likely)
        found = [path for path in self.directories() if path not in self.places]
        return self.rng.choice(found or self.likely or self.places)

    def lure(self, target: str) -> str:
        """Return a directory of the canary: the one that is called as the target, if there is one."""
        name = os.path.basename(target)
        alike = [path for path in self.canary if os.path.basename(path) == name]
        if alike and self.rng.random() < 0.7:
            return self.rng.choice(alike)
        return self.rng.choice(sorted(self.canary))

    def crowd(self) -> int:
        """Return how many names to plant."""
        [number] = self.rng.choices(list(CROWDS), list(CROWDS.values()))
        return number

    def fresh(self) -> str:
        """Return a path in its den."""
        self.count += 1
        return f"{self.den}/{self.count}"

    # -- acts --------------------------------------------------------------------------------------------

    def plant_names(self, target: str, lure: str, number: int) -> None:
        """Put into a directory what is called as things in the canary, and others; all of it old."""
        with suppress(OSError):
            os.makedirs(target, exist_ok=True)
        names = list(self.canary[lure])
        names += [(self.name(), self.rng.random() < 0.2) for _ in range(number)]
        self.rng.shuffle(names)
        for name, is_directory in names:
            path = f"{target}/{name}"
            with suppress(OSError):
                if is_directory:
                    os.mkdir(path)
                else:
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
                os.utime(path, OLD, follow_symlinks=False)
        with suppress(OSError):
            os.utime(target, OLD)

    def name(self) -> str:
        """Return a name that something in a queue could have."""
        uuid = f"{self.rng.getrandbits(128):032x}"
        return self.rng.choice(
            [
                uuid,
                f"{uuid}.jsonl",
                f"{1_000_000_000_000:013d}-{uuid}-3.jsonl",
                f"{uuid[:16]}.here",
                f"{uuid[:16]}.place",
                f".fsqueue-doctor-{uuid[:16]}",
                f".fsqueue-deleted-{uuid[:16]}-{uuid[16:]}",
                f"{self.rng.randrange(9)}-{uuid[:16]}",
                f".trash-{uuid[:16]}",
                f"{uuid}-name",
                f"{uuid}.1",
                "2001-01-01",
                f"{self.rng.randrange(256):02x}",
                f"d{self.rng.randrange(10**4):04d}",
            ]
        )

    def ambush(self) -> None:
        """Wait until the victim is at work in a directory, and exchange it then."""
        target = self.target()
        lure = self.lure(target)
        self.plant_names(target, lure, self.crowd())
        link = self.fresh()
        os.symlink(lure, link)
        if self.rng.random() < 0.8:
            self.say(f"ambush {target}")
            left = len(os.listdir(target)) * (1 - self.rng.choice([0.01, 0.1, 0.3]))
            until = time.monotonic() + AMBUSH_S * (0.3 + 0.7 * self.rng.random())
            while time.monotonic() < until and len(os.listdir(target)) > left:
                pass
        else:
            time.sleep(self.rng.random() * 0.03)
        exchange(target, link)
        self.say(f"swap {target} for a link to {lure}")
        time.sleep(self.rng.random() * HOLD_S)
        if self.rng.random() < 0.7:
            with suppress(OSError):
                exchange(link, target)

    def flicker(self) -> None:
        """Exchange a directory for a link and back, as fast as can be."""
        target, link = self.target(), self.fresh()
        lure = self.lure(target)
        os.symlink(lure, link)
        self.say(f"flicker {target} and {lure}")
        until = time.monotonic() + self.rng.random() * HOLD_S
        while time.monotonic() < until:
            exchange(target, link)
        with suppress(OSError):
            if os.path.islink(target):
                exchange(target, link)

    def link_a_name(self) -> None:
        """Put a link to the canary in place of something in a directory, or beside it."""
        target = self.target()
        lure = self.lure(target)
        names = os.listdir(target)
        name = self.rng.choice(sorted(names)) if names and self.rng.random() < 0.6 else self.name()
        inside = self.canary[lure]
        goal = f"{lure}/{self.rng.choice(inside)[0]}" if inside and self.rng.random() < 0.7 else lure
        link = self.fresh()
        if self.rng.random() < 0.3:
            os.link(goal, link, follow_symlinks=False)  # where the kernel allows it
        else:
            os.symlink(goal, link)
        self.say(f"link {target}/{name} to {goal}")
        if self.rng.random() < 0.5 and os.path.lexists(f"{target}/{name}"):
            exchange(link, f"{target}/{name}")
        else:
            os.rename(link, f"{target}/{name}")

    def plant_a_pipe(self) -> None:
        """Put a pipe where a file belongs."""
        target, pipe = self.target(), self.fresh()
        os.mkfifo(pipe)
        names = sorted(os.listdir(target))
        name = self.rng.choice(names) if names and self.rng.random() < 0.6 else self.name()
        self.say(f"pipe {target}/{name}")
        os.rename(pipe, f"{target}/{name}")

    def dig(self) -> None:
        """Make hundreds of directories, one in another."""
        target, top = self.target(), self.fresh()
        os.mkdir(top)
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for _ in range(DEEP):
                os.mkdir("deep", dir_fd=fd)
                inner = os.open("deep", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = inner
        finally:
            os.close(fd)
        self.say(f"deep {target}")
        os.rename(top, f"{target}/{self.name()}")

    def name_at_length(self) -> None:
        """Make names as long as they can be, and such that drive a terminal."""
        target = self.target()
        name = self.rng.choice(
            [b"x" * 255, b"\x1b]0;PWNED\x07\x1b[2J", b"\xff\xfe\n", b"\xc2\x9b\x7f", b"y" * 250 + b".json"]
        )
        self.say(f"name {target} {name!r}")
        path = os.fsencode(target) + b"/" + name
        if self.rng.random() < 0.5:
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666))

    def move(self) -> None:
        """Give something another name, in another directory."""
        source, target = self.target(), self.target()
        names = sorted(os.listdir(source))
        if names:
            name = self.rng.choice(names)
            self.say(f"move {source}/{name} to {target}")
            os.rename(f"{source}/{name}", f"{target}/{self.rng.choice([name, self.name()])}")

    def take_away(self) -> None:
        """Move a directory into the den, for a moment or for good."""
        target, hidden = self.target(), self.fresh()
        self.say(f"take away {target}")
        os.rename(target, hidden)
        time.sleep(self.rng.random() * 0.02)
        if self.rng.random() < 0.7 and not os.path.lexists(target):
            os.rename(hidden, target)

    def scribble(self) -> None:
        """Write what makes no sense into a file."""
        target = self.target()
        files = [name for name in sorted(os.listdir(target)) if os.path.isfile(f"{target}/{name}")]
        if files:
            path = f"{target}/{self.rng.choice(files)}"
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(fd, "wb") as file:
                file.write(
                    self.rng.choice([b"{}\n", b"[" * 300 + b"]" * 300 + b"\n", b"\x00\xff", b'{"op":"lease"}\n'])
                )
            self.say(f"scribble into {path}")

    # -- its life ----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Plant where the victim will go first."""
        for target in self.rng.sample(self.likely, min(3, len(self.likely))):
            self.plant_names(target, self.lure(target), self.crowd())
        for act in self.rng.choices([self.link_a_name, self.plant_a_pipe, self.dig, self.name_at_length], k=3):
            with suppress(OSError):
                act()

    def act(self) -> None:
        """Do something."""
        acts = {
            self.ambush: 6,
            self.flicker: 4,
            self.link_a_name: 4,
            self.plant_a_pipe: 2,
            self.dig: 1,
            self.name_at_length: 1,
            self.move: 2,
            self.take_away: 2,
            self.scribble: 1,
        }
        [act] = self.rng.choices(list(acts), list(acts.values()))
        with suppress(OSError):
            act()

    def live(self, ready: Callable[[], None], begin: Callable[[], None]) -> None:
        """Plant, wait until the victim begins, and go on until it is killed."""
        os.umask(0)
        self.prepare()
        ready()
        begin()
        while True:
            self.act()
