"""Tell from its first bytes what a file is that was taken for lines of tasks, and what to type instead."""

from __future__ import annotations

from .insert_input import HEAD_BYTES
from .printing import quoted

EACH_ELEMENT = "For a task of each element, insert what \"jq -c '.[]'\" makes of it."

PACKED = (
    (b"\x1f\x8b", "compressed with gzip", "zcat"),
    (b"BZh", "compressed with bzip2", "bzcat"),
    (b"\xfd7zXZ\0", "compressed with xz", "xzcat"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "zstd -dc"),
    (b"PK\x03\x04", "a ZIP archive (or a spreadsheet, which its program can save as CSV)", "unzip -p"),
)
"""The first bytes of a file, what it is, and the command that unpacks it."""
WIDE = (
    (b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"),
)  # fmt: skip
SEPARATORS = {",": "--csv", "\t": "--tsv", ";": "--delimiter ';'", "|": "--delimiter '|'"}
"""What separates the fields of tables, and the option for it."""
SUFFIXES = {".csv": "--csv", ".tsv": "--tsv"}
PARQUET_MAGIC = b"PAR1"


def kind_of(head: bytes, name: str, is_json: bool) -> str | None:
    """Return what a file is and what to type, in one phrase; None if it shows no sign of being something else.

    `head`: its first bytes. `name`: as the user typed it, `-` for standard input. `is_json`: whether its lines were
    taken for JSON, else for text.
    """
    for magic, what, command in PACKED:
        if head.startswith(magic):
            return f"it is {what}: insert what {_command(command, name)} prints"
    if head.startswith(PARQUET_MAGIC):
        if name == "-":
            return "it is a Parquet file, which cannot be read from a pipe: give its name"
        return "it is a Parquet file: leave out the option that says otherwise"
    wide = _wide(head)
    if wide is not None:
        return f"it is {wide} text: insert what {_command(f'iconv -f {wide} -t UTF-8', name)} prints"
    if not is_json:
        return None
    if b"\0" in head:
        return "it has the character NUL: use -0 for items that end with NUL, as 'find -print0' writes them"
    return _table(head, name)


def guess(line: bytes, position: int) -> str:
    """Return a hint at what the user may have meant by a line that is not JSON, or "".

    `position`: where the line ceases to be JSON.
    """
    text = line.strip()
    begin = text[:1]
    if begin == b"[":
        return f" (an array over several lines? {EACH_ELEMENT})"
    if begin == b"{":
        if text.endswith(b"}") and b"'" in text:
            return " (JSON has its strings and names in double quotes)"
        return " (an object over several lines? 'jq -c .' makes a line of each)"
    return " (for plain lines use --lines)" if position == 0 else ""


def option_for(header: str, delimiter: str) -> str | None:
    """Return the option for a table of which `delimiter` finds a single field in the header. None if it may be one."""
    return next((option for mark, option in SEPARATORS.items() if mark != delimiter and mark in header), None)


def _command(command: str, name: str) -> str:
    return f"'{command}'" if name == "-" else f"'{command} {quoted(name)}'"


def _wide(head: bytes) -> str | None:
    """Return the name of an encoding of two or four bytes a character."""
    for mark, name in WIDE:
        if head.startswith(mark):
            return name
    pairs = len(head) // 2
    if pairs < 2:
        return None
    even, odd = head[0 : 2 * pairs : 2].count(0), head[1 : 2 * pairs : 2].count(0)
    if odd > 0.8 * pairs and not even:
        return "UTF-16LE"
    return "UTF-16BE" if even > 0.8 * pairs and not odd else None


def _table(head: bytes, name: str) -> str | None:
    """Return what to type for a table: a file of this name, or one whose first two lines have as many fields."""
    text = head.decode("utf-8", "replace")
    if len(head) >= HEAD_BYTES:  # its last line is cut
        text = text[: text.rfind("\n") + 1] or text
    lines = [line for line in text.splitlines() if line.strip()][:2]
    if not lines or lines[0].lstrip("\ufeff \t")[:1] in ("[", "{"):
        return None
    for mark, option in SEPARATORS.items():
        fields = lines[0].count(mark)
        if fields and all(line.count(mark) == fields for line in lines):
            return f"it looks like a table: add {option} for a task of each row below the header, or --lines"
    for suffix, option in SUFFIXES.items():
        if name.lower().endswith(suffix):
            return f"by its name it is a table: add {option} for a task of each row below the header"
    return None
