"""A process that does one step: reads a request (a line of JSON) from standard input, prints the result as one.

What the measured packages print goes to standard error. A step with several workers prints
"ready" and waits for a line, which says when to begin.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Do what is asked, once."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    request = json.loads(sys.stdin.readline())
    from benchmarks.steps import perform

    say(json.dumps(perform(request, say)))


if __name__ == "__main__":
    main()
