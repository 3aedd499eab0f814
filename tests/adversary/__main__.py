"""The long run: `python -m tests.adversary --seconds 600 [--seed N] [gc fsck delete doctor run purge]`."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.adversary.arena import COMMANDS, Arena, duel, interpreter


def main() -> int:
    """Play each command for its share of the time; 1 if anything broke."""
    parser = argparse.ArgumentParser(description="An adversary beside each command (docs/security.md).")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all commands together [600]")
    parser.add_argument("--seed", default=str(random.randrange(10**9)))
    parser.add_argument("commands", nargs="*", choices=[[], *COMMANDS], default=[], help="[all]")
    options = parser.parse_args()
    if os.geteuid() != 0 or interpreter() is None:
        print("It needs root, to become several users, and an interpreter of this version that every user may start.")
        return 2
    commands = options.commands or COMMANDS
    print(f"seed {options.seed}", flush=True)
    totals, broken = {}, []
    for command in commands:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
            arena, begin = Arena(Path(base) / "arena", options.seed), time.monotonic()
            found = duel(arena, command, options.seconds / len(commands))
            totals[command] = f"{arena.rounds} rounds in {time.monotonic() - begin:.0f} s, {len(found)} broken"
            print(f"{command}: {totals[command]}", flush=True)
            print("\n".join(found), flush=True)
            broken += found
    print(f"seed {options.seed}: " + "; ".join(f"{name} {what}" for name, what in totals.items()))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
