"""Named commits by two NFS clients at once, some of whose processes are killed (power cuts: test_power_loss)."""

from __future__ import annotations

import pytest

from tests.lab.conftest import SEED
from tests.lab.guests import Guest
from tests.levels import how_many

pytestmark = pytest.mark.slow


def test_two_clients_commit_the_same_names_at_once(nfs: Guest) -> None:
    found = nfs.call("tests.lab.commits", "race", seed=SEED, commits=how_many(5, 12), kills=how_many(3, 6))
    assert found["killed"] >= 1
    assert found["tasks"] >= 3 * found["commits"]


@pytest.mark.thorough
def test_what_one_client_staged_the_other_one_publishes(nfs: Guest) -> None:
    assert nfs.call("tests.lab.commits", "publish_elsewhere") == {"rounds": 4}
