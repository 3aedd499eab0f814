"""The doctor on two NFS clients with caches of their own."""

from __future__ import annotations

import pytest

from tests.lab.guests import Guest

pytestmark = pytest.mark.slow


@pytest.mark.thorough
def test_two_clients_of_one_server_are_found_fit(nfs: Guest) -> None:
    """Locks exclude between them, nothing appended is lost, no name is won twice."""
    reports = nfs.call("tests.lab.doctors", "two_join")
    for report in reports:
        found = {finding["probe"]: finding for finding in report["findings"]}
        assert report["partner"] in ("client-1", "client-2")
        assert "two hosts" not in found  # one kernel, and two mounts: they count as two
        for probe in ("locks", "appending", "reading", "create", "link", "rename", "sight"):
            assert found[f"{probe} between hosts"]["verdict"] == "ok", found[f"{probe} between hosts"]
        assert (report["exit"], report["left"]) == (0, [])
    assert reports[0]["partner"] != reports[1]["partner"]
