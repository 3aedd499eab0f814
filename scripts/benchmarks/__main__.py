"""Run by scripts/bench, as a directory."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.main import main  # noqa: E402

sys.exit(main())
