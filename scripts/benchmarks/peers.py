"""The peers' own virtualenv: made on demand, kept for the next run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PACKAGES = {"task-queue": "2.14.3", "dirq": "1.8", "huey": "3.5.4", "redis": "5.2.1"}
NO_REDIS = "redis-server is not installed, so Redis is not measured (Debian: apt-get install redis-server)"

_LIST = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def default_place() -> Path:
    """Where the virtualenv goes: the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "fsqueue-bench" / f"venv-{sys.version_info.major}.{sys.version_info.minor}"


def prepare(place: Path, progress: Callable[[str], None]) -> str:
    """Make sure the peers are installed in the virtualenv at `place`; its interpreter."""
    python = place / "bin" / "python"
    if not python.exists():
        progress(f"making a virtualenv for the peers in {place}")
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    if versions(str(python), PACKAGES) != PACKAGES:
        progress("installing " + ", ".join(f"{name} {version}" for name, version in PACKAGES.items()))
        wanted = [f"{name}=={version}" for name, version in PACKAGES.items()]
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
            check=True,
            stdout=sys.stderr,
        )
    return str(python)


def redis_version() -> str | None:
    """The version of the Redis server on this machine; None if there is none."""
    try:
        done = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"v=(\S+)", done.stdout)
    return found[1] if found else "unknown"


def versions(python: str, names: dict[str, str] | list[str]) -> dict[str, str]:
    """The versions of those of the packages that this interpreter has."""
    done = subprocess.run([python, "-c", _LIST, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found
