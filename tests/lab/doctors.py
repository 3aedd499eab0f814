"""Scenarios for the doctor: what runs in the guest of scripts/lab/nfs."""

from __future__ import annotations

import json
from typing import Any

from tests.concurrency.processes import PATIENCE_S
from tests.lab.nfs import FSQUEUE, at, run_on


def two_join() -> list[dict[str, Any]]:
    """`fsqueue doctor --join` on both clients, as a user would type it: both reports."""
    at(1, "examined").mkdir()
    doctors = [run_on(client, FSQUEUE, "doctor", at(client, "examined"), "--join", "--json") for client in (1, 2)]
    reports = [json.loads(doctor.communicate(timeout=PATIENCE_S)[0]) for doctor in doctors]
    left = [str(path) for path in at(1, "examined").rglob("*")]
    return [report | {"exit": doctor.returncode, "left": left} for report, doctor in zip(reports, doctors, strict=True)]
