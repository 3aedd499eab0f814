"""Write the manual pages: what `fsqueue help` prints, as troff with the macros of man(7).

They are made from the help of the commands, and checked in: a wheel takes them from docs/man/. Type scripts/man-pages
after a change of an option, of a command's docstring or of the version. tests/house/test_man_pages.py compares them.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
from fsqueue_cli.main import COMMANDS, EPILOG, FIRST, GROUPS, cli

import fsqueue

HERE = Path(__file__).resolve().parent.parent / "docs" / "man"

_HEAD = f""".\\" Made by scripts/man-pages from the help of the command. Do not edit.
.TH %s 1 "" "fsqueue {fsqueue.__version__}" "fsqueue"
.\\" No hyphenation, no spread words: commands and options stay as they are typed.
.nh
.ad l
.ss 12 0
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield each page's file name and text: fsqueue, and each command with those below it."""
    context = click.Context(cli, info_name="fsqueue", **cli.context_settings)
    yield "fsqueue.1", _first_page()
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield f"fsqueue-{name}.1", _page(click.Context(command, context, info_name=name))


def _first_page() -> str:
    lines = [_HEAD % "FSQUEUE", ".SH NAME", "fsqueue \\- a task queue that is a directory on a shared filesystem"]
    lines += [".SH SYNOPSIS", ".B fsqueue", _text("COMMAND [ARGS]..."), ".br", ".B fsqueue help", _text("[COMMAND]...")]
    lines += [".SH DESCRIPTION", *_paragraphs(cli.help or "")]
    for title, commands in GROUPS.items():
        lines.append(f".SS {_text(title)}")
        for name, (_, short) in commands.items():
            lines += [".TP", f".BR fsqueue\\-{_text(name)} (1)", _text(short)]
    rest = EPILOG.partition(FIRST)[2]
    lines += [".SH EXAMPLES", *_block(FIRST.partition("\n")[2].splitlines()), ".SH NOTES", *_paragraphs(rest)]
    return "\n".join(lines) + "\n"


def _page(context: click.Context) -> str:
    command, name = context.command, context.info_name or ""
    lines = [_HEAD % f"FSQUEUE\\-{_text(name.upper())}", ".SH NAME"]
    lines += [f"fsqueue\\-{_text(name)} \\- {_text(_line_of(COMMANDS[name][1]))}"]
    if isinstance(command, click.Group):
        lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
        for below in command.commands.values():
            inner = click.Context(below, context, info_name=below.name)
            lines += [f".SH {_text(inner.command_path.upper())}", *_usage(inner), *_paragraphs(below.help or "")]
            lines += [*_options(inner), *_epilog(below, ".SS Examples")]
    else:
        lines += [".SH SYNOPSIS", *_usage(context), ".SH DESCRIPTION", *_paragraphs(command.help or "")]
        lines += [".SH OPTIONS", *_options(context), *_epilog(command, ".SH EXAMPLES")]
    lines += [".SH SEE ALSO", ".BR fsqueue (1)"]
    return "\n".join(lines) + "\n"


def _line_of(short: str) -> str:
    return short[0].lower() + short[1:].rstrip(".")


def _usage(context: click.Context) -> list[str]:
    return [f".B {_text(context.command_path)}", _text(" ".join(context.command.collect_usage_pieces(context)))]


def _options(context: click.Context) -> Iterator[str]:
    for option in context.command.get_params(context):
        if isinstance(option, click.Option) and (record := option.get_help_record(context)) is not None:
            yield from (".TP", f".B {_text(record[0])}", _text(record[1].replace("  ", " ")))


def _epilog(command: click.Command, heading: str) -> Iterator[str]:
    _, _, text = (command.epilog or "").partition("Example:\n")
    if text:
        yield from (heading, *_block(text.splitlines()))


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring; those that begin with \\b keep their lines, as click has it."""
    for paragraph in re.split(r"\n[ ]*\n", inspect.cleandoc(text).strip("\n")):
        lines = paragraph.splitlines()
        if lines[0].strip() != "\b":
            yield from (".PP", *map(_text, (line.strip() for line in lines)))
        elif re.fullmatch(r"\S.*:", lines[1]):
            yield from (f".SS {_text(lines[1].rstrip(':'))}", *_block(lines[2:]))
        else:
            yield from _block(lines[1:])


def _block(lines: list[str]) -> Iterator[str]:
    """Yield lines that stay as they are, indented."""
    yield from (".PP", ".RS 2", ".nf", *(_text(line[2:] if line.startswith("  ") else line) for line in lines))
    yield from (".fi", ".RE")


def _text(line: str) -> str:
    """Return a line as troff reads it: a hyphen is the sign that is typed, and no line is a request."""
    text = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("^", "\\(ha").replace("~", "\\(ti")
    text = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text)
    return f"\\&{text}" if text.startswith(".") else text


def main() -> None:
    """Write all pages, and remove those of commands that are gone."""
    parser = argparse.ArgumentParser(prog="scripts/man-pages", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, default=HERE, help="where to [docs/man/ of this clone]")
    place: Path = parser.parse_args().dir
    place.mkdir(exist_ok=True)
    made = dict(pages())
    for path in place.glob("fsqueue*.1"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (place / name).write_text(text, encoding="utf-8")
    print(f"{place}: {len(made)} pages")


if __name__ == "__main__":
    main()
