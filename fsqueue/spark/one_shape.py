"""Parse payloads of one shape together, for a fraction of the time. One program mostly writes payloads of one shape.

Lines of one shape have the same text between their values: names, brackets, as many elements in each list. So one
search for quotes, and for commas where numbers follow each other, finds every value of every line. NumPy and Arrow cut
the columns out of the content. Lines that differ (nulls, longer lists, damage, another field) do not match that
pattern, and are left to other parsers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from fsqueue.format.nesting import NESTING_MAX

QUOTE, COMMA, BACKSLASH, SPACE, MINUS, ZERO, NINE = b'",\\ -09'
NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,2})?$"
"""JSON's numbers (RFC 8259, section 6), but for large exponents, of which Arrow's parser refuses some."""
SLOTS_MAX, BEFORE_MAX = 64, 1 << 12
"""Lines with more values, or with more bytes between two of them, are left to other parsers: each value, and what
stands before it, is looked at in all lines at once.
"""
MEANING: np.ndarray = np.zeros(256, np.uint8)
"""What the letter after a backslash means; 0: no letter that is known here. The code points of `\\u` are not."""
MEANING[list(b'"\\/bfnrt')] = list(b"\x01\\/\b\f\n\r\t")
QUOTED = 1
"""Stands for a quote within a text, until the ends of all texts are found."""


class Slot(NamedTuple):
    """A text or a number in each line: what stands before it, and which of the two it is."""

    before: bytes
    is_text: bool


class Shape(NamedTuple):
    """The shape of a line. `payload`: the payload, with the number of its slot for each value. `last`: the end."""

    slots: list[Slot]
    last: bytes
    payload: Any


class Unlike(ValueError):
    """These lines are not of one shape, or not of one that is known here."""


def is_known(kind: pa.DataType) -> bool:
    """Return whether `parse` knows a type: structs, and lists and maps, of texts and numbers."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(is_known(field.type) for field in kind)
    if pa.types.is_map(kind):
        return pa.types.is_string(kind.key_type) and is_known(kind.item_type)
    if pa.types.is_list(kind):
        return is_known(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_signed_integer(kind) or kind in (pa.float32(), pa.float64())


def parse(content: bytes, kind: pa.DataType, count: int) -> pa.Array | None:
    """Return the payloads of `count` lines of task files as a column of a known type of structs; None if shapes differ.

    None says nothing about damage. A column is what Arrow's own parser would return. The content is UTF-8.
    """
    if not pa.types.is_struct(kind):
        return None
    try:
        shape = _shape(content[: content.find(b"\n")])
        values = Values(content, count, shape)
        found = values.column(shape.payload, kind)
        values.check_others()
    except (Unlike, pa.ArrowInvalid):
        return None
    return found


# -- the shape -------------------------------------------------------------------------------------------------


def _shape(line: bytes) -> Shape:
    """Return what a line is made of. Unlike: it has a value other than objects, lists, texts and numbers."""
    try:
        record: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise Unlike from None
    if not isinstance(record, dict) or not isinstance(record.get("payload"), dict):
        raise Unlike
    slots: list[Slot] = []
    payload, last = _walk({"payload": record["payload"]}, b"", slots, 0)
    if not slots or BACKSLASH in last or any(BACKSLASH in slot.before for slot in slots):
        raise Unlike
    return Shape(slots, last + b"\n", payload["payload"])


def _walk(value: Any, before: bytes, slots: list[Slot], level: int) -> tuple[Any, bytes]:
    """Append the slots of a value. Return it with their numbers, and what stands behind the last of them."""
    if level > NESTING_MAX + 1 or len(slots) > SLOTS_MAX or len(before) > BEFORE_MAX:
        raise Unlike
    if isinstance(value, (dict, list)):
        inner: list[Any] = []
        before += b"{" if isinstance(value, dict) else b"["
        for one in value:
            before += b"," if inner else b""
            if isinstance(value, dict):
                before += orjson.dumps(one) + b":"
            found, before = _walk(value[one] if isinstance(value, dict) else one, before, slots, level + 1)
            inner.append(found)
        if isinstance(value, dict):
            return dict(zip(value, inner, strict=True)), before + b"}"
        return inner, before + b"]"
    if not isinstance(value, str) and type(value) not in (int, float):
        raise Unlike
    quote = b'"' if isinstance(value, str) else b""
    slots.append(Slot(before + quote, bool(quote)))
    return len(slots) - 1, quote


# -- the values ------------------------------------------------------------------------------------------------


class Values:
    """The values in lines of one shape. Unlike: they are of different shapes."""

    def __init__(self, content: bytes, count: int, shape: Shape) -> None:
        self.content: bytes | np.ndarray = content
        self.count, self.slots = count, shape.slots
        self.others = {number for number, slot in enumerate(shape.slots) if not slot.is_text}
        """The numbers that no column asked for yet."""
        data = np.frombuffer(content, np.uint8)
        if np.count_nonzero(data < SPACE) != count:
            raise Unlike
        has_escapes = BACKSLASH in content
        if has_escapes:
            data = _unescaped(data)
        is_anchor, anchors = data == QUOTE, b'"'
        if any(QUOTE not in slot.before for slot in shape.slots):
            is_anchor |= data == COMMA
            anchors = b'",'
        self.places = _places(data, np.flatnonzero(is_anchor), anchors, count, shape)
        if has_escapes:
            np.putmask(data, data == QUOTED, QUOTE)
            self.content = data

    def column(self, shape: Any, kind: pa.DataType) -> pa.Array:
        """Return a part of all payloads as a column. `shape`: that part of the payload's shape."""
        if pa.types.is_struct(kind):
            _must_be(shape, dict)
            columns = [
                self.column(shape[field.name], field.type) if field.name in shape else pa.nulls(self.count, field.type)
                for field in kind
            ]
            return pa.StructArray.from_arrays(columns, fields=list(kind))
        if pa.types.is_map(kind):
            _must_be(shape, dict)
            items = self._interleaved([self.column(one, kind.item_type) for one in shape.values()], kind.item_type)
            numbers: np.ndarray = np.tile(np.arange(len(shape)), self.count)
            keys = pa.array(list(shape), kind.key_type).take(pa.array(numbers))
            return pa.MapArray.from_arrays(self._offsets(len(shape)), keys, items, type=kind)
        if pa.types.is_list(kind):
            _must_be(shape, list)
            elements = self._interleaved([self.column(one, kind.value_type) for one in shape], kind.value_type)
            return pa.ListArray.from_arrays(self._offsets(len(shape)), elements, type=kind)
        _must_be(shape, int)
        self.others.discard(shape)
        if self.slots[shape].is_text != pa.types.is_string(kind):
            raise Unlike
        texts = self._texts(shape)
        return texts if self.slots[shape].is_text else _numbers(texts, kind)

    def check_others(self) -> None:
        """Raise Unlike if a number that no column asked for is none, and ArrowInvalid likewise."""
        for number in self.others:
            _numbers(self._texts(number), pa.float64())

    def _texts(self, number: int) -> pa.Array:
        """Return what stands in a slot of all lines."""
        begin, end = self.places[number]
        if (begin > end).any():
            raise Unlike
        borders: np.ndarray = np.empty((self.count, 2), np.int32)
        borders[:, 0], borders[:, 1] = begin, end
        return _cut(self.content, borders.ravel())

    def _offsets(self, each: int) -> pa.Array:
        """Return where the elements of each line begin, which has `each` of them."""
        return pa.array(np.arange(self.count + 1, dtype=np.int32) * np.int32(each))

    def _interleaved(self, columns: list[pa.Array], kind: pa.DataType) -> pa.Array:
        """Return the values of all columns, line by line."""
        if not columns:
            return pa.array([], kind)
        if pa.types.is_primitive(kind):
            return pa.array(np.stack([column.to_numpy() for column in columns], axis=1).ravel(), kind)
        numbers: np.ndarray = np.arange(len(columns) * self.count).reshape(len(columns), self.count)
        return pa.concat_arrays(columns).take(pa.array(numbers.T.ravel()))


def _must_be(shape: Any, kind: type) -> None:
    if not isinstance(shape, kind):
        raise Unlike


def _unescaped(data: np.ndarray) -> np.ndarray:
    """Return bytes with what each escape means in its place, and QUOTED for a quote.

    Unlike: a backslash begins no escape that is known here.
    """
    slashes = np.flatnonzero(data == BACKSLASH)
    is_first: np.ndarray = np.ones(len(slashes), bool)
    np.not_equal(slashes[1:], slashes[:-1] + 1, out=is_first[1:])
    if (is_first[1:] | is_first[:-1]).all():  # no three in a row: the second of two is what the first escapes
        slashes = slashes[is_first]
    else:  # every other one begins an escape
        firsts = np.flatnonzero(is_first)
        row: np.ndarray = np.arange(len(slashes)) - np.repeat(firsts, np.diff(firsts, append=len(slashes)))
        slashes = slashes[row % 2 == 0]
    if slashes[-1] + 1 == len(data):
        raise Unlike
    meanings = MEANING[data[slashes + 1]]
    if not meanings.all():
        raise Unlike
    plain = data.copy()
    plain[slashes + 1] = meanings
    borders: np.ndarray = np.empty(2 * len(slashes) + 2, np.int32)
    borders[0], borders[1:-1:2], borders[2:-1:2], borders[-1] = 0, slashes, slashes + 1, len(data)
    shorter: np.ndarray = np.array(_parts(_cut(plain, borders))[1])
    return shorter


def _cut(content: bytes | np.ndarray, borders: np.ndarray) -> pa.Array:
    """Return every other of the texts between borders, from the first on."""
    pieces = pa.StringArray.from_buffers(len(borders) - 1, pa.py_buffer(borders), pa.py_buffer(content))
    return pieces.take(pa.array(np.arange(0, len(pieces), 2)))


def _places(
    data: np.ndarray, found: np.ndarray, anchors: bytes, count: int, shape: Shape
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return where each slot of each line begins and ends; Unlike unless all else is the same in all lines.

    `found`: where any of the `anchors` stands. There is one between any two slots.
    """

    def anchors_in(text: bytes) -> int:
        return sum(text.count(anchor) for anchor in anchors)

    before_each = [slot.before for slot in shape.slots]
    each = sum(map(anchors_in, (*before_each, shape.last)))
    if len(found) != each * count:
        raise Unlike
    rows = found.reshape(count, each)
    begins: np.ndarray = rows[:, 0] - before_each[0].index(QUOTE)
    ends: np.ndarray = np.append(begins[1:], len(data))
    if begins[0] != 0:
        raise Unlike
    places: list[tuple[np.ndarray, np.ndarray]] = []
    seen, at = 0, begins
    for before, after in zip(before_each, (*before_each[1:], shape.last), strict=True):
        _must_stand(data, at, before)
        seen += anchors_in(before)
        begin: np.ndarray = at + len(before)
        if anchors_in(after):
            at = rows[:, seen] - min(after.index(anchor) for anchor in anchors if anchor in after)
        else:
            at = ends - len(after)
        places.append((begin, at))
    _must_stand(data, at, shape.last)
    if not (at + len(shape.last) == ends).all():
        raise Unlike
    return places


def _must_stand(data: np.ndarray, at: np.ndarray, text: bytes) -> None:
    """Raise Unlike unless a text stands at all these places."""
    if at[0] < 0 or at.max() + len(text) > len(data):
        raise Unlike
    windows = np.ndarray((len(data) - len(text) + 1, len(text)), np.uint8, data, strides=(1, 1))
    if windows[at].tobytes() != text * len(at):
        raise Unlike


def _parts(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets of texts that were just taken, and their bytes."""
    _, offsets, data = texts.buffers()
    borders = np.frombuffer(offsets, np.int32, len(texts) + 1)
    return borders, np.frombuffer(data if data is not None else b"", np.uint8, borders[-1])


def _numbers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts as numbers of a type; Unlike or ArrowInvalid if one is no number of JSON's that Arrow would parse.

    Arrow casts `01`, `1.` and `.5`, too.
    """
    numbers = texts.cast(kind)
    borders, data = _parts(texts)
    begins = borders[:-1] + (data[borders[:-1]] == MINUS)
    heads = data[begins]
    if not (_are_digits(heads).all() and _are_digits(data[borders[1:] - 1]).all()):
        raise Unlike
    zeros = np.flatnonzero(heads == ZERO)
    behind = begins[zeros] + 1
    if _are_digits(data[behind[behind < borders[1:][zeros]]]).any():
        raise Unlike
    has_letters = (data > NINE).any()
    if pa.types.is_integer(kind):
        is_sound = not has_letters
    else:
        is_sound = pc.all(pc.is_finite(numbers)).as_py()
        if is_sound and has_letters:  # an exponent; as this takes longer than all else, it is looked for only then
            is_sound = pc.all(pc.match_substring_regex(texts, NUMBER)).as_py()
    if not is_sound:
        raise Unlike
    return numbers


def _are_digits(letters: np.ndarray) -> np.ndarray:
    are_digits: np.ndarray = letters - np.uint8(ZERO) < 10
    return are_digits
