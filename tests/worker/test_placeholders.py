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
        ({"x": 1}, "{1..3} {1,2} {x,y} {x..y} {x,} {/x} {.x} {,x} {x[$1]} {=x} {x y} { } {+} {!x} {#x} {%x}",
         "{1..3} {1,2} {x,y} {x..y} {x,} {/x} {.x} {,x} {x[$1]} {=x} {x y} { } {+} {!x} {#x} {%x}"),
        ({"x": 1}, "{x++} {x;} {x--}", "{x++} {x;} {x--}"),
        ({"tile no": 7, "a/b": "d/e.f", "2x": None, "a,b": 1}, '{"tile no"}|{"a/b"}|{"a/b"/.}|{"2x"}|{"a,b"}|{{"2x"}}',
         '7|d/e.f|e|null|1|{"2x"}'),
        ({"tile no": 7, "n": 1},
         '{"tile no": 1} ${"x"} {"a": {"b": 2}} {{tile no}} ${tile no} {"n":5} {"n":-0.5 } {"n": x} {"n":.n} {"n":""}',
         '{"tile no": 1} ${"x"} {"a": {"b": 2}} {{tile no}} ${tile no} {"n":5} {"n":-0.5 } {"n": x} {"n":.n} {"n":""}'),
        ({"n": 3}, '{"n":{n}} {{"n":05d}} {{"n"!r}} ${"n":05d}', '{"n":3} {"n":05d} {"n"!r} ${"n":05d}'),
        ({"x": 1, "": 2},
         "{ print } {print $1} { :; } {:x 1} {$x} {x; y} { x: .y } {x : .y} {{.Names}} {{ x }} { } { . }",
         "{ print } {print $1} { :; } {:x 1} {$x} {x; y} { x: .y } {x : .y} {{.Names}} {{ x }} { } { . }"),
        ({"y": 1}, "{ x } {\n x\n} { x} { x:04d} {x\u00a0} {x\n} {x y}",
         "{ x } {\n x\n} { x} { x:04d} {x\u00a0} {x\n} {x y}"),
        ({"नाम": 1, "e\u0301te\u0301": 2, "\U0001f600": 3, "cafe\u0301-1": 4, "\u0663": 5},
         "{नाम} {e\u0301te\u0301:02d} {\U0001f600} {cafe\u0301-1} {\u0663}", "1 02 3 4 5"),
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


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "argument",
    ["{x-}", "{x?}", "{x=}", "{x[0]}", "{x['a']}", "{x)}", "{x:{y}}", "{x:{y}d}", "{:{y}}", "{\"x y\" }",
     "{1}", "a{12}b", "{0.}", "{2/}", "{3//}", "{1/.}", "{x!r}", "{x!r:>8}", "{x! y}", "{x:}", "{x:5q}", "{x:n}",
     "{x:c}", "{a: 1}", "{x:.3d}", "{x:1000}", "{x:.1000f}", "{x: }", "{x:0[a]}", "{x.y:__class__}",
     # the same without a name
     "{:d4}", "{:1000d}", "{:n}", "{:5q}", "{:}", "{:?}", "{: }", "{: 5d}", "{:04d }", "{!r}", "{!s:>8}", "{0:04d}",
     "{1:>8}", "{0!r}",
     # GNU parallel's, and its neighbours'
     "{%}", "{0%}", "{%.}", "{= s/a/b/ =}", "{=1 uc =}", "{==}", "{-1}", "{-1/.}", "{##}", "{0#}", "{..}", "{...}",
     "{/..}", "{/...}", "{+/}", "{+.}", "{+..}", "{x..}", "{x/..}", "{x+/}", "{1..}",
     # behind a name in quotes
     '{"x y":05d}', '{"x y":>5}', '{"x":05}', '{"x":}', '{"x":.3f }', '{"x y"!r}', '{"x"!s:>8}', '{"x y"[0]}',
     "{\"x y\"['a']}", '{"x y"?}',
     # with a blank before the end
     "{x }", "{x\t}", "{x. }", "{/. }", "{# }", "{x:04d }"],
)  # fmt: skip
def test_braces_that_mean_nothing_are_refused_with_the_way_to_have_the_text(queue: Queue, argument: str) -> None:
    """They would reach the command as they are, and the tasks would be completed."""
    text = argument[argument.index("{") : argument.rindex("}") + 1]
    with pytest.raises(InvalidArgument) as refused:
        Worker(queue, command=["echo", argument])
    assert f"For the text {text} write {{{text}}}. No task was touched." in str(refused.value)
    assert filled(f"<{{{text}}}>", None) == f"<{text}>"


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("payload", "argument", "reason"),
    [
        ({"t": "7"}, "{t:04d}", "{t:04d} takes numbers, and the field 't' is a text: insert numbers, or write {t}"),
        ({"t": 1.5}, "{t:04d}", "takes whole numbers, and the field 't' is no whole number: insert"),
        ({"t": 5}, "{t:s}", "takes texts, and the field 't' is a number: insert"),
        ({"t": True}, "{t:d}", "takes numbers, and the field 't' is true or false"),
        ({"t": None}, "{t:>5}", "takes texts and numbers, and the field 't' is null"),
        ("7", "{:04d}", "{:04d} takes numbers, and the payload is a text: insert"),
        (7, "{.}", "{.} takes a part of a text, and the payload is a number: write {}"),
        ({"f": "a.b"}, "{.}", "and the payload is an object: name a field of it, as in {name.}"),
        ({"f": [1]}, "{f/.}", "and the field 'f' is a list: write {f}"),
        ({"f": 1}, "{g:04d}", "the payload has no field 'g' for {g:04d} (write {{g:04d}} for the text {g:04d})"),
        ({"t 1": 5}, '{"t 1"/}', """the field 't 1' is a number: write {"t 1"}"""),
        ({"t 1": 5, "f": 1}, "{t 1}", """that name needs quotes: write '{"t 1"}' for its value. If"""),
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
    if "t 1" in argument:
        suits = {"t 1": "a"} if '"' in argument else {"f": "a"}
    queue.insert_many([suits, payload], batch_tasks=2)
    assert Worker(queue, command=["echo", argument]).run() == drained(completed=1, failed=1)
    [letter] = queue.dead()
    assert reason in letter.reason


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("field", "command", "cure"),
    [
        ("tile no", ["echo", "{tile no}"], """write '{"tile no"}' for its value"""),
        ("tile no", ["echo", "{tile", "no}"], """write '{"tile no"}' for its value"""),
        ("tile no", ["echo", "x{tile no.}"], """write '{"tile no"}' for its value"""),
        ("tile no", ["echo", "{tile no:04d}"], """write '{"tile no"}' for its value"""),
        ("2x", ["echo", "{2x}"], """write '{"2x"}' for its value"""),
        ("a/b", ["echo", "{a/b}"], """write '{"a/b"}' for its value"""),
        ("n", ["echo", "{ n}"], "blanks beside the name: write {n} for its value"),
        ("n", ["echo", "{", "n", "}"], "blanks beside the name: write {n} for its value"),
        ("n", ["echo", "{n\u00a0}"], "blanks beside the name: write {n} for its value"),
        ("n", ["echo", "{n\n}"], "blanks beside the name: write {n} for its value"),
        ("n", ["echo", "{\n n\n}"], "blanks beside the name: write {n} for its value"),
        ("n", ["echo", "{ n:05d\u2003}"], "blanks beside the name: write {n:05d} for its value"),
        ("n", ["echo", "{n\u00a0/.}"], "blanks beside the name: write {n} for its value"),
        ("tile no", ["echo", "{tile no }"], """write '{"tile no"}' for its value"""),
        ("tile no", ["echo", "{ tile no}"], """write '{"tile no"}' for its value"""),
        ("tile no", ["echo", "{tile no :04d}"], """write '{"tile no"}' for its value"""),
        ("tile no", ["echo", '{ "tile no" }'], """blanks beside the name: write '{"tile no"}' for its value"""),
        (" n", ["echo", "{ n}"], """write '{" n"}' for its value"""),
        ("it's", ["echo", "{it's}"], """write '{"it'"'"'s"}' for its value"""),
        ('5" disk', ["echo", '{5" disk}'], "give the field another name"),
        ("print $1", ["awk", "{print $1}"], "put it into a script file"),
    ],
)
def test_braces_around_a_field_that_are_no_placeholder_are_refused_before_a_task_is_run(
    queue_factory: QueueFactory, field: str, command: list[str], cure: str
) -> None:
    """They would reach the command as text, and the tasks would be completed."""
    queue = queue_factory(max_attempts=1)
    queue.insert({field: 7})
    with pytest.raises(InvalidArgument, match="around the name of a field of the payload") as refused:
        Worker(queue, command=command).run()
    assert cure in str(refused.value)
    assert str(refused.value).endswith("No task was touched.")
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]
    queue.purge()
    queue.insert_many([{"other": 1}, {field: 7}], batch_tasks=2)
    assert Worker(queue, command=command).run() == drained(completed=1, failed=1)


@pytest.mark.parametrize(
    ("field", "typed"), [("e\u0301te\u0301", "\u00e9t\u00e9"), ("\u00e9", "e\u0301"), ("n", "\uff4e")]
)
def test_a_name_that_looks_like_a_field_and_is_another_is_told(queue: Queue, field: str, typed: str) -> None:
    """It would read "no field é … its fields are é"."""
    queue.insert({field: 7})
    with pytest.raises(InvalidArgument, match="the payload has no field") as refused:
        Worker(queue, command=["echo", f"{{{typed}}}"]).run()
    assert f"The field {field!r} ({field!a}) looks like {typed!r} ({typed!a}), and is another" in str(refused.value)
    with pytest.raises(InvalidArgument, match="the payload has no field") as refused:
        Worker(queue, command=["echo", "{other}"]).run()
    assert "looks like" not in str(refused.value)
    assert queue.status().waiting == 1


def test_a_field_in_quotes_is_kept_out_of_scripts(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="would become part of the program") as refused:
        Worker(queue, command=["sh", "-c", 'echo {"tile no"}'])
    assert """-- sh -c 'echo "$1"' sh '{"tile no"}'""" in str(refused.value)


@pytest.mark.parametrize(
    ("payload", "command"),
    [
        ({"secret-field": "secret"}, ["echo", "{x}"]),
        ({"x": "secret"}, ["echo", "{x:04d}"]),
        ({"x": 1.77531415926}, ["echo", "{x:04d}"]),
        ({"x": 177531415926}, ["echo", "{x.}"]),
        ("/secret/program", ["{}"]),
        ("secret\0", ["echo", "{}"]),
        ({"x": "secret" * 30_000}, ["echo", "{x}"]),
    ],
)
def test_the_reason_of_a_failure_says_nothing_of_what_is_in_a_payload(
    queue_factory: QueueFactory, payload: Any, command: list[str]
) -> None:
    """It lasts longer than the payload, of which a queue may keep nothing."""
    queue = queue_factory(max_attempts=1, keep_payloads=0)
    suits: Any = "true" if isinstance(payload, str) else {"x": "1"} if command[1] == "{x.}" else {"x": 1}
    queue.insert_many([suits, payload], batch_tasks=2)
    assert Worker(queue, command=command).run() == drained(completed=1, failed=1)
    [letter] = queue.dead()
    queue.purge_dead()
    said = f"{letter.reason} {queue.task(letter.id)} {list(queue.history(letter.id))}"
    assert letter.reason
    for word in ("secret", "77531415"):
        assert word not in said


@given(st.text('{}#/.:!$%=+-1x04d rn"\u0301\u00a0', max_size=12))
def test_any_braces_are_refused_or_filled(argument: str) -> None:
    """Whatever is not refused can be filled, or fails for what is in the payload."""
    try:
        placeholders.check([argument])
        filled(argument, {"x": "a", "d": 4, "rn": None, "": 1, "r n": 2})
    except InvalidArgument:
        return
    except placeholders.Unfilled:
        assert placeholders.asks_for_fields([argument])
