"""Slots: what a table knows after it took in changes is what a reader of the whole file finds."""

from __future__ import annotations

from random import Random

import pytest

from fsqueue.format import names, slots
from fsqueue.format.slots import FREE, RECORD_BYTES, LeaseSlot, SlotTable

BATCHES = [names.batch_of(bytes([number]) * 16) for number in range(1, 4)]


def a_slot(random: Random) -> LeaseSlot:
    return LeaseSlot(random.choice(BATCHES), random.randrange(9), f"{random.getrandbits(64):016x}")


def holds(table: SlotTable, content: bytes) -> None:
    assert table.content == content
    assert table.taken == dict(slots.each(content))
    by_batch: dict[str, dict[int, LeaseSlot]] = {}
    for offset, slot in table.taken.items():
        by_batch.setdefault(slot.batch, {})[offset] = slot
    assert table.by_batch == by_batch


@pytest.mark.parametrize("seed", range(40))
def test_a_table_that_follows_a_file_knows_what_is_in_it(seed: int) -> None:
    random, table = Random(seed), SlotTable()
    content = bytearray(slots.header("a domain"))
    for _ in range(60):
        changes = {}
        for _ in range(random.choice((1, 1, 3, 70))):
            offset = RECORD_BYTES * random.randrange(1, 200)
            torn = slots.record(a_slot(random))[:40].ljust(RECORD_BYTES, b"\0")
            changes[offset] = random.choice((FREE, torn, slots.record(a_slot(random))))
        for offset, data in changes.items():
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + RECORD_BYTES] = data
        if random.random() < 0.05:
            del content[random.randrange(len(content)) :]  # another file, with another length
            table.update(bytes(content))
        elif random.random() < 0.5 and table.content:
            table.write(changes)
            table.update(bytes(content))
        else:
            table.update(bytes(content))
        holds(table, bytes(content))


def test_places_are_the_first_ones_without_a_slot_each_once() -> None:
    random, table = Random(1), SlotTable()
    content = slots.header("d") + b"".join(
        slots.record(a_slot(random)) if place in (1, 3) else FREE for place in range(1, 6)
    )
    table.update(content)
    table.write({RECORD_BYTES: FREE})
    table.write({RECORD_BYTES * 4: slots.record(a_slot(random))})
    table.write({RECORD_BYTES * 4: FREE})
    found = table.places()
    assert [next(found) // RECORD_BYTES for _ in range(6)] == [1, 2, 4, 5, 6, 7]


def test_a_torn_place_at_the_end_is_written_anew() -> None:
    table = SlotTable()
    table.update(slots.header("d") + slots.record(a_slot(Random(1)))[:30])
    assert not table.taken
    assert next(table.places()) == RECORD_BYTES
