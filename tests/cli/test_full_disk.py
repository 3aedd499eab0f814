"""Every command on a disk that is really full: exit code 7 and what to do, or its work done; nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from fsqueue import Queue
from tests.cli.conftest import Run
from tests.concurrency.books import check_drained, drain
from tests.disks import DISKS, Ballast, small_disk
from tests.verb_calls import LONG

FULL = 7


@pytest.mark.parametrize("kind", DISKS)
@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_every_command_on_a_full_disk(fsqueue_cli: Run, tmp_path: Path, kind: str, what: str) -> None:
    with small_disk(tmp_path / "disk", megabytes=2, inodes=300, kind=kind) as disk:
        ballast = Ballast(disk, what)
        path = disk / "q"
        queue = Queue.create(path, shards=2, backoff_s=(0, 0))
        queue.insert_many(["dead 0", "dead 1"], batch_tasks=1)
        for task in queue.lease(2):
            task.bury("no")
        queue.insert_many([f"held {index}" for index in range(10)], batch_tasks=2)
        held = queue.lease(10)
        token = iter([task.token for task in held])
        queue.insert_many([f"waiting {index}" for index in range(4)], batch_tasks=1)
        waiting = [info.id for info in queue.tasks("waiting")]
        queue.close()
        ballast.fill()
        if_bytes = FULL if what == "bytes" else 0

        def said(codes: int | tuple[int, ...], *arguments: Any, input: str | None = None) -> str:
            result = fsqueue_cli(*arguments, input=input, code=codes if isinstance(codes, int) else None)
            assert isinstance(codes, int) or result.exit_code in codes, result.output
            if result.exit_code == FULL:
                assert result.stderr.startswith("fsqueue: "), result.stderr
                assert "Free space or inodes, or raise the quota" in result.stderr
            return result.stdout

        # looking
        assert "waiting" in said(0, "status", path)
        assert len(said(0, "ls", path).splitlines()) >= 14
        assert "payload       waiting" in said(0, "show", path, waiting[0])
        assert "no" in said(0, "dead", "list", path)
        said(124, "wait", path, "--timeout", "0.1")
        said(0, "fsck", path)
        assert "no room" in said(8, "doctor", path)
        # what needs room
        said(FULL, "create", disk / "other")
        said(FULL, "insert", path, input='"new"\n')
        said(FULL, "lease", path)
        said(FULL, "run", path, "--patience", "1", "--", "true")
        said(FULL, "cancel", path, waiting[0], "--yes")
        said(FULL, "dead", "retry", path)
        said(FULL, "bench", disk, "--tasks", "10")
        # what needs little, which the files' last blocks have room for, and what does not fit there
        said(0, "renew", path, next(token))
        said(0, "release", path, next(token))
        said(0, "complete", path, next(token))
        said(if_bytes, "complete", path, next(token), "--result", f'"{LONG}"')
        said(if_bytes, "fail", path, next(token), "--reason", LONG)
        said(if_bytes, "bury", path, next(token), "--reason", LONG)
        said((0, if_bytes), "release-all", path, "--yes")
        said((0, FULL), "gc", path)
        status = Queue(path).status()
        assert status.inserted == 16
        assert status.completed == (1 if what == "bytes" else 2)

        ballast.empty()
        said(0, "insert", path, input='"new"\n')
        said(0, "dead", "retry", path)
        said(0, "release-all", path, "--yes")
        said(0, "gc", path)
        fresh = Queue(path)
        done = drain(fresh)
        assert len(done) == len(set(done)) == 17 - status.completed
        ids, dead = check_drained(fresh)
        assert (len(ids), dead) == (17, set())
        ballast.fill()
        said((0, FULL), "purge", path, "--yes")
        said(0, "delete", path, "--yes", "--foreground")
        assert not path.exists()


LINES = {
    "mixed": [line for n in range(400) for line in (f'{{"k":{n}}}', f'{{"u":{n}}}')],
    "in blocks": [
        f'{{"{field}":{n}}}' for begin in range(0, 400, 40) for field in "ku" for n in range(begin, begin + 40)
    ],
    "all with keys": [f'{{"k":{n // 2}}}' for n in range(1000)],
}


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_after_a_full_disk_the_command_tells_how_many_lines_with_keys_are_in_and_where_to_go_on(
    fsqueue_cli: Run, tmp_path: Path, lines: list[str]
) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n" + "\n".join(lines) + "\n")  # a blank line shifts the numbers
    with small_disk(tmp_path / "disk", megabytes=6, inodes=20_000) as disk:
        queue = Queue.create(disk / "q", shards=2)
        queue.insert("x", key="7")
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * (5 << 20))
        said = fsqueue_cli("insert", queue.path, file, "--key", "k", "--json", code=FULL)
        found = json.loads(said.stdout)
        there = [info.payload for info in queue.tasks() if info.payload != "x"]
        assert 0 < found["inserted"] == len(there) <= found["tasks"] < len(lines)
        first = {orjson.dumps(payload).decode() for payload in there}
        assert first <= set(lines[: found["tasks"]]) <= first | {'{"k":7}'}
        assert f"insert the rest, which 'tail -n +{found['tasks'] + 2} {file}' prints" in said.stderr
        assert "--commit" not in said.stderr
        may_be_repeated = "or repeat the command: it inserts no line whose key is taken" in said.stderr
        assert may_be_repeated == ("would insert the lines without a key again" not in said.stderr)
        assert may_be_repeated == (not any("u" in line for line in lines[: found["tasks"]]))
        ballast.unlink()
        rest = file.read_text().splitlines(keepends=True)[found["tasks"] + 1 :]
        fsqueue_cli("insert", queue.path, "--key", "k", input="".join(rest))
        there = [info.payload for info in queue.tasks() if info.payload != "x"]
        assert sorted(orjson.dumps(payload).decode() for payload in there) == sorted({*lines} - {'{"k":7}'})
