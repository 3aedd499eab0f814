"""Start the command line: what the console script `fsqueue` and `python -m fsqueue_cli` call."""

from __future__ import annotations

import sys

from . import process


def main() -> None:
    """Run the console script."""
    process.begin()
    try:
        from .main import cli

        process.watch()
        cli.main(prog_name="fsqueue")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        process.leave_at_once()
