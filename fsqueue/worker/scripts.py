"""Read a command line: find placeholders in the text of a program (`sh -c 'echo {f}'`), and say how to hand the payload
over instead; tell whether it works on other nodes than its worker, or may go on after its worker's death.

A payload that becomes part of a program can be a command: a user who may insert tasks could run anything as the
worker's user. The list of programs is not complete, and cannot be. docs/sharing.md, "Commands and payloads of others",
says so.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fsqueue.cluster import slurm
from fsqueue.errors import InvalidArgument
from fsqueue.filesystem import is_program
from fsqueue.worker import placeholders
from fsqueue.worker.placeholders import Placeholder


@dataclass(frozen=True, slots=True)
class _Language:
    """How a program is told another program's text on its command line."""

    names: re.Pattern[str]
    """Matches what it is called, without its directory."""
    letters: str = ""
    """The one-letter options whose argument is the text."""
    words: tuple[str, ...] = ()
    """The long options whose argument is the text."""
    takes: str = ""
    """The one-letter options that have another argument."""
    takes_words: tuple[str, ...] = ()
    """The long options that have another argument, as the next word."""
    attached: str = ""
    """The one-letter options that have an argument in the same word, or none."""
    permutes: bool = False
    """Whether options may follow arguments."""
    to_shell: bool = False
    """Whether its arguments are a shell's, also those behind `--`."""
    after_first: tuple[str, ...] = ()
    """The options whose argument is the text if they follow the first argument that is no option."""
    ends: bool = False
    """Whether all that follows the text is for the program in it."""
    files: tuple[str, ...] = ()
    """The options with whose argument no text follows: it is in a file."""
    is_first: bool = False
    """Whether the first argument that is no option is the text, if no option was."""
    is_rest: bool = False
    """Whether the first argument and all that follows it are the text, or after a host what follows that."""
    has_host: bool = False
    """Whether the first argument is a host, whose shell reads the text."""
    instead: str = ""
    """How the text reads an argument; {f} is the placeholder."""


def _named(names: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{names})(?:-?[\d.]+)?")


_SHELL = _Language(_named("sh|bash|dash|ash|ksh|mksh|zsh|fish|csh|tcsh"), letters="c", words=("--command",), takes="oO")
_LANGUAGES = (
    _Language(_named("python|pypy"), letters="c", takes="WX", files=("-m",), ends=True,
              instead="{program} -c '… sys.argv[1] …' {f}"),
    _Language(_named("perl"), letters="eE", takes="I", attached="MmiCDxF", instead="{program} -e '… $ARGV[0] …' {f}"),
    _Language(_named("ruby"), letters="e", takes="rIEC", attached="FKTxi", instead="{program} -e '… ARGV[0] …' {f}"),
    _Language(_named("node|nodejs|bun"), words=("-e", "-p", "-pe", "--eval", "--print"), takes="rC",
              instead="{program} -e '… process.argv[1] …' {f}"),
    _Language(_named("php"), letters="rBRE", takes="dcfFz", ends=True, instead="{program} -r '… $argv[1] …' -- {f}"),
    _Language(_named("Rscript|R"), letters="e", instead="{program} -e '… commandArgs(TRUE)[1] …' {f}"),
    _Language(_named("julia"), letters="eE", words=("--eval", "--print"), takes="JpLHtC",
              instead="{program} -e '… ARGS[1] …' {f}"),
    _Language(_named("lua|luajit"), letters="e", takes="l"),
    _Language(_named("psql"), letters="c", words=("--command",), takes="dfhpUvFLoPRT",
              instead="{program} -v f={f} -f FILE, with :'f' in the file"),
    _Language(_named("mysql|mariadb"), letters="e", words=("--execute",), takes="hPuDS", attached="p"),
    _Language(_named("awk|gawk|mawk|nawk|original-awk"), letters="e", words=("--source",), takes="vFi",
              files=("-f", "--file", "-E", "--exec"), is_first=True, instead="{program} -v f={f} '… f …'"),
    _Language(_named("sed|gsed"), letters="e", words=("--expression",), takes="l", attached="i",
              files=("-f", "--file"), is_first=True),
    _Language(_named("ssh"), takes="BbcDEeFIiJLlmOopQRSWw", is_rest=True, has_host=True),
    _Language(_named("watch"), takes="nq", takes_words=("--interval", "--equexit"), files=("-x", "--exec"),
              is_rest=True, instead="{program} -x PROGRAM {f}"),
    _Language(_named("su|runuser"), letters="c", words=("--command", "--session-command"), takes="gGsuUw",
              permutes=True, to_shell=True),
    _Language(_named("script"), letters="c", words=("--command",), takes="BEIOomT", attached="t", permutes=True),
    _Language(_named("flock"), takes="wE", takes_words=("--wait", "--timeout", "--conflict-exit-code"),
              after_first=("-c", "--command"), instead="{program} FILE sh -c '… \"$1\" …' sh {f}"),
    _Language(_named("env"), letters="S", words=("--split-string",), takes="uC", takes_words=("--unset", "--chdir"),
              instead="{program} PROGRAM {f}"),
)  # fmt: skip
_WRAPPERS = re.compile(
    "env|nice|ionice|timeout|time|nohup|setsid|stdbuf|unbuffer|srun|mpirun|mpiexec|sudo|doas|xargs|find|parallel|numactl"
    "|taskset|chrt|flock|watch|script|su|runuser|exec|command|singularity|apptainer|docker|podman|conda|micromamba|strace|perf|sshpass"
)
"""Matches programs that run the command in their arguments."""
_LAUNCHER = re.compile(
    r"(?:^|[\s;&|(`'\"/])"
    r"(?:srun|(?:mpirun|mpiexec)(?:\.(?:openmpi|mpich|hydra|slurm|lsf|mpt)|_rsh|_mpt)?|orterun|prun|prterun|oshrun|aprun"
    r"|jsrun|lrun|ibrun|ccc_mprun)"
    r"(?=$|[\s;&|)])"
)
"""Matches a program that starts processes on other nodes, alone or in a script."""

_ELSEWHERE = re.compile(
    r"(?:^|[\s;&|(`'\"/])"
    r"(?:ssh|rsh|mosh|pdsh|clush|oarsh|docker|nerdctl|ctr|crictl|kubectl|sbatch|salloc|qsub|qrsh|bsub|blaunch|pbsdsh"
    r"|condor_submit|oarsub|pjsub|llsubmit|msub|ccc_msub|systemd-run|machinectl|tmux|at)"
    r"(?=$|[\s;&|)])"
)
"""Matches another program whose work is done by processes that are not below it, alone or in a script."""
_FILES_OF_SHELLS = ("--rcfile", "--init-file")
_SHELL_SIGNS = re.compile(r"[|&;<>`\n]|\$[\w({]")
"""Matches what a shell reads as more than words."""


@dataclass(frozen=True, slots=True)
class Exposed:
    """A text of a program that payloads would become part of."""

    command: Sequence[str]
    language: _Language
    at: int
    """The word of the program."""
    text_at: int
    """The word of the text."""
    within: tuple[Placeholder, ...]
    """The placeholders in it, each once."""

    @property
    def program(self) -> str:
        return os.path.basename(self.command[self.at])


def check_command(command: Sequence[str], allow_in_script: bool = False) -> None:
    """Refuse a command whose placeholders mean nothing, or by which a payload becomes part of a program.

    InvalidArgument says what to type instead. Nothing is looked up.
    """
    placeholders.check(command)
    found = None if allow_in_script else next(exposed(command), None)
    if found is None:
        return
    first = found.within[0].text
    whole = found.command[found.text_at] == first
    wanted = "If each payload is a program that you trust, add" if whole else "If you trust every payload, add"
    raise InvalidArgument(
        f"The payload would become part of the program that {found.program} runs, at {first} in "
        f"{_cut(found.command[found.text_at])!r}: a user who inserts tasks could run any command as you. No task was "
        f"touched. {wanted} --allow-in-script (allow_in_script=True). For the text {first} write "
        f"{placeholders.escaped(first)}. {_instead(found)}"
    )


def exposed(command: Sequence[str]) -> Iterator[Exposed]:
    """Yield the texts of programs in a command that payloads would become part of. InvalidArgument."""
    wraps = bool(command) and _WRAPPERS.fullmatch(os.path.basename(command[0])) is not None
    for at, word in enumerate(command):
        name = os.path.basename(word)
        for language in (_SHELL, *_LANGUAGES):
            if language.names.fullmatch(name) and (at == 0 or wraps or not (language.is_first or language.is_rest)):
                for text_at in _texts(language, command, at):
                    if text_at < len(command) and (within := _unsafe(command[text_at])):
                        yield Exposed(command, language, at, text_at, tuple(within))


def _unsafe(text: str) -> dict[Placeholder, None]:
    """Return the placeholders in a program's text that may stand for anything: each once, in order.

    A number is digits, and a task that has another payload fails.
    """
    return dict.fromkeys(one for one in placeholders.in_argument(text) if not (one.is_id or one.is_number))


def check_program(argv: Sequence[str]) -> None:
    """Refuse a command line that was quoted as a whole, so that its only word is not a program. InvalidArgument."""
    word = argv[0]
    if len(argv) > 1 or not re.search(r"\s", word.strip()) or is_program(word):
        return
    if any(re.search(r"\s", os.path.dirname(one.decode(errors="replace"))) for one in _before_placeholder(word)):
        return  # "/my programs/{name}"
    raise InvalidArgument(
        f"The command {word!r} is one word, and no program has that name. No task was touched. "
        f"{_as_words(word.strip())}"
    )


def _before_placeholder(word: str) -> Iterator[bytes]:
    first = placeholders.parts(word)[0]
    if isinstance(first, bytes):
        yield first


def _as_words(line: str) -> str:
    """Say how to type a line of a shell as a command."""
    if _SHELL_SIGNS.search(line):
        return f"Only a shell reads it. Have one do so: -- {_handed_over(['sh', '-c', line], 0, 2)}"
    try:
        words = shlex.split(line)
        found = next(exposed(words), None)
    except (ValueError, InvalidArgument):
        found = None
    if found is not None and found.language is _SHELL:
        return (
            f"Leave the outer quotes away, and hand the payload over: -- {_handed_over(words, found.at, found.text_at)}"
        )
    return f"Leave the quotes away, so that each argument is a word of its own: -- {line}"


def _texts(language: _Language, command: Sequence[str], at: int) -> Iterator[int]:
    """Yield which words of a command are text of a program, if the word `at` is one of the language's programs."""
    is_shell = language is _SHELL
    has_text = is_told = False
    position = at + 1
    while position < len(command) and not is_told:
        word = command[position]
        if word == "-" or not word.startswith(("-", "+") if is_shell else "-"):
            if not language.permutes:
                break
            position += 1
            continue
        position += 1
        name, equals, _ = word.partition("=")
        is_told = word == "--" and not language.to_shell
        if name in language.files:
            return
        if name in language.words:
            yield position - 1 if equals else position
            has_text = True
            position += not equals
        elif word in language.takes_words or (word in _FILES_OF_SHELLS and is_shell):
            position += 1
        elif not word.startswith("--"):
            for letter_at, letter in enumerate(word[1:], 1):
                is_last = letter_at == len(word) - 1
                if f"-{letter}" in language.files:
                    return
                if letter in language.attached:
                    break
                if letter in language.letters and is_shell:
                    has_text = True  # the text is the first word that is no option
                elif letter in language.letters:
                    yield position if is_last else position - 1
                    if language.ends:
                        return
                    has_text = True
                    position += is_last
                    break
                elif letter in language.takes:
                    position += is_last
                    break
    if is_shell:
        yield from range(position, position + has_text)
    elif language.is_rest:
        yield from range(position + language.has_host, len(command))
    elif command[position + 1 : position + 2] and command[position + 1] in language.after_first:
        yield position + 2
    elif language.is_first and not has_text:
        yield position


def _instead(found: Exposed) -> str:
    """Say how to hand the payload over."""
    first = found.within[0].text
    is_whole = found.command[found.text_at] == first
    if found.language is _SHELL and not is_whole:
        if os.path.basename(found.command[0]) == "find":  # its own arguments follow those of what it starts
            return f"Else hand it over as an argument: {found.program} -c '… \"$1\" …' {found.program} {first}"
        return f"Else hand it over as an argument: -- {_handed_over(found.command, found.at, found.text_at)}"
    if found.language.has_host:
        return _from_standard_input(found)
    if found.language.instead and (found.language.is_rest or not is_whole):
        line = found.language.instead.replace("{program}", found.program).replace("{f}", first)
        return f"Else hand it over as an argument: -- {line}"
    if found.language.is_first and not is_whole:
        inside = found.within[0].typed_name
        return f"If it is a number, say so: {{{inside}:d}} takes nothing else."
    others = [word for at, word in enumerate(found.command) if at != found.text_at]
    with_it = _stdin(others)
    return f"$FSQUEUE_PAYLOAD has the payload, too, and so has standard input{with_it and f' {with_it}'}."


def _from_standard_input(found: Exposed) -> str:
    """Say how a shell on another host reads the payload from standard input."""
    told = "The shell on that host would read it. Else send it over standard input, which has the payload as JSON"
    text_at = next(_texts(found.language, found.command, found.at))
    line, added = _with_arguments(" ".join(found.command[text_at:]), 1)
    name = found.within[0].name
    if len(added) > 1 or found.within[0].part or (name and not name.isidentifier()):
        with_it = _stdin(found.command[:text_at])
        return f"{told}{with_it and f', {with_it}'}."
    command = [*found.command[:text_at], f'set -- "$(jq -r .{name})"; {line}']
    return f"{told}: {'--stdin ' if _stdin(command) else ''}-- {_shown(command)}"


def _stdin(command: Sequence[str]) -> str:
    """Say what a command needs to find the payload on standard input; "" if nothing."""
    return "with --stdin (stdin=True)" if placeholders.hand_over(command) else ""


def _handed_over(command: Sequence[str], at: int, text_at: int) -> str:
    """Return a command of a shell with its script's placeholders as arguments: `sh -c 'echo "$1"' sh {f}`."""
    after = list(command[text_at + 1 :])
    script, added = _with_arguments(command[text_at], max(1, len(after)))
    if added and not after:
        after = [os.path.basename(command[at])]  # "$0"
    return _shown([*command[:text_at], script, *after, *added])


def _with_arguments(script: str, first: int) -> tuple[str, list[str]]:
    """Return a shell's script with "$1" in place of its placeholders, the first of them `first`, and what they are."""
    pieces: list[str | Placeholder] = [
        os.fsdecode(one) if isinstance(one, bytes) else one for one in placeholders.parts(script)
    ]
    added: list[str] = []
    made = quote = ""
    for at, one in enumerate(pieces):
        if isinstance(one, str):
            made += one
            quote = _quote_after(one, quote)
        elif one.is_id or one.is_number:
            made += one.text
        else:
            if one.text not in added:
                added.append(one.text)
            number = first + added.index(one.text)
            value = f"${number}" if number < 10 else f"${{{number}}}"
            after = pieces[at + 1]  # text, perhaps none: there always is some
            if quote and isinstance(after, str) and after.startswith(quote) and made.endswith(quote):
                made, pieces[at + 1], quote = made[:-1], after[1:], ""  # the quotes are around it alone
            made += {"": f'"{value}"', '"': value, "'": f"'\"{value}\"'"}[quote]
    return made, added


def _quote_after(text: str, quote: str) -> str:
    """Return in which quotes a shell is behind a text, if it was in `quote` before it."""
    is_escaped = False
    for sign in text:
        if is_escaped:
            is_escaped = False
        elif sign == "\\" and quote != "'":
            is_escaped = True
        elif sign == quote:
            quote = ""
        elif not quote and sign in "'\"":
            quote = sign
    return quote


_BARE: Callable[[str], re.Match[str] | None] = re.compile(r"(?:[\w./:@%+=-]|\{[\w./:#<>=+%-]*\})+").fullmatch


def _shown(words: Sequence[str]) -> str:
    """Return words as they are typed."""
    return " ".join(word if _BARE(word) else shlex.quote(word) for word in words)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


def names_launcher(command: Sequence[str]) -> bool:
    """Tell whether a command, or a script in it, names a program that starts processes on other nodes."""
    return any(_LAUNCHER.search(word) for word in command)


def may_leave_node(command: Sequence[str]) -> bool:
    """Tell whether a command may run on other nodes: it says so, or one worker has a job of several nodes to itself.

    A hint: what another program starts elsewhere cannot be seen from here.
    """
    return names_launcher(command) or slurm.is_alone_on_nodes()


def may_outlive_worker(command: Sequence[str]) -> bool:
    """Tell whether a command's work may go on when all processes below the worker have ended.

    It says so, or may run on other nodes. A hint: what a script that it names starts cannot be seen from here.
    """
    return may_leave_node(command) or any(_ELSEWHERE.search(word) for word in command)
