"""Type a page of the documentation as it stands, and compare what it says is printed with what is printed.

A page's fenced blocks are typed in order, in one fresh directory:

- `sh`: command by command, by one bash a block. Each must exit with 0 and within two minutes, all of a block.
- `python`: statement by statement, in one namespace a page. A block that begins with `# NAME.py` becomes that file.
- `text`: what the block before printed. Its lines must be among the printed ones, in that order.

What a comment at the end of a command or statement says is compared, too:

- `# prints X`, and a comment behind Python's `print(…)`: X is what is printed (as far as a colon, behind a command).
- `# N: …`: the command exits with N.

What varies, in what a page shows: `…` stands for anything; ids and dates are alike; widths of columns do not count.
Numbers count. What is typed with other numbers or paths than the page has is said by the test, in a table.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.house.source import TOP
from tests.waiting import PATIENCE_S


class Block(NamedTuple):
    section: str
    language: str
    code: str
    line: int


def text_of(page: str) -> str:
    return (TOP / page).read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        sections = re.findall(r"^## (.*)", text[: match.start()], re.MULTILINE)
        found.append(Block(sections[-1] if sections else "", match[1], match[2], text[: match.start()].count("\n") + 2))
    return found


def prose(text: str) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def plain(text: str) -> list[str]:
    """Return the lines of output without what differs from run to run (ids, times) and the widths of columns."""
    text = re.sub(r"[0-9a-f]{32}\.\d+", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def is_shown(shown: str, output: str) -> bool:
    """Tell whether the lines that a page shows are among those that came, in that order; … stands for anything."""
    rest = iter(plain(output))
    for line in plain(shown):
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        if not any(pattern.fullmatch(other) for other in rest):
            return False
    return True


class Command(NamedTuple):
    code: str
    comment: str

    @property
    def exits(self) -> int:
        code = re.match(r"(\d+): ", self.comment)
        return int(code[1]) if code else 0

    @property
    def prints(self) -> str | None:
        said = re.match(r"prints (.*?)(:|$)", self.comment)
        return said[1] if said else None


def commands(code: str) -> list[Command]:
    """Split a block into what a shell would take as one command each."""
    found, so_far = [], ""
    for line in code.splitlines():
        so_far += line + "\n"
        parsed = subprocess.run(["bash", "-n", "-c", so_far], capture_output=True)
        if line.endswith("\\") or parsed.returncode or parsed.stderr:  # bash only warns of a document that does not end
            continue
        if so_far.strip() and not so_far.lstrip().startswith("#"):
            found.append(Command(so_far, line.partition(" # ")[2].strip()))
        so_far = ""
    assert not so_far, f"no whole command: {so_far}"
    return found


class Typed:
    """A fresh directory in which a page's blocks are typed."""

    def __init__(self, home: Path, page: str, instead: Mapping[str, str], names: Mapping[str, Any]) -> None:
        self.home, self.page, self.instead = home, page, instead
        self.names: dict[str, Any] = {"__name__": "__main__", **names}
        self.printed: str | None = None
        """By the last block that was typed; None before the first."""

    def file(self, name: str, content: str) -> None:
        """Put a file there; what is in bin/ is found by its name."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755 if content.startswith("#!") else 0o644)

    def replaced(self, text: str) -> str:
        for there, here in self.instead.items():
            text = text.replace(there, here)
        return text

    def type(self, block: Block, before_each: str = ":") -> None:
        """Type one block. A shell runs `before_each` before each of its commands, and it is not compared."""
        at = f"{self.page}, line {block.line}"
        code = self.replaced(block.code)
        if name := re.match(r"# (\w+\.py)\b", code):
            self.file(name[1], code)
        elif block.language == "sh":
            self.printed = self._shell(code, self.replaced(before_each), at)
        elif block.language == "python":
            self.printed = self._python(code, at)
        elif block.language == "text":
            assert self.printed is not None
            assert is_shown(code, self.printed), f"not what {at} shows:\n{self.printed}"

    def _shell(self, code: str, before_each: str, at: str) -> str:
        wanted = commands(code)
        place = self.home / "typed"
        place.mkdir(exist_ok=True)
        script = ""
        for n, one in enumerate(wanted):
            files = f">{place}/{n}.out 2>{place}/{n}.err </dev/null; echo $? >{place}/{n}.exit"
            script += f"{before_each} >/dev/null\n{{ {one.code}}} {files}\n"
        path = f"{self.home}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"PATH": path, "TZ": "UTC", "LC_ALL": "C.UTF-8", "USER": "me"}
        subprocess.run(["bash", "-c", script], cwd=self.home, env=environment, timeout=PATIENCE_S, check=True)
        everything = ""
        for n, one in enumerate(wanted):
            out, err = ((place / f"{n}.{name}").read_text() for name in ("out", "err"))
            exited = int((place / f"{n}.exit").read_text())
            assert exited == one.exits, f"{at}: exit {exited} of {one.code}{out}{err}"
            if one.prints is not None:
                assert is_shown(one.prints, out), f"{at}: {one.code}prints {out}{err}"
            everything += out + err
        return everything

    def _python(self, code: str, at: str) -> str:
        everything = ""
        lines = code.splitlines()
        for statement in ast.parse(code).body:
            # Compiled with its place in the block, so that a traceback shows the page's line.
            module = compile(ast.Module([statement], []), at, "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(module, self.names)
            assert statement.end_lineno is not None
            said = lines[statement.end_lineno - 1][statement.end_col_offset :].partition("# ")[2]
            if said and ast.unparse(statement).startswith("print("):
                assert is_shown(said, out.getvalue()), f"{at}: {ast.unparse(statement)} prints {out.getvalue()}"
            everything += out.getvalue()
        return everything
