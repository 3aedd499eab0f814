"""Placeholders: what takes their place, what is refused before anything is leased, what fails a task."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue import InvalidArgument, Queue, Worker
from fsqueue.worker import placeholders
from tests.waiting import PATIENCE_S
from tests.worker.support import drained

pytestmark = pytest.mark.once

QueueFactory = Callable[..., Queue]
ID = "01a2.7"


def filled(argument: str, payload: Any) -> str:
    return placeholders.fill([argument], payload, ID)[0].decode(errors="surrogateescape")


@pytest.mark.parametrize(
    ("payload", "argument", "expected"),
    [
        ("in.d/a.tar.gz", "{.} {/} {//} {/.}", "in.d/a.tar a.tar.gz in.d a.tar"),
        ("in.d/a", "{.} {/} {//} {/.}", "in.d/a a in.d a"),
        ("a", "{.}.jpg {/} {//} {/.}", "a.jpg a . a"),
        ("/a.b", "{.} {/} {//} {/.}", "/a a.b / a"),
        ("a/b.d/", "{/} {//} {/.}", "b.d a b"),
        ("/", "{.} {/} {//} {/.}", "/ / / /"),
        ("", "<{.}{/}>", "<>"),
        (".profile", "{.} {/.}", ".profile .profile"),
        ("a b/ü 'c'.x y", "{/.}", "ü 'c'"),
        (b"d/\xff.x", "{/.}", "\udcff"),
        ({"in": "d/a.jpg", "x.y": "q.e"}, "{in.} {in/} {in//} {in/.} {x.y.}", "d/a a.jpg d a q"),
        ({"tile": 7, "x": 0.5}, "{tile:04d} {tile:x} {tile:>3} {x:.3f} {x:.0%} {tile:,}", "0007 7   7 0.500 50% 7"),
        ({"name": "ab"}, "{name:>4}|{name:*^6}|{name:s}|{name:.1}", "  ab|**ab**|ab|a"),
        (5, "{:03d}", "005"),
        (b"\xff", "{:>2}", " \udcff"),
        ({}, "{#}.out", "01a2.7.out"),
        ("x", "{{.}} {{/}} {{//}} {{/.}} {{#}} {{a.}} {{a:04d}} {{1}} {{2/}} {{a!r}} {{a: 1}}",
         "{.} {/} {//} {/.} {#} {a.} {a:04d} {1} {2/} {a!r} {a: 1}"),
        ({"x": 1}, "${#} ${.} ${1} ${x:-1} ${x:04d} ${x!r}", "${#} ${.} ${1} ${x:-1} ${x:04d} ${x!r}"),
        ({"x": 1}, "{1..3} {1,2} {x,y} {x..y} {x-} {/x} {.x} {,x} {x[0]} {x=} {=x} { x } {x y} { } {+} {!x} {#x} {%x}",
         "{1..3} {1,2} {x,y} {x..y} {x-} {/x} {.x} {,x} {x[0]} {x=} {=x} { x } {x y} { } {+} {!x} {#x} {%x}"),
        ({"x": 1}, "{ print } {print $1} { :; } {\n x\n} {:x 1} {$x} {x; y} { x: .y } { x} { x:04d} {{.Names}} {{ x }}",
         "{ print } {print $1} { :; } {\n x\n} {:x 1} {$x} {x; y} { x: .y } { x} { x:04d} {{.Names}} {{ x }}"),
        ({"x": 1}, "${..} ${%} ${:d4} ${= x =} ${x }", "${..} ${%} ${:d4} ${= x =} ${x }"),
    ],
)  # fmt: skip
def test_what_takes_the_place_of_a_placeholder(payload: Any, argument: str, expected: str) -> None:
    assert filled(argument, payload) == expected


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_names_and_directories_are_those_of_the_commands(path: str) -> None:
    """But for what the commands add and take away themselves: newlines."""
    if "\n" in path:
        return
    for argument, command in (("{/}", "basename"), ("{//}", "dirname")):
        known = subprocess.run([command, "--", path], capture_output=True, check=True, timeout=PATIENCE_S).stdout
        assert placeholders.fill([argument], path, ID) == [known.removesuffix(b"\n")]


@pytest.mark.parametrize(
    "argument",
    ["{1}", "a{12}b", "{0.}", "{2/}", "{3//}", "{1/.}", "{x!r}", "{x!r:>8}", "{x! y}", "{x:}", "{x:5q}", "{x:n}",
     "{x:c}", "{a: 1}", "{x:.3d}", "{x:1000}", "{x:.1000f}", "{x: }", "{x:0[a]}", "{x.y:__class__}",
     # the same without a name
     "{:d4}", "{:1000d}", "{:n}", "{:5q}", "{:}", "{:?}", "{: }", "{: 5d}", "{:04d }", "{!r}", "{!s:>8}", "{0:04d}",
     "{1:>8}", "{0!r}",
     # GNU parallel's, and its neighbours'
     "{%}", "{0%}", "{%.}", "{= s/a/b/ =}", "{=1 uc =}", "{==}", "{-1}", "{-1/.}", "{##}", "{0#}", "{..}", "{...}",
     "{/..}", "{/...}", "{+/}", "{+.}", "{+..}", "{x..}", "{x/..}", "{x+/}", "{1..}",
     # with a blank before the end
     "{x }", "{x\t}", "{x. }", "{/. }", "{# }", "{x:04d }"],
)  # fmt: skip
def test_braces_that_mean_nothing_are_refused_with_the_way_to_have_the_text(queue: Queue, argument: str) -> None:
    """They would reach the command as they are, and the tasks would be completed."""
    text = argument[argument.index("{") : argument.index("}") + 1]
    with pytest.raises(InvalidArgument) as refused:
        Worker(queue, command=["echo", argument])
    assert f"For the text {text} write {{{text}}}. No task was touched." in str(refused.value)
    assert filled(f"<{{{text}}}>", None) == f"<{text}>"


@pytest.mark.parametrize(
    ("payload", "argument", "reason"),
    [
        ({"t": "7"}, "{t:04d}", "{t:04d} takes numbers, and the field 't' is the text '7'"),
        ({"t": "x" * 99}, "{t:.1f}", f"is the text '{'x' * 40}…'"),
        ({"t": 1.5}, "{t:04d}", "takes whole numbers, and the field 't' is the number 1.5"),
        ({"t": 5}, "{t:s}", "takes texts, and the field 't' is the number 5"),
        ({"t": True}, "{t:d}", "takes numbers, and the field 't' is true or false"),
        ({"t": None}, "{t:>5}", "takes texts and numbers, and the field 't' is null"),
        ("7", "{:04d}", "{:04d} takes numbers, and the payload is the text '7'"),
        (7, "{.}", "{.} takes a part of a text, and the payload is the number 7: write {}"),
        ({"f": "a.b"}, "{.}", "and the payload is an object: name a field of it, as in {name.}"),
        ({"f": [1]}, "{f/.}", "and the field 'f' is a list: write {f}"),
        ({"f": 1}, "{g:04d}", "the payload has no field 'g' for {g:04d}: its fields are f"),
        ("a", "{g.}", "the payload has no field 'g' for {g.}: it is a text"),
    ],
)
def test_a_payload_that_does_not_suit_fails_its_task(
    queue_factory: QueueFactory, payload: Any, argument: str, reason: str
) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert(payload)
    with pytest.raises(InvalidArgument, match="No task was touched") as refused:
        Worker(queue, command=["echo", argument]).run()
    assert reason in str(refused.value)
    queue.purge()
    suits = {"t": 1, "f": "a", "g": 1} if isinstance(payload, dict) else 1
    if argument in ("{.}", "{f/.}", "{g.}", "{t:s}"):
        suits = {"f": "a", "g": "a", "t": "a"} if argument != "{.}" else "a"
    queue.insert_many([suits, payload], batch_tasks=2)
    assert Worker(queue, command=["echo", argument]).run() == drained(completed=1, failed=1)
    [letter] = queue.dead()
    assert reason in letter.reason


@given(st.text("{}#/.:!$%=+-1x04d rn", max_size=12))
def test_any_braces_are_refused_or_filled(argument: str) -> None:
    """Whatever is not refused can be filled, or fails for what is in the payload."""
    try:
        placeholders.check([argument])
        filled(argument, {"x": "a", "d": 4, "rn": None})
    except InvalidArgument:
        return
    except placeholders.Unfilled:
        assert placeholders.asks_for_fields([argument])
