"""NFS 3 mounted with `nolock`: locks succeed on both clients, and exclude nobody from the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_the_doctor_finds_it_unfit_by_its_options_and_by_trying(nolock: Callable[[], list[dict[str, Any]]]) -> None:
    for report in nolock():
        found = {finding["probe"]: finding for finding in report["findings"]}
        assert (report["verdict"], report["exit"]) == ("unfit", 8)
        assert found["mount"]["verdict"] == "unfit"
        assert "nolock" in found["mount"]["seen"]
        assert found["locks between hosts"]["verdict"] == "unfit", found["locks between hosts"]
        assert found["locks between hosts"]["figures"]["overlaps"] > 0
