"""Hooks of MkDocs: pages of the site that stand in no file of docs/, links that lead out of docs/, and globs in `nav`.

README.md is the site's first page, and docs/README.md, the map of the pages, another one. Each command and each group
of public names has a page, made of its help or docstrings. tests/house/test_site.py reads this module without MkDocs.
"""

from __future__ import annotations

import fnmatch
import html
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

TOP = Path(__file__).resolve().parent.parent
DOCS = TOP / "docs"
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "map.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the site that have another name there than in the clone."""
DIRECTORIES = {"docs": "map.md", "docs/tutorials": "tutorials/first.md", "docs/decisions": "map.md"}
"""Where a link to a directory leads on the site."""
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
NAMED_BY_FILE = re.compile(r"\[([\w./-]+\.md)\]\(([^)\s#]+)")
FENCE = re.compile(r"^ *(```|~~~)")
CODE_IN_A_CELL = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")

SEARCH = "assets/site_search.js"
ASSETS = {SEARCH: TOP / "scripts" / "site_search.js", "assets/site.css": TOP / "scripts" / "site.css"}
"""What lets the search work on pages that are opened from a disk, and what changes the theme's looks."""
SEARCH_ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
"""What the theme would fetch for the search."""

BOOST = {"decisions/*": 0.2, "changelog.md": 0.2, "design.md": 0.4, "format*.md": 0.4, "testing.md": 0.4, "pei.md": 0.4}
"""The search shows these after pages for users."""

EXPLAINED = (
    "attempt", "backoff", "batch", "dead letter", "drained", "durability", "fencing", "gateway", "generation",
    "history", "lease", "payload", "priority", "shard", "token",
)  # fmt: skip
"""Words of the glossary that a reader may not know. Each leads there from where it stands first on a user's page."""
UNTOUCHED = re.compile(r"(`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<[^>]*>|https?://\S+)")
"""What is no prose within a line: code, links, tags."""

PYTHON: Mapping[str, tuple[str, ...]] = {
    "Queues": ("Queue", "GroupQueue", "RemoteQueue", "Poll", "AsyncPoll", "Commit", "CommitPart", "CommitReport"),
    "Groups": (
        "Barrier", "Group", "GroupQueues", "GroupStatus", "RemoteGroup", "Update", "TaskNumbers", "NewNumber",
        "NumberedInfo", "Flow", "Lineage", "Relative",
    ),
    "Tasks": (
        "Task", "LeasedTask", "TaskInfo", "TaskRef", "Result", "Movement", "DeadLetter", "State", "Timeline", "Then",
    ),
    "Workers and functions": (
        "Worker", "WorkerReport", "Report", "Event", "Executor", "task", "lease", "LeaseHolder", "queues", "connect",
        "wait", "as_completed",
    ),
    "Settings, status and upkeep": (
        "Settings", "Durability", "Pause", "PriorityRange", "Status", "Activity", "Rate", "TimeLeft", "Failure", "Held",
        "MostUsed", "FailingNode", "StuckLock", "Usage", "GcReport", "RetryReport", "ChangeReport", "Finding",
    ),
    "Errors": (
        "FsqueueError", "InvalidArgument", "InvalidTask", "InvalidResult", "TaskTooLarge", "TaskNotFound", "TaskFailed",
        "ResultNotReady", "LeaseLost", "LeaseExpired", "UpdateConflict", "Conflict", "CommitLost", "QueueNotFound",
        "GroupNotFound", "NotAQueue", "QueueExists", "QueueClosed", "QueuePurged", "QueueFileLost", "FormatTooNew",
        "FormatTooOld", "StorageError", "StorageFull", "UnsafeFilesystem", "LockTimeout", "ForkedChild", "Retry",
        "Bury",
    ),
}  # fmt: skip
"""The public names of fsqueue, by the page of the reference that has them."""


def slug(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading, as GitHub makes it, so that one link does for both."""
    text = re.sub(r"[`*]", "", heading).strip().lower()
    return re.sub(r"\s", separator, re.sub(r"[^\w\s-]", "", text))


def file_of(title: str) -> str:
    """Return the file name of a page of the reference."""
    return slug(title).replace(",", "") + ".md"


def generated() -> Iterator[tuple[str, str]]:
    """Yield the name on the site, and the Markdown, of each page that stands in no file of docs/ under that name."""
    for path, name in MOVED.items():
        yield name, (TOP / path).read_text(encoding="utf-8")
    yield from command_pages()
    for title, names in PYTHON.items():
        parts = "\n\n".join(f"::: fsqueue.{name}" for name in names)
        yield f"reference/python/{file_of(title)}", f"# {title}\n\n{parts}\n"


def command_pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each command, with all that `fsqueue help COMMAND` says, and one that lists them."""
    import click
    from fsqueue_cli.main import COMMANDS, EPILOG, FIRST, GROUPS, cli

    lines = ["# Commands", "", *prose(cli.help or "")]
    for theme, commands in GROUPS.items():
        lines += [f"## {theme}", "", "| command | |", "|---|---|"]
        lines += [f"| [fsqueue {name}]({name}.md) | {cell(short)} |" for name, (_, short) in commands.items()]
        lines.append("")
    lines += ["## For all commands", "", *prose(EPILOG.partition(FIRST)[2])]
    yield "reference/commands/index.md", "\n".join(lines)
    top = click.Context(cli, info_name="fsqueue", **cli.context_settings)
    for name, (_, short) in COMMANDS.items():
        command = cli.get_command(top, name)
        assert command is not None
        context = click.Context(command, top, info_name=name)
        lines = [f"# fsqueue {name}", "", short, ""]
        if isinstance(command, click.Group):
            lines += prose(command.help or "")
            for below in command.commands.values():
                inner = click.Context(below, context, info_name=below.name)
                lines += [f"## {inner.command_path}", "", *about(inner)]
        else:
            lines += about(context)
        yield f"reference/commands/{name}.md", "\n".join(lines)


def about(context: Any) -> Iterator[str]:
    """Yield what a command's help says, as Markdown: its use, its text, its options and its examples."""
    import click

    command = context.command
    yield from fenced([f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}"])
    yield from prose(command.help or "")
    options = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    records = [record for one in options if (record := one.get_help_record(context)) is not None]
    yield from ("| option | |", "|---|---|")
    yield from (f"| <code>{cell(names)}</code> | {cell(text)} |" for names, text in records)
    yield ""
    _, _, examples = (command.epilog or "").partition("Example:\n")
    if examples:
        yield from ("**Examples**", "")
        yield from fenced([line.removeprefix("  ") for line in examples.rstrip().splitlines()], "sh")


def prose(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text as Markdown. Those that begin with \\b keep their lines, as click has it."""
    for paragraph in re.split(r"\n[ ]*\n", inspect.cleandoc(text).strip("\n")):
        lines = paragraph.splitlines()
        if lines[:1] == ["\b"]:
            yield from fenced(lines[1:])
        else:
            yield from (*(escaped(line.strip()) for line in lines), "")


def fenced(lines: list[str], language: str = "text") -> Iterator[str]:
    yield from (f"```{language}", *lines, "```", "")


def escaped(text: str) -> str:
    """Return plain text as Markdown that shows it as it is."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", text)


def cell(text: str) -> str:
    """Return plain text as it may stand in a cell of a table."""
    return re.sub(r"([*_`\[\]|\\])", lambda found: f"&#{ord(found[1])};", html.escape(text, quote=False))


def expanded(nav: Any, names: list[str]) -> Any:
    """Return `nav` with each glob replaced by the names that it stands for, in their order."""
    if isinstance(nav, list):
        found: list[Any] = []
        for one in nav:
            if isinstance(one, str) and "*" in one:
                found += fnmatch.filter(names, one)
            else:
                found.append(expanded(one, names))
        return found
    if isinstance(nav, dict):
        return {
            title: expanded([one] if isinstance(one, str) and "*" in one else one, names) for title, one in nav.items()
        }
    return nav


def pages_of_docs() -> list[str]:
    """Return the pages of docs/ by their names on the site, sorted."""
    found = sorted(str(path.relative_to(TOP)) for path in DOCS.rglob("*.md"))
    return [MOVED.get(path, path.removeprefix("docs/")) for path in found]


def name_of(target: Path) -> str:
    """Return the name on the site of a file of the clone. What is neither a page nor in docs/ lies below source/."""
    path = str(target.relative_to(TOP))
    if path in DIRECTORIES:
        return DIRECTORIES[path]
    return MOVED.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}")


def origin(name: str) -> Path:
    """Return the file of the clone that a page of the site comes from."""
    path = next((path for path, moved in MOVED.items() if moved == name), f"docs/{name}")
    return TOP / path


def titles(nav: Any) -> Iterator[tuple[str, str]]:
    """Yield each page that has a title in `nav`, with it."""
    for one in nav if isinstance(nav, list) else [nav]:
        for title, below in one.items() if isinstance(one, dict) else ():
            if isinstance(below, str):
                yield below, title
            else:
                yield from titles(below)


def linked(markdown: str, name: str, called: Mapping[str, str] = MappingProxyType({})) -> tuple[str, set[Path]]:
    """Return a page's Markdown with links as the site needs them, and the files outside of docs/ that they lead to.

    A link whose text is the name of a file gets the title of that page, if `called` has one.
    """
    outside: set[Path] = set()
    place = origin(name).parent

    def instead(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(place / unquote(found[2])))
        if not target.is_relative_to(TOP) or not target.exists():
            return found[0]  # MkDocs says so
        to = name_of(target)
        if to.startswith("source/"):
            outside.add(target)
        return f"{found[1]}{os.path.relpath(to, os.path.dirname(name) or '.')}{found[3] or ''}"

    def title(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(place / unquote(found[2])))
        to = name_of(target) if target.is_relative_to(TOP) else ""
        return f"[{called[to]}]({found[2]}" if to in called else found[0]

    lines, is_code = [], False
    for line in markdown.splitlines():
        if FENCE.match(line):
            is_code = not is_code
        if not is_code:
            line = LINK.sub(instead, NAMED_BY_FILE.sub(title, line))
            if line.startswith("|"):  # Python-Markdown would show the backslash, GitHub does not
                line = CODE_IN_A_CELL.sub(
                    lambda code: f"<code>{cell(code[1].replace(chr(92) + '|', '|'))}</code>", line
                )
        lines.append(line)
    return "\n".join(lines) + "\n", outside


def explained(markdown: str) -> str:
    """Return a page on which each of EXPLAINED, where it stands first in a sentence, leads to the glossary."""
    left = {word: re.compile(rf"\b({word}s?|{word[:-1]}ies|{word}es)\b", re.IGNORECASE) for word in EXPLAINED}
    lines, is_code = [], False
    for line in markdown.splitlines():
        if FENCE.match(line):
            is_code = not is_code
        elif not is_code and not line.startswith(("#", "|", "    ")):
            parts = UNTOUCHED.split(line)
            for number in range(0, len(parts), 2):
                for word in [word for word, pattern in left.items() if pattern.search(parts[number])]:
                    if "](" not in parts[number]:  # one link in a piece of a line: a word of a link is left alone
                        pattern = left.pop(word)
                        parts[number] = pattern.sub(rf"[\1](glossary.md#{slug(word)})", parts[number], count=1)
            line = "".join(parts)
        lines.append(line)
    return "\n".join(lines) + "\n"


def anchored(markdown: str) -> str:
    """Return the glossary with an anchor at each word."""
    row = re.compile(r"^\| (?!word |-)([^|]+?) \|", re.MULTILINE)
    return row.sub(lambda found: f'| <a id="{slug(found[1].partition(",")[0])}"></a>{found[1]} |', markdown)


def users_pages(nav: Any) -> set[str]:
    """Return the pages of the first two parts, and the first page."""
    return {name for part in nav for title in part if title in ("Tutorials", "How to") for name, _ in titles(part)} | {
        "index.md"
    }


# -- hooks of MkDocs ------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    names = [*pages_of_docs(), *(name for name, _ in generated() if name not in MOVED.values())]
    config.nav = expanded(config.nav, names)
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    replaced = files.get_file_from_path("README.md")
    if replaced is not None:
        files.remove(replaced)
    outside: set[Path] = set()
    for name, text in generated():
        if name in MOVED.values():
            outside |= linked(text, name)[1]
        files.append(File.generated(config, name, content=text))
    for path in DOCS.rglob("*.md"):
        outside |= linked(path.read_text(encoding="utf-8"), name_of(path))[1]
    for name, path in ASSETS.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for target in sorted(outside):
        files.append(File.generated(config, name_of(target), abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    name = page.file.src_uri
    boost = next((boost for pattern, boost in BOOST.items() if fnmatch.fnmatch(name, pattern)), 1)
    page.meta.setdefault("search", {"boost": boost})
    if name.startswith("reference/"):
        return markdown
    if name == "glossary.md":
        markdown = anchored(markdown)
    text = linked(markdown, name, dict(titles(config.nav)))[0]
    if name not in users_pages(config.nav):
        return text
    return explained(text).replace("](glossary.md#", f"]({'../' * name.count('/')}glossary.md#")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    return output.replace(SEARCH_ELSEWHERE, f"{'../' * page.file.dest_uri.count('/')}{SEARCH}")


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    return output_content.replace(SEARCH_ELSEWHERE, f"/{SEARCH}")  # 404.html, which only a web server shows
