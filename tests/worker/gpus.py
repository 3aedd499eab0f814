"""A handler that shows what its process saw of devices when this module was imported."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.waiting import until

SHARE = os.environ.get("CUDA_VISIBLE_DEVICES")
SLOT = os.environ.get("FSQUEUE_SLOT")


def show(payload: Any) -> None:
    began = time.monotonic()
    begun = Path(payload["begun"])
    before = len(os.listdir(begun))
    (begun / Path(payload["path"]).name).touch()
    until(lambda: len(os.listdir(begun)) >= min(before + 2, payload["all"]), "the begin of another task", 600)
    Path(payload["path"]).write_text(f"{SHARE}|{SLOT}|{os.getpid()}|{began}|{time.monotonic()}")
    if payload["dies"]:
        os._exit(1)
