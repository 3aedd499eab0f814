"""Payloads in the text of a program: refused, with a line that works; what is let through."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from fsqueue import InvalidArgument, Queue, Worker
from fsqueue.worker import scripts
from tests.waiting import PATIENCE_S
from tests.worker.support import drained

pytestmark = pytest.mark.once


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("command", "typed"),
    [
        ("sh -c 'echo {}'", """-- sh -c 'echo "$1"' sh {}"""),
        ("/bin/bash -euc 'echo {name}'", """-- /bin/bash -euc 'echo "$1"' bash {name}"""),
        ("bash -o pipefail -c 'echo {name} | cat'", """-- bash -o pipefail -c 'echo "$1" | cat' bash {name}"""),
        ("bash --norc -l -c 'echo {}'", """-- bash --norc -l -c 'echo "$1"' bash {}"""),
        ("bash --rcfile x -c -e 'echo {}'", """'echo "$1"' bash {}"""),
        ("srun -n1 sh -c 'echo {}'", """-- srun -n1 sh -c 'echo "$1"' sh {}"""),
        ("sh -c 'echo {x-y}'", """-- sh -c 'echo "$1"' sh {x-y}"""),
        ("sh -c 'cp {in.} {in/} {in}'", """-- sh -c 'cp "$1" "$2" "$3"' sh {in.} {in/} {in}"""),
        ("""sh -c 'echo "{a}" "x {b} y" {a}'""", """-- sh -c 'echo "$1" "x $2 y" "$1"' sh {a} {b}"""),
        ("""sh -c "echo '{a}'" """, """-- sh -c 'echo "$1"' sh {a}"""),
        ("""sh -c 'run "$1" {a}' sh file""", """-- sh -c 'run "$1" "$2"' sh file {a}"""),
        ("sh -c 'echo {a:>8}'", "-- sh -c 'echo \"$1\"' sh {a:>8}"),
        ("env A=b timeout 60 zsh -c {}", "If each payload is a program that you trust, add --allow-in-script"),
        ("find . -exec sh -c 'x {}' ';'", """sh -c '… "$1" …' sh {}"""),
        ("python3 -c 'print({f})'", "-- python3 -c '… sys.argv[1] …' {f}"),
        ("python3.12 -Ic 'print({f})'", "sys.argv[1]"),
        ("python -W ignore -c'print({f})'", "sys.argv[1]"),
        ("perl -lne 'print if {f}'", "$ARGV[0]"),
        ("perl -i.bak -pe 's/{f}//' file", "$ARGV[0]"),
        ("perl -e 1 -e '{f}'", "standard input"),
        ("ruby -rjson -e 'p {f}'", "ARGV[0]"),
        ("node --eval='f({f})'", "process.argv[1]"),
        ("node -pe 'f({f})'", "process.argv[1]"),
        ("php -r 'f({f});'", "$argv[1]"),
        ("Rscript --vanilla -e 'f({f})'", "commandArgs(TRUE)[1]"),
        ("awk '$1 == {f}' file", "-- awk -v f={f} '… f …'"),
        ("gawk -v a=1 -F, --source '{f} == 1'", "-v f={f}"),
        ("awk '{print}'", "For the text {print} write {{print}}"),
        ("sed -n {n}p file", "If it is a number, say so: {n:d}"),
        ("sed -i.bak -e s/a/{f}/ file", "say so"),
        ("psql -d db -c 'select {f}'", "-f FILE"),
        ("mysql -psecret -e 'select {f}'", "so has standard input."),
        ("ssh -p 22 host ./render {tile}", """-- ssh -p 22 host 'set -- "$(jq -r .tile)"; ./render "$1"'"""),
        ("nice ssh host {a} {b}", "has the payload as JSON."),
        ("ssh {host} {a} {b}", "has the payload as JSON, with --stdin (stdin=True)."),
        ("ssh {host} ./render {tile}", """--stdin -- ssh {host} 'set -- "$(jq -r .tile)"; ./render "$1"'"""),
        ("ssh host ./render {tile} {x:d}", """--stdin -- ssh host 'set -- "$(jq -r .tile)"; ./render "$1" {x:d}'"""),
        ("mysql -e 'select {f}' {db}", "so has standard input with --stdin (stdin=True)."),
        ("su user -c 'echo {f}'", "$FSQUEUE_PAYLOAD"),
        ("su - user -s /bin/bash --command='echo {f}'", "$FSQUEUE_PAYLOAD"),
        ("sudo su -c 'echo {f}' - user", "$FSQUEUE_PAYLOAD"),
        ("runuser -l user -c 'echo {f}'", "$FSQUEUE_PAYLOAD"),
        ("su user -- -c 'echo {f}'", "$FSQUEUE_PAYLOAD"),
        ("flock lock -c 'echo {f}'", """flock FILE sh -c '… "$1" …' sh {f}"""),
        ("flock -xw 60 --timeout 60 lock --command 'echo {f}'", "FILE sh -c"),
        ("flock -n lock sh -c 'echo {}'", """-- flock -n lock sh -c 'echo "$1"' sh {}"""),
        ("env -S 'A=b echo {f}'", "-- env PROGRAM {f}"),
        ("env -i -u HOME --chdir / -vS'echo {f}'", "env PROGRAM {f}"),
        ("nice env --split-string='echo {f}'", "env PROGRAM {f}"),
        ("script -qec 'echo {f}' /dev/null", "$FSQUEUE_PAYLOAD"),
        ("script -q /dev/null -c 'echo {f}'", "$FSQUEUE_PAYLOAD"),
        ("watch -gn 1 'ls {f}'", "-- watch -x PROGRAM {f}"),
        ("watch --interval 2 ls {f}", "watch -x PROGRAM {f}"),
        ("xargs -n1 sh -c 'echo {}'", """-- xargs -n1 sh -c 'echo "$1"' sh {}"""),
        ("nice -n 19 timeout -k 60 60 setsid -w bash -c 'echo {}'", """setsid -w bash -c 'echo "$1"' bash {}"""),
    ],
)  # fmt: skip
def test_a_payload_in_a_program_is_refused(queue: Queue, command: str, typed: str) -> None:
    queue.insert({"a": 1})
    with pytest.raises(InvalidArgument, match=r"would become part of the program .*No task was touched") as refused:
        Worker(queue, command=shlex.split(command))
    assert typed.lower() in str(refused.value).lower()
    Worker(queue, command=shlex.split(command), allow_in_script=True)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "command",
    [
        "sh -c 'echo \"$1\"' sh {}",
        "sh -c 'echo ${name}; { echo x; }; awk \"{print $1}\"; echo {a,b} {1..3}' sh {}",
        "sh -c 'echo {{f}} {#} {tile:d} {x:.3f} {x:%}'",
        "bash script.sh -c {}",
        "sh -c",
        "sh -o",
        "sh",
        "cmd -c {}",
        "grep -c {}",
        "python3 -m tool -c {f}",
        "python3 script.py -c {f}",
        "python3 -c 'import sys' -c {f}",
        "perl -lne 'print $ARGV[0]' {f}",
        "awk -v x={f} '$1 == x' {file}",
        "awk -f prog.awk {f}",
        "sed -f prog.sed {f}",
        "sed -n {n:d}p {file}",
        "sed s/a/b/ {file}",
        "ssh {host} uptime",
        "mysql -psecret {db}",
        "./compare awk {f}",
        "echo ssh host {f}",
        "echo watch {f}",
        "su user",
        "flock lock grep -c {f}",
        "flock -n {lock}",
        "flock lock",
        "env A={f} ./render {f}",
        "env -u {f} ./render -S {f}",
        "script -q {file}",
        "watch -gx ls {f}",
        "watch -n {n:d} ls",
        "nice -n 19 timeout 60 setsid ./render {f}",
        "xargs ./render {f}",
    ],
)
def test_what_is_an_argument_is_let_through(command: str) -> None:
    scripts.check_command(shlex.split(command))


@pytest.mark.parametrize(
    "script",
    ["printf '%s\\n' {f}", "printf '%s\\n' \"{f}\"", "printf '%s\\n' '{f}'", "printf '%s\\n' \"[{f}]\" '<{f}>' {g}{f}",
     "printf '%s\\n' \\\"{f}\\\" a\\ {g}"],
)  # fmt: skip
def test_the_line_that_is_shown_does_what_was_meant(script: str) -> None:
    """With payloads that no shell minds, both do the same; with others, only what is shown does."""
    with pytest.raises(InvalidArgument) as refused:
        scripts.check_command(["sh", "-c", script])
    shown = shlex.split(str(refused.value).partition(" an argument: -- ")[2])

    def run(*values: str) -> str:
        pairs = list(zip(("{f}", "{g}"), values, strict=True))
        words = list(shown)
        for name, value in pairs:
            words = [value if word == name else word for word in words]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout

    plain = script.replace("{f}", "one").replace("{g}", "two")
    assert run("one", "two") == subprocess.run(["sh", "-c", plain], capture_output=True, text=True, check=True).stdout
    assert "$(id) 'x' \"y\" ; z" in run("$(id) 'x' \"y\" ; z", "two")


def test_numbers_in_a_script_run(queue: Queue) -> None:
    queue.insert_many([{"n": 7}, {"n": 8}])
    command = ["sh", "-c", 'test "{n:03d}" = "00{n:d}" && test {#} = "$FSQUEUE_TASK_ID"']
    assert Worker(queue, command=command).run() == drained(completed=2)


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("wc -c {} > {}.count", """Have one do so: -- sh -c 'wc -c "$1" > "$1".count' sh {}"""),
        ("a {f} | b", """-- sh -c 'a "$1" | b' sh {f}"""),
        ("echo a; echo b", "-- sh -c 'echo a; echo b'"),
        ("echo $HOME {}", """-- sh -c 'echo $HOME "$1"' sh {}"""),
        ("sh -c 'echo {}'", """Leave the outer quotes away, and hand the payload over: -- sh -c 'echo "$1"' sh {}"""),
        ("wc -c {}", "so that each argument is a word of its own: -- wc -c {}"),
        ("echo 'it", "so that each argument is a word of its own: -- echo 'it"),
    ],
)
def test_a_line_that_is_one_word_is_refused_with_the_way_that_works(line: str, typed: str) -> None:
    with pytest.raises(InvalidArgument, match="one word") as refused:
        scripts.check_program([line])
    assert str(refused.value).endswith(typed)
