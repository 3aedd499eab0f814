"""Functions as tasks: what is registered, what a call may hold, what a worker runs and what it buries."""

from __future__ import annotations

import datetime
import decimal
import json
import multiprocessing
import subprocess
import sys
import uuid
import zoneinfo
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fsqueue
from fsqueue import InvalidArgument, InvalidTask, Queue, QueueNotFound, Task, functions
from fsqueue.errors import Bury
from fsqueue.format.task_file import decode_task, encode_task
from fsqueue.functions import Function

pytestmark = pytest.mark.once

TILES = """
import fsqueue

@fsqueue.task
def render(tile: int, zoom: float = 1.0, *layers: str, self: object = None, **options: object) -> object:
    "Render a tile."
    return [tile, zoom, layers, self, options]

@fsqueue.task(name="fail", delay_s=60)
def failing(why):
    raise KeyError(why)

def private(tile):
    raise AssertionError("not registered")
"""

Import = Callable[..., ModuleType]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Writes a module and imports it: `module("tiles", source)`."""
    monkeypatch.syspath_prepend(tmp_path)
    before, registered = set(sys.modules), dict(functions._registered)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else a module written anew in the same second is not read

    def make(name: str, source: str, load: bool = True) -> ModuleType:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        if load:
            functions.load(name)
        return sys.modules[name] if load else ModuleType(name)

    yield make
    functions._registered.clear()
    functions._registered.update(registered)
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def tiles(module: Import) -> Any:
    return module("tiles", TILES)


# -- registering


def test_a_decorated_function_is_still_that_function(tiles: Any) -> None:
    assert tiles.render(3, self=1) == [3, 1.0, (), 1, {}]
    assert (tiles.render.__name__, tiles.render.__doc__) == ("render", "Render a tile.")
    with pytest.raises(KeyError):
        tiles.failing("x")


def test_it_pickles_by_reference_so_pools_can_map_it(tiles: Any) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(tiles.render, [1, 2]) == [[1, 1.0, (), None, {}], [2, 1.0, (), None, {}]]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("f = fsqueue.task(lambda x: x)", "lambda"),
        ("def f():\n    @fsqueue.task\n    def g(): pass\nf()", "top level"),
        ("class C:\n    @fsqueue.task\n    def g(self): pass", "top level"),
        ("class C:\n    @fsqueue.task\n    @staticmethod\n    def g(): pass", "plain functions"),
        ("@fsqueue.task\nclass C: pass", "plain functions"),
        ("import math\nfsqueue.task(math.sqrt)", "plain functions"),
        ("import functools\nfsqueue.task(functools.partial(print, 1))", "plain functions"),
        ("@fsqueue.task\n@fsqueue.task\ndef f(): pass", "plain functions"),
        ("@fsqueue.task\nasync def f(): pass", "async"),
        ("@fsqueue.task\nasync def f(): yield 1", "async"),
        ("@fsqueue.task\ndef f(): yield 1", "generator"),
        ("fsqueue.task('/scratch/me/q')", "plain functions"),
        ("@fsqueue.task(name='')\ndef f(): pass", "name must be"),
        ("@fsqueue.task(name='a\\nb')\ndef f(): pass", "name must be"),
        ("@fsqueue.task(name=3)\ndef f(): pass", "name must be"),
        ("@fsqueue.task(name='x' * 201)\ndef f(): pass", "name must be"),
        ("@fsqueue.task(delay_s='1')\ndef f(): pass", "delay_s"),
        ("@fsqueue.task(queue=3)\ndef f(): pass", "not a queue's path"),
        ("@fsqueue.task(name='f')\ndef f(): pass\n@fsqueue.task(name='f')\ndef g(): pass", "Two functions"),
    ],
)
def test_what_cannot_be_a_task_is_refused_in_a_sentence(module: Import, source: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        module("bad", f"import fsqueue\n{source}")


def test_other_decorators_below_are_fine_if_they_use_wraps(module: Import) -> None:
    source = """
import functools, fsqueue
def twice(function):
    @functools.wraps(function)
    def both(*args, **kwargs):
        return [function(*args, **kwargs), function(*args, **kwargs)]
    both.name = both.call = "attributes of its own"
    return both

@fsqueue.task
@twice
def f(x): return x
"""
    made = module("wrapped", source)
    assert made.f.call(1).payload == {"call": "wrapped:f", "args": [1]}
    assert functions.handler(["wrapped"])({"call": "wrapped:f", "args": [1]}) == [1, 1]


def test_a_module_that_is_loaded_anew_registers_anew(module: Import) -> None:
    import importlib

    made = module("again", "import fsqueue\n@fsqueue.task\ndef f(): return 1")
    module("again", "import fsqueue\n@fsqueue.task\ndef f(): return 2", load=False)
    importlib.reload(made)
    assert functions.handler(["again"])({"call": "again:f"}) == 2


# -- calls


def test_a_call_is_plain_json(tiles: Any) -> None:
    assert tiles.render.call(3) == Task({"call": "tiles:render", "args": [3]})
    call = tiles.render.call(3, 2.5, "a", self=[None], other={"x": True})
    assert call == Task(
        {"call": "tiles:render", "args": [3, 2.5, "a"], "kwargs": {"self": [None], "other": {"x": True}}}
    )
    assert tiles.failing.call(why="x") == Task({"call": "fail", "kwargs": {"why": "x"}}, delay_s=60)
    assert tiles.failing.on(delay_s=0).call("x").delay_s == 0


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [((), {}, "missing a required argument: 'tile'"), ((1,), {"tile": 1}, "multiple values for argument 'tile'")],
)
def test_arguments_that_do_not_fit_are_refused_at_once(tiles: Any, args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(InvalidTask, match=words):
        tiles.render.call(*args, **kwargs)


Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 1


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"x", r"zoom is of the type builtins.bytes. Pass text \(base64\)"),
        ([{"a": (b"",)}], r"zoom\[0\]\['a'\]\[0\] is of the type builtins.bytes"),
        ({1: 2, "b": 3}, "a dict with the key 1 beside others. Keys are all texts, or all integers"),
        ({1.5: 2}, "a dict with the key 1.5"),
        ({True: 2}, "a dict with the key True"),
        ({None: 2}, "a dict with the key None"),
        ({2**64: 2}, "more than 64 bits"),
        (Path("\udcff"), "which text does not give back"),
        (PurePosixPath("x"), "pathlib.PurePosixPath"),
        (
            datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")),
            "does not give back. Use datetime.timezone.utc",
        ),
        (datetime.datetime(2026, 1, 1, fold=1), "does not give back"),  # noqa: DTZ001
        (datetime.time(1), "datetime.time"),
        (Point(1, 2), "Point"),
        (numpy.array([1]), r"numpy.ndarray. Pass array.tolist\(\), or the path of a file"),
        (numpy.float64("nan"), "zoom is nan. Pass None, or a text"),
        (numpy.datetime64("2026-01-01"), "numpy.datetime64"),
        (numpy.complex64(1), "numpy.complex64"),
        (numpy.longdouble(1), "numpy.longdouble"),
        ({numpy.int64(1): 2}, "a dict with the key"),
        ({1}, "builtins.set"),
        (float("nan"), "zoom is nan"),
        ([float("-inf")], r"zoom\[0\] is -inf"),
        (2**64, "more than 64 bits"),
        (-(2**63) - 1, "more than 64 bits"),
        ({"\ud800": 2}, "a dict with the key"),
        ("\udc00", "surrogate"),
        (object(), "builtins.object"),
        (uuid.UUID(int=1), "uuid.UUID"),
        (decimal.Decimal(1), "decimal.Decimal"),
        (Colour.RED, "Colour"),
        (OrderedDict(), "OrderedDict"),
        (1j, "builtins.complex"),
        (CYCLE, "contains itself"),
        (print, "builtin_function"),
    ],
)
def test_what_json_would_not_give_back_is_refused_by_name(tiles: Any, value: Any, words: str) -> None:
    with pytest.raises(InvalidTask, match=words):
        tiles.render.call(1, value)
    with pytest.raises(InvalidTask, match=words):
        tiles.render.call(1, zoom=value)


def test_the_name_that_is_said_is_the_caller_s(tiles: Any) -> None:
    with pytest.raises(InvalidTask, match=r"argument layers\[1\] is of the type builtins.set"):
        tiles.render.call(1, 2, "a", set())
    with pytest.raises(InvalidTask, match=r"argument colour is of the type builtins.set"):
        tiles.render.call(1, colour=set())


def test_a_call_by_place_alone_gives_as_many_arguments_as_the_function_takes() -> None:
    def few(one: int, other: int = 0) -> None: ...
    def many(one: int, *others: int) -> None: ...
    def named(one: int, *, other: int) -> None: ...
    def both(one: int, /, *, other: int = 0) -> None: ...

    for function, fits in ((few, {1, 2}), (many, {1, 2, 3, 4}), (named, set()), (both, {1})):
        call = functions.Function(function, "tiles:one", None, 0).call
        for count in range(5):
            if count in fits:
                assert call(*range(count)).payload == {"call": "tiles:one", "args": [*range(count)]}
            else:
                with pytest.raises(InvalidTask, match="tiles:one does not take these arguments"):
                    call(*range(count))
    assert functions.Function(named, "tiles:one", None, 0).call(1, other=2).payload["kwargs"] == {"other": 2}


numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@fsqueue.task(name="tests:echo")
def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


def arrived(task: Task) -> Any:
    """What the function of a call gets, after all that happens to a payload on disk."""
    payload = decode_task(encode_task(task.payload, 2**20))["payload"]
    kept = json.dumps(payload)
    got = functions.Handler([], {"tests:echo": echo})(payload)
    assert json.dumps(payload) == kept, "a payload stays as it was leased"
    return got


def typed(value: Any) -> Any:
    """A value with all types inside spelled out: 1 is True and 1.0 otherwise, and 0.0 is -0.0."""
    if isinstance(value, dict):
        return "dict", [(key, typed(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [typed(one) for one in value]
    return type(value), repr(value)


@given(st.lists(json_values, max_size=4), st.dictionaries(st.text(), json_values, max_size=4))
def test_arguments_arrive_as_they_were_given(args: list[Any], kwargs: dict[str, Any]) -> None:
    task = echo.call(*args, **kwargs)
    assert "types" not in task.payload
    assert typed(arrived(task)) == typed([tuple(args), kwargs])


strange = st.recursive(
    json_values
    | st.binary()
    | st.floats()
    | st.integers()
    | st.decimals()
    | st.text(st.characters())
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(datetime.UTC) | st.timezones())
    | st.text().map(Path),
    lambda inner: (
        st.tuples(inner)
        | st.lists(inner)
        | st.sets(st.integers())
        | st.dictionaries(st.integers(), inner)
        | st.dictionaries(st.text("/~01a"), inner)
        | st.dictionaries(st.integers() | st.text(), inner)
    ),
    max_leaves=8,
)


@given(strange)
def test_anything_is_refused_or_arrives_as_it_was_given(value: Any) -> None:
    try:
        task = echo.call(value)
    except InvalidTask:
        return
    assert typed(arrived(task)) == typed([(value,), {}])


@pytest.mark.parametrize(
    ("value", "plain", "types"),
    [
        ((1, (2,)), [1, [2]], {"/args/0": "tuple", "/args/0/1": "tuple"}),
        ({1: {2: (3,)}, -7: 0}, {"1": {"2": [3]}, "-7": 0},
         {"/args/0": "integer keys", "/args/0/1": "integer keys", "/args/0/1/2": "tuple"}),
        ({"a/b~": datetime.date(2026, 1, 2)}, {"a/b~": "2026-01-02"}, {"/args/0/a~1b~0": "date"}),
        ([datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)], ["2026-01-02T03:04:05.000006+00:00"],
         {"/args/0/0": "datetime"}),
        (Path("a/b.c"), "a/b.c", {"/args/0": "path"}),
    ],
)  # fmt: skip
def test_what_json_lacks_is_named_beside_plain_json(value: Any, plain: Any, types: Any) -> None:
    task = echo.call(value)
    assert task.payload == {"call": "tests:echo", "args": [plain], "types": types}
    assert typed(arrived(task)) == typed([(value,), {}])
    assert typed(arrived(echo.call(**{"a/b~1": value}))) == typed([(), {"a/b~1": value}])


@pytest.mark.parametrize(
    ("value", "expected"),
    [(numpy.int64(5), 5), (numpy.uint8(5), 5), (numpy.float32(0.1), 0.10000000149011612), (numpy.float64(0.1), 0.1),
     (numpy.bool_(True), True), (numpy.str_("a"), "a"), ([numpy.int16(-1)], [-1])],
)  # fmt: skip
def test_numbers_of_numpy_come_as_those_of_python(value: Any, expected: Any) -> None:
    task = echo.call(value)
    assert typed(task.payload["args"]) == typed([expected])
    assert value == expected
    assert typed(arrived(task)) == typed([(expected,), {}])


@pytest.mark.parametrize(
    "types",
    [[], {"/args/1": "tuple"}, {"/args": "tuple"}, {"": "tuple"}, {"x/args/0": "tuple"}, {"/args/0": "set"},
     {"/args/0": None}, {"/args/0": "date"}, {"/args/0/0": "date"}, {"/args/0/x": "tuple"}, {"/args/0/-1": "tuple"},
     {"/args/0": "integer keys"}, {"/kwargs/a": "integer keys"}, {"/kwargs/a/b/c": "tuple"}, {"/call/0": "path"}],
)  # fmt: skip
def test_types_that_do_not_fit_the_arguments_make_a_dead_letter(types: Any) -> None:
    payload = {"call": "tests:echo", "args": [["x"]], "kwargs": {"a": {"01": 1, "x": 2}}, "types": types}
    with pytest.raises(Bury, match="the payload is no call of a function: "):
        functions.Handler([], {"tests:echo": echo})(payload)


def test_an_argument_as_deep_as_is_allowed_can_be_stored(queue: Queue) -> None:
    deep: Any = 0
    for _ in range(functions.DEPTH_MAX):
        deep = [deep]
    queue.insert(echo.call(deep))
    assert queue.lease()[0].payload["args"] == [deep]
    with pytest.raises(InvalidTask, match="levels deep"):
        echo.call([deep])


# -- inserting


def test_calls_are_inserted_like_any_task(tiles: Any, queue: Queue) -> None:
    queue.insert(tiles.render.call(1))
    assert queue.insert_many(tiles.render.call(n) for n in range(10)) == 10
    assert (queue.status().waiting, queue.status().delayed) == (11, 0)
    queue.insert(tiles.failing.call("x"))
    assert queue.status().delayed == 1


def test_delay_inserts_into_the_queue_that_was_said(module: Import, queue: Queue) -> None:
    made = module("q", f"import fsqueue\n@fsqueue.task(queue={str(queue.path)!r})\ndef f(x): pass")
    ref = made.f.delay(1)
    assert queue.task(ref.id).payload == {"call": "q:f", "args": [1]}
    other = Queue.create(queue.path.with_name("other"))
    bound = made.f.on(f"fq://{other.path}")
    bound.delay(2), bound.on(delay_s=60).delay(3), made.f.on(other).delay(4)
    assert (other.status().waiting, other.status().delayed, queue.status().waiting) == (2, 1, 1)


def test_without_a_queue_or_with_one_that_is_not_there_delay_says_so(tiles: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="has no queue"):
        tiles.render.delay(1)
    with pytest.raises(QueueNotFound):
        tiles.render.on(tmp_path / "nowhere").delay(1)
    with pytest.raises(InvalidArgument, match="not a queue's path"):
        tiles.render.on(3)
    assert not (tmp_path / "nowhere").exists()


# -- running


def test_a_handler_runs_what_its_modules_register(tiles: Any, module: Import) -> None:
    handle = functions.handler(["tiles"])
    assert handle({"call": "tiles:render", "args": [3], "kwargs": {"zoom": 2, "x": 1}}) == [3, 2, (), None, {"x": 1}]
    with pytest.raises(KeyError):  # what the function raises goes through
        handle({"call": "fail", "args": ["x"]})


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (None, "no call"),
        (3, "no call"),
        ("tiles:render", "no call"),
        (b"tiles:render", "no call"),
        ([], "no call"),
        ({}, "no call"),
        ({"tile": 3}, "no call"),
        ({"call": 3}, "no call"),
        ({"call": ["tiles:render"]}, "no call"),
        ({"call": "tiles:render", "args": {}}, "no call"),
        ({"call": "tiles:render", "args": None}, "no call"),
        ({"call": "tiles:render", "kwargs": [1]}, "no call"),
        ({"call": "tiles:render", "args": [3], "more": 1}, "no call"),
        ({"call": "tiles:rendr"}, "no function of the call's name, only those of tiles"),
        ({"call": "tiles:private", "args": [1]}, "no function"),
        ({"call": "render", "args": [1]}, "no function"),
        ({"call": "tiles:render.__globals__"}, "no function"),
        ({"call": "os:system", "args": ["touch pwned"]}, "no function"),
        ({"call": "builtins:eval", "args": ["1"]}, "no function"),
        ({"call": "tests:echo"}, "no function"),  # registered, but by a module that was not loaded
        ({"call": "tiles:render"}, "missing a required argument: 'tile'"),
        ({"call": "fail", "args": [1, 2]}, "too many positional"),
        ({"call": "fail", "kwargs": {"y": 1}}, "missing a required argument: 'why'"),
        ({"call": "fail", "args": [1], "kwargs": {"y": 1}}, r": one has a name that no parameter of \(why\) has$"),
    ],
)
def test_what_no_attempt_can_mend_is_buried_with_a_reason(tiles: Any, payload: Any, words: str) -> None:
    with pytest.raises(Bury, match=words):
        functions.handler(["tiles"])(payload)


def test_a_type_error_of_the_function_is_its_own_and_not_buried(module: Import) -> None:
    module("typing_", "import fsqueue\n@fsqueue.task\ndef f(x): return x + 'a'")
    with pytest.raises(TypeError):
        functions.handler(["typing_"])({"call": "typing_:f", "args": [1]})


def test_a_function_belongs_to_the_module_that_defines_it(tiles: Any, module: Import) -> None:
    module("user", "import fsqueue\nfrom tiles import render\n@fsqueue.task\ndef f(): pass")
    with pytest.raises(Bury, match="no function of the call's name, only those of user"):
        functions.handler(["user"])({"call": "tiles:render", "args": [3]})
    assert functions.handler(["user", "tiles"])({"call": "tiles:render", "args": [3]})[0] == 3
    module("reexports", "from tiles import render", load=False)
    with pytest.raises(InvalidArgument, match=r"registers no function\. What it imports belongs to tiles: load that"):
        functions.handler(["reexports"])


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([], "at least one"),
        ("tiles", "at least one"),
        (["no_such_module"], "no module 'no_such_module'.*PYTHONPATH"),
        (["tiles.render"], "no module 'tiles.render'"),
        (["tiles.py"], r"no module 'tiles.py'.*without .py"),
        (["no_such_package.inner"], "no module 'no_such_package'"),
        (["./tiles.py"], "not the name of a module"),
        (["tiles:render"], "not the name of a module"),
        ([""], "not the name of a module"),
        ([".tiles"], "not the name of a module"),
        ([3], "not the name of a module"),
        (["empty"], "empty registers no function. Put @fsqueue.task"),
        (["raises"], r"raises cannot be imported: ZeroDivisionError: .*raises.py:2"),
        (["needs"], r"needs cannot be imported: ModuleNotFoundError: .*missing_thing"),
        (["script"], "script cannot be imported: SystemExit: 3"),
        (["broken"], "broken cannot be imported: SyntaxError"),
    ],
)
def test_modules_that_cannot_be_loaded_are_said_before_any_task_is_touched(
    tiles: Any, module: Import, modules: Any, words: str
) -> None:
    module("empty", "", load=False)
    module("raises", "\n1 / 0", load=False)
    module("needs", "import missing_thing", load=False)
    module("script", "import sys; sys.exit(3)", load=False)
    module("broken", "def", load=False)
    with pytest.raises(InvalidArgument, match=words):
        functions.handler(modules)


# -- in a worker


@pytest.mark.parametrize("how", [{"processes": 2}, {"threads": 2}])
def test_a_worker_runs_calls_and_buries_what_is_none(tiles: Any, queue: Queue, how: dict[str, int]) -> None:
    good = queue.insert(tiles.render.call(3, zoom=2))
    queue.insert_many([{"call": "tiles:rendr"}, {"tile": 3}, {"call": "tiles:render", "kwargs": {"title": 3}}, b"x"])
    report = fsqueue.Worker(queue, load=["tiles"], **how).run()
    assert (report.completed, report.failed) == (1, 4)
    assert queue.task(good.id).result == [3, 2, [], None, {}]
    reasons = sorted(letter.reason.split(":")[0] for letter in queue.dead())
    assert reasons == [
        "the payload is no call of a function",
        "the payload is no call of a function",
        "this worker has no function of the call's name, only those of tiles",
        "tiles",
    ]
    assert all(letter.attempt == 1 for letter in queue.dead())


def test_a_worker_that_cannot_load_its_module_touches_no_task(tiles: Any, queue: Queue) -> None:
    queue.insert(tiles.render.call(3))
    with pytest.raises(InvalidArgument, match=r"^This Python finds no module 'tilez'") as caught:
        fsqueue.Worker(queue, load=["tilez"]).run()
    assert "Traceback" not in str(caught.value)
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]


# -- scripts

SCRIPT = """
import sys, fsqueue

@fsqueue.task
def f(x):
    return x

@fsqueue.task(name="{name}:g")
def g(x):
    return [x]

if __name__ == "__main__":
    print(f(1), g.call(2).payload["call"])
    try:
        print(f.call(1).payload["call"])
    except fsqueue.InvalidTask as error:
        print(error)
    print(fsqueue.functions.handler(["{name}"])(g.call(2).payload))
"""


def test_a_function_of_the_script_itself_cannot_be_queued_unless_its_name_says_where_it_is(
    module: Import, tmp_path: Path
) -> None:
    module("prog", SCRIPT.format(name="prog"), load=False)
    ran = subprocess.run([sys.executable, "prog.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second, third = ran.stdout.splitlines()
    assert (first, third) == ("1 prog:g", "[2]")
    assert "in the script that is running" in second
    assert "name='module:f'" in second


def test_a_module_run_with_dash_m_is_known_by_its_name(module: Import, tmp_path: Path) -> None:
    module("pack.prog", SCRIPT.format(name="pack.prog"), load=False)
    ran = subprocess.run([sys.executable, "-m", "pack.prog"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["1 pack.prog:g", "pack.prog:f", "[2]"]


def test_function_is_what_the_decorator_makes(tiles: Any) -> None:
    assert isinstance(tiles.render, Function)
    assert repr(tiles.render) == "<fsqueue.task tiles:render>"
