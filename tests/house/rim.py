"""The rim: where the code touches what others may have a hand in, found by reading the source (docs/security.md).

A place is a function, `module.function`; what it does there is one of KINDS. A mention counts as a call: what is handed
on as `partial(fs.unlink, path)` is called later.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.house.source import TOP, parse

DELETES, MOVES, MAKES, WRITES, STARTS, HANDS, SIGNALS, PRINTS = (
    "deletes", "moves", "makes", "writes", "starts", "hands on", "signals", "prints",
)  # fmt: skip
KINDS = {
    DELETES: "removes a name, or a tree",
    MOVES: "gives a file or tree another name, or a second one",
    MAKES: "makes a file or directory",
    WRITES: "opens for writing, appends, overwrites, sets times",
    STARTS: "starts a program, or loads one into this process",
    HANDS: "hands a process a descriptor or environment variables",
    SIGNALS: "sends a signal to a process",
    PRINTS: "prints, or logs",
}

OF_OS = {
    DELETES: {"unlink", "remove", "rmdir", "removedirs"},
    MOVES: {"rename", "renames", "replace", "link", "symlink"},
    MAKES: {"mkdir", "makedirs", "mkfifo", "mknod", "memfd_create"},
    WRITES: {"write", "writev", "pwrite", "pwritev", "truncate", "ftruncate", "utime", "chmod", "fchmod", "chown",
             "fchown", "lchown", "sendfile", "copy_file_range", "posix_fallocate", "setxattr", "fdopen", "open"},
    STARTS: {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp",
             "execvpe", "execl", "execle", "execlp", "execlpe", "spawnv", "spawnl", "startfile"},
    HANDS: {"set_inheritable", "environ", "environb", "putenv", "unsetenv", "getenv", "dup2", "POSIX_SPAWN_DUP2"},
    SIGNALS: {"kill", "killpg"},
}  # fmt: skip
"""Attributes of `os`. `open` counts where it may write."""

OF_MODULES = {
    "subprocess": STARTS, "multiprocessing": STARTS, "ctypes": STARTS, "importlib": STARTS, "runpy": STARTS,
    "pty": STARTS, "shutil": WRITES, "tempfile": MAKES, "mmap": WRITES, "filelock": WRITES,
}  # fmt: skip
"""Whatever else a function uses of these modules is of this kind."""
HARMLESS = {
    "subprocess.PIPE", "subprocess.DEVNULL", "subprocess.STDOUT", "subprocess.TimeoutExpired",
    "subprocess.SubprocessError", "subprocess.CalledProcessError", "shutil.which", "shutil.get_terminal_size",
    "filelock.Timeout", "importlib.util.find_spec", "importlib.metadata", "ctypes.Structure", "ctypes.byref",
    "ctypes.c_uint64", "ctypes.c_uint32", "ctypes.c_int", "ctypes.c_long", "ctypes.get_errno",
}  # fmt: skip

OF_FILESYSTEM = {
    DELETES: {"unlink", "remove_tree", "remove_directory", "remove_file", "remove_all"},
    MOVES: {"rename", "rename_task_file"},
    MAKES: {"make_directory", "make_directory_for_owner", "make_file_for_owner", "make_root", "mkdir"},
    WRITES: {"open_append", "overwrite", "overwrite_at", "cut_to", "write_all", "pwrite", "touch"},
}
"""Methods of filesystems, and of a locked batch, whatever they are called on."""
OF_A_FILESYSTEM = {
    DELETES: {"remove", "clear"},
    MOVES: {"link"},
    MAKES: {"create", "make", "make_or_enter", "as_made"},
    WRITES: {"write", "look"},
}
"""Methods that other objects have, too: they count where what they are called on has a name of RECEIVERS. `look` counts
where it may write."""
RECEIVERS = {"fs", "outside", "directory", "meeting", "holder", "outer", "inner", "place", "inside", "within"}

WRAPPERS = {
    DELETES: ("commits.drop", "commits.reap", "collect.reap_trash", "collect.reap_doctors", "doctorplaces.remove_place",
              "doctorplaces.clear_away", "doctorplaces.reap", "result_paths.reap", "trees.remove"),
    MOVES: ("store.discard", "self.discard", "trash.discard", "quarantine.move"),
    WRITES: ("journals.locked", "store.locked_existing", "repair.locked_existing", "filesystem.append_to",
             "fs.compare_clock", "outputs.write_all", "named_locks.held_by_name"),
}  # fmt: skip
"""Functions of fsqueue whose callers choose a path for them, as the end of their full name."""

READING = {"DIRECTORY_FLAGS", "HOLDER_FLAGS", "LOOK_FLAGS", "FLAGS"}
WRITING_FLAGS = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC")
PRINTING = {"echo", "secho", "print_json", "complain"}
LOGGING = {"debug", "info", "warning", "error", "exception", "critical"}


def places() -> dict[str, set[str]]:
    """What each function does at the rim, by `module.function`; what a module does when it is imported, by `module`."""
    found: dict[str, set[str]] = defaultdict(set)
    for top, package in ((TOP / "fsqueue", "fsqueue"), (TOP / "cli", "cli")):
        for path in sorted(top.rglob("*.py")):
            for place, kind in places_in(path, module_name(path, top, package)):
                found[place].add(kind)
    return dict(found)


def module_name(path: Path, top: Path, package: str) -> str:
    """`fsqueue/doctor/probes.py` is `doctor.probes`; `cli/main.py` is `cli.main`."""
    parts = list(path.relative_to(top).with_suffix("").parts)
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(([package] if package == "cli" or not parts else []) + parts)


def places_in(path: Path, module: str) -> Iterator[tuple[str, str]]:
    """Each function of a file that does something at the rim, and of what kind that is."""
    tree = parse(path)
    own = {f"{node.name}()": f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)}
    yield from _below(tree, module, own | _imports(tree))


def _below(node: ast.AST, place: str, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # A function within a function is part of it: it may have no name of its own that one could find.
            within = place if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else f"{place}.{inner.name}"
            yield from _below(inner, within, names)
        elif isinstance(inner, ast.ClassDef):
            yield from _below(inner, f"{place}.{inner.name}", names)
        else:
            yield from ((place, kind) for kind in _kinds(inner, names))
            yield from _below(inner, place, names)


def _imports(tree: ast.Module) -> dict[str, str]:
    """What names of a file mean that it imports."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _kinds(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    """Of what kinds a single expression is, without what is in it."""
    if isinstance(node, ast.Call):
        yield from _of_call(node, names)
    if not isinstance(node, (ast.Attribute, ast.Name)) or not isinstance(node.ctx, ast.Load):
        return
    text = ast.unparse(node)
    first, _, rest = text.partition(".")
    full = f"{names[first]}.{rest}".rstrip(".") if first in names else text
    owner, _, name = full.rpartition(".")
    if owner == "os":
        yield from (kind for kind, known in OF_OS.items() if name in known - {"open"})
    elif full.split(".")[0] in OF_MODULES and full not in HARMLESS and full not in OF_MODULES:
        yield OF_MODULES[full.split(".")[0]]
    elif isinstance(node, ast.Attribute):
        receiver = ast.unparse(node.value).rpartition(".")[2].split("(")[0]
        yield from (kind for kind, known in OF_FILESYSTEM.items() if name in known)
        yield from _wrapped(full)
        if receiver in RECEIVERS:
            yield from (kind for kind, known in OF_A_FILESYSTEM.items() if name in known - {"look"})
        if receiver == "logger" and name in LOGGING:
            yield PRINTS
    else:
        yield from _wrapped(full)
        if text == "print":
            yield PRINTS


def _wrapped(full: str) -> Iterator[str]:
    return (kind for kind, known in WRAPPERS.items() if any(f".{full}".endswith(f".{end}") for end in known))


def _may_write(handed: str) -> bool:
    """Whether flags say so, or are the caller's to choose (`flags`), or a constant that is not known to read."""
    constants = set(re.findall(r"\b[A-Z_]*FLAGS\b", handed)) - READING
    return bool(constants) or any(flag in handed for flag in (*WRITING_FLAGS, "flags"))


def _of_call(node: ast.Call, names: dict[str, str]) -> Iterator[str]:
    """What shows in a call alone: flags, modes, keywords."""
    text = ast.unparse(node.func)
    name = text.rpartition(".")[2]
    handed = " ".join(ast.unparse(argument) for argument in (*node.args, *node.keywords))
    yield from _wrapped(names.get(f"{text}()", ""))  # a function of the same file
    looks = name in ("look", "_open", "_open_beneath") and text.rpartition(".")[0].rpartition(".")[2] in {
        *RECEIVERS,
        "self",
    }
    if (looks or text == "os.open" or name == "opened") and _may_write(handed):
        yield WRITES
    if text == "open":
        mode = next((ast.unparse(each) for each in node.args[1:2]), "'r'")
        if any(letter in mode for letter in "wax+") or not mode.startswith("'"):
            yield WRITES
    if any(keyword.arg in ("env", "pass_fds", "file_actions", "preexec_fn") for keyword in node.keywords):
        yield HANDS
    if name in PRINTING or text.startswith(("sys.stdout.write", "sys.stderr.write")):
        yield PRINTS
