"""What passes over an error of the system lets an interruption out: a TimeoutError of the caller's alarm is an OSError.

`fsqueue/interruptions.py` tells the two apart. The packages that run in the caller's thread ask it wherever they catch
what may be either.
"""

from __future__ import annotations

import ast
import re

from tests.house.source import PACKAGE, TOP, imported, nodes

CALLERS = (
    "filesystem", "storage", "protocol", "groups", "upkeep", "views", "fsck", "cluster",
    "administration.py", "commit.py", "maintenance.py", "poll.py", "queue.py", "several_queues.py",
)  # fmt: skip
FILES = [
    path
    for place in CALLERS
    for path in ([PACKAGE / place] if place.endswith(".py") else (PACKAGE / place).glob("*.py"))
]
ASKS = re.compile(r"\b(let_out|is_interruption|refuse_unopened|handler_in|_leaves_what_is_held)\(")
EXPLAINS = re.compile(r"raise (from_os_error|(self\.)?store\.explain)\(")
ANOTHER_ERRNO = re.compile(r"errno (not in|!=) ")
STREAMS = {"protocol/encoding.py"}
"""They raise what has broken a stream once what came before is handed on."""


def lets_out(handler: ast.ExceptHandler) -> bool:
    """Return whether an interruption leaves a handler: it asks, raises it again, or has it explained."""
    first, texts = handler.body[0], [ast.unparse(one) for one in handler.body]
    if any(ASKS.search(text) for text in texts) or any(text == "raise" for text in texts):
        return True
    if isinstance(first, ast.If) and ANOTHER_ERRNO.search(ast.unparse(first.test)):
        return ast.unparse(first.body[0]) == "raise"  # a timeout has no errno
    return len(texts) == 1 and EXPLAINS.match(texts[0]) is not None


def caught(handler: ast.ExceptHandler) -> set[str]:
    """Return the names of what a handler catches."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {"BaseException" if kind is None else ast.unparse(kind) for kind in kinds}


def test_what_catches_errors_of_the_system_lets_interruptions_out() -> None:
    passing = [
        f"{path.relative_to(TOP)}:{node.lineno}"
        for path in FILES
        if str(path.relative_to(PACKAGE)) not in STREAMS
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and caught(node) & {"OSError", "TimeoutError", "Exception"}
        and not lets_out(node)
    ]
    assert passing == []


def test_no_interruption_is_suppressed() -> None:
    suppressing = [
        f"{path.relative_to(TOP)}:{line}"
        for path in FILES
        for line, full in imported(path)
        if full == "contextlib.suppress"
    ]
    assert suppressing == []


def test_the_rule_tells_handlers_apart() -> None:
    def handler(body: str) -> ast.ExceptHandler:
        [tried] = ast.parse(f"try: act()\nexcept OSError as error:\n{body}").body
        assert isinstance(tried, ast.Try)
        return tried.handlers[0]

    assert not lets_out(handler("    pass"))
    assert not lets_out(handler("    if error.errno == 2:\n        raise\n    again()"))
    assert lets_out(handler("    let_out(error)\n    again()"))
    assert lets_out(handler("    if error.errno not in LOST:\n        raise\n    again()"))
    assert lets_out(handler("    raise from_os_error(error, 'looking') from error"))
