"""Check which options of `insert` go together, and choose the format that they ask for."""

from __future__ import annotations

from typing import Any, NamedTuple

import fsqueue

from . import insert_lines
from .insert_input import BadLine, Input
from .insert_lines import NOTHING, Format, LineFormat, NulFormat

NO_DELIMITERS = ('"', "\r", "\n", "\0")


class Asked(NamedTuple):
    """The options of `insert` that say what the input is, and what becomes of it."""

    files: tuple[str, ...]
    lines: bool
    null: bool
    csv: bool
    tsv: bool
    delimiter: str | None
    text: tuple[str, ...]
    text_all: bool
    given: tuple[str, ...]
    skip_bad: bool
    priority: str | None
    key: str | None
    new_by: str | None
    commit: str | None
    batch_tasks: int | None
    from_command: bool

    @property
    def is_table(self) -> bool:
        """Tell whether the input is a table of text."""
        return self.csv or self.tsv or self.delimiter is not None

    @property
    def may_be_parquet(self) -> bool:
        """Tell whether no option says what the files are, so that they say it themselves."""
        return not (self.is_table or self.lines or self.null or self.given)

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Return the options that name a field of the payloads, each with its field."""
        named = (("--priority", self.priority), ("--key", self.key), ("--new-by", self.new_by))
        return tuple((option, field) for option, field in named if field is not None)

    def check(self) -> None:
        """Refuse what does not go together, before the queue is opened. InvalidArgument."""
        for option, field in self.fields:
            if field == "":
                _refuse(f"{option} names a field of JSON objects, and is empty. Is a variable of the shell not set?")
        if (self.lines or self.null) and self.fields:
            field = self.fields[-1][0]
            _refuse(f"{field} names a field of JSON objects: leave {'--lines' if self.lines else '-0'} out.")
        if self.key is not None and self.commit is not None:
            _refuse("A commit takes no keys: its name makes the whole insert happen once. Leave --key or --commit out.")
        if self.key is not None and self.batch_tasks is not None:
            _refuse("Tasks with keys are inserted one at a time. Leave --batch-tasks or --key out.")
        if self.new_by is not None:
            for other, option in ((self.key, "--key"), (self.commit, "--commit"), (self.batch_tasks, "--batch-tasks")):
                if other is not None:
                    _refuse(f"--new-by gives each task its key: leave {option} out, or --new-by.")
            if self.skip_bad:
                _refuse(
                    "--new-by stops at a bad line: leave --skip-bad out, correct the line and repeat the command. It "
                    "inserts only what is new or changed."
                )
        if self.is_table and (self.lines or self.null):
            _refuse(f"A table has rows, not lines of text: leave {'--lines' if self.lines else '-0'} out.")
        if self.csv and self.tsv:
            _refuse("--csv and --tsv say different things: leave one of them out.")
        if (self.text or self.text_all) and not self.is_table:
            option = "--text-all is for" if self.text_all else "--text names a column of"
            _refuse(f"{option} a table of text: add --csv, --tsv or --delimiter.")
        if self.given:
            self._check_given()
        if self.files.count("-") > 1:
            _refuse("Standard input can be read once only, and '-' is given twice.")
        if self.from_command and self.commit is None:
            _refuse(
                "--from needs --commit NAME. Only under a name nothing is seen of the tasks before it is known how the "
                "command ended."
            )
        if self.from_command and self.files:
            _refuse(f"--from inserts what its command prints: leave {self.files[0]} out, or --from.")

    def _check_given(self) -> None:
        for others, option in (
            (self.files, self.files[0] if self.files else ""),
            (self.from_command, "--from"),
            (self.is_table, "the option for tables"),
            (self.null, "-0"),
            (self.skip_bad, "--skip-bad"),
        ):
            if others:
                quotes = " (JSON is in single quotes: --task '{\"tile\": 7}')" if others is self.files else ""
                _refuse(f"--task gives the tasks themselves: leave {option} out{quotes}.")

    def format(self, source: Input) -> Format:
        """Return the format that the options ask for. InvalidArgument if a value of --task is no task."""
        if self.given:
            try:
                return insert_lines.GivenFormat(insert_lines.given_payloads(self.given, self.lines))
            except BadLine as error:
                _refuse(f"{error}.")
        if self.null:
            return NulFormat(source, insert_lines.decode_text, is_json=False)
        if self.lines:
            return LineFormat(source, insert_lines.decode_plain, is_json=False)
        if self.is_table:
            from .insert_tables import TableFormat

            return TableFormat(
                source, self._delimiter(), self.text, self.skip_bad, self.text_all, self.priority, self.fields
            )
        return LineFormat(source, insert_lines.decode_json, is_json=True)

    def _delimiter(self) -> str:
        """Return the character between the cells of a table."""
        mark = "\t" if self.delimiter == "\\t" else self.delimiter
        if mark is None:
            return "\t" if self.tsv else ","
        if len(mark) != 1 or mark in NO_DELIMITERS:
            _refuse(f"--delimiter is one character, such as ';', and {mark!r} cannot be it.")
        if self.tsv and mark != "\t":
            _refuse("--tsv and --delimiter say different things: leave one of them out.")
        return mark


def _refuse(why: str) -> Any:
    raise fsqueue.InvalidArgument(f"{why} {NOTHING}")
