"""Photograph the pages of a gateway, docs/page-*.png: `scripts/page-pictures`.

A small crawl is at work in a temporary group: a stage that goes on, one whose worker has died, one that is paused, and
one whose tasks were given up. In the pictures it lies in /scratch/me, on the host `login1`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import PIL.Image

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from fsqueue import Group  # noqa: E402
from tests.browser import Browser, why_not  # noqa: E402
from tests.waiting import until  # noqa: E402

PAGES, FETCHED = 3_000, 400
"""Number of pages to fetch, and how many are fetched before the pictures are taken."""
WAIT_S = 120.0
"""How long each stage may take until it is as it is shown."""
COLOURS = 256
STAGES_PY = '''
import time
from fsqueue import Then

def fetch(page):
    """Fetch a page: what it has is for the next two stages."""
    time.sleep(0.02 + page % 7 / 50)
    if page % 50 == 9:
        raise ConnectionError("example.org does not answer")
    inserts = [("parse", {"file": f"pages/{page}.html"})]
    if page % 3 == 0:
        inserts.append(("images", {"file": f"images/{page}.png", "tile": page % 40}))
    return Then({"status": 200, "bytes": 9000 + page * 7919 % 90000}, inserts)

def parse(file):
    time.sleep(0.02)
    return Then({"words": len(file) * 61}, [("index", {"file": file})])
'''
"""The functions of the stages."""
DEAD_PY = """
import os, sys
from fsqueue import Group
Group(sys.argv[1])["parse"].lease(40)
os._exit(9)
"""
"""A worker that dies while it holds tasks."""
SHOWN_PY = "document.body && !document.querySelector('#part-reading')"
"""True once the queues of a page have been read."""


class Picture(NamedTuple):
    """A picture of a page. `page`: its path below the address of the gateway. `height`: it is cut there; 0: nowhere."""

    file: str
    page: str
    width: int
    height: int = 0
    is_dark: bool = False


PICTURES = (
    Picture("page-group.png", "/", 1280),
    Picture("page-queue.png", "/queue?name=fetch", 420, 1500, is_dark=True),
    Picture("page-results.png", "/results?queue=fetch", 1280, 900),
)


class Crawl:
    """A group with work in it, and its gateway. `close` ends what it has started."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.group = Group.create(home / "crawl", max_attempts=3, backoff_s=(30, 3600))
        self._started: list[subprocess.Popen[str]] = []
        (home / "stages.py").write_text(STAGES_PY)
        self._log = (home / "log").open("w")

    def close(self) -> None:
        """End the workers and the gateway."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.wait()
        self._log.close()

    def _start(self, *words: object, **how: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fsqueue_cli", *map(str, words)], cwd=self.home, text=True,
            stdin=subprocess.DEVNULL, stderr=self._log, **({"stdout": self._log} | how),
        )  # fmt: skip
        self._started.append(process)
        return process

    def work(self) -> None:
        """Bring each stage into the state in which it is shown."""
        fetch, parse, images = (self.group[name] for name in ("fetch", "parse", "images"))
        fetch.insert_many({"page": number} for number in range(PAGES))
        self._start("run", fetch.path, "-j", 2, "--call", "stages:fetch", "--worker", "fetcher")
        until(lambda: parse.status().waiting >= 100, "pages to be parsed", WAIT_S)
        parser = self._start("run", parse.path, "-j", 2, "--call", "stages:parse", "--max-tasks", 80)
        until(lambda: parser.poll() is not None, "some pages to be parsed", WAIT_S)
        self.group["index"].pause("the licence server is down")
        until(lambda: images.status().waiting >= 60, "images to be rendered", WAIT_S)
        for task in images.lease(20):
            task.bury(f"out of memory: tile {task.payload['tile']} takes 64 GiB")
        until(lambda: parse.status().waiting >= 40, "further pages to be parsed", WAIT_S)
        subprocess.run([sys.executable, "-c", DEAD_PY, self.group.path], check=False)
        until(lambda: fetch.status().completed >= FETCHED, f"{FETCHED} pages to be fetched", WAIT_S)

    def serve(self) -> tuple[str, str]:
        """Start a gateway. Return its address and the token that may write."""
        token, file = secrets.token_hex(16), self.home / "tokens"
        file.touch(0o600)
        file.write_text(f"write {token}\n")
        served = self._start(
            "serve", self.group.path, "--listen", "localhost:0", "--token-file", file, stdout=subprocess.PIPE
        )
        assert served.stdout is not None
        return served.stdout.readline().split()[-1], token


def renamed(home: Path) -> str:
    """Return a script that says /scratch/me and login1 in a page, where it says what they are here."""
    pairs = [[str(home), "/scratch/me"], [socket.gethostname(), "login1"]]
    return f"""(() => {{
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), pairs = {json.dumps(pairs)};
        while (texts.nextNode())
            for (const [here, there] of pairs)
                texts.currentNode.data = texts.currentNode.data.replaceAll(
                    new RegExp('(?<![\\\\w-])' + here.replace(/[.+]/g, '\\\\$&') + '(?![\\\\w-])', 'g'), there);
    }})()"""


def log_in(browser: Browser, address: str, token: str) -> None:
    """Show the browser's page the token."""
    browser.show(f"{address}/login", 1280)
    browser.run(f"document.querySelector('#token').value = {json.dumps(token)}")
    browser.run("document.querySelector('form').submit()")
    until(lambda: browser.run("location.pathname") == "/", "the token to be taken")


def take(browser: Browser, address: str, home: Path, picture: Picture, file: Path) -> None:
    """Photograph a page into a file, in few colours: the page has few."""
    browser.show(f"{address}{picture.page}", picture.width, picture.is_dark)
    until(lambda: browser.run(SHOWN_PY), f"{picture.page} to be read")
    browser.run(renamed(home))
    browser.picture(file)
    with PIL.Image.open(BytesIO(file.read_bytes())) as whole:
        width, height = whole.size
        cut = whole.convert("RGB").crop((0, 0, width, min(height, picture.height or height)))
        cut.quantize(COLOURS, dither=PIL.Image.Dither.NONE).save(file, optimize=True)


def main() -> None:
    """Make the group, let it work, and photograph its pages."""
    parser = argparse.ArgumentParser(prog="scripts/page-pictures", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=TOP / "docs", help="directory for the pictures [docs]")
    out: Path = parser.parse_args().out
    if reason := why_not():
        sys.exit(reason)
    os.environ["TZ"] = "UTC"
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        crawl, browser = Crawl(home), Browser(home / "chromium")
        try:
            crawl.work()
            address, token = crawl.serve()
            log_in(browser, address, token)
            for picture in PICTURES:
                take(browser, address, home, picture, out / picture.file)
                print(out / picture.file)
        finally:
            browser.close()
            crawl.close()


if __name__ == "__main__":
    main()
