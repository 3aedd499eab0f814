"""The pages in Chromium, from a gateway that is a process, with real workers: they keep themselves up to date, fit each
window, can be used by keyboard and with a screen reader, and run nothing that others wrote.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import fsqueue
from fsqueue import Group
from tests.browser import CONTRASTS, CUT, OVERLAPS, SMALLEST, Browser, why_not
from tests.proxies import prefixed
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

TOKEN = "w" * 24
HOSTILE = "<script>pwned=1</script><img src=x onerror=pwned=1>\u202e"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if reason := why_not():
        pytest.skip(reason)
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


class Served:
    """A gateway in a process of its own, and a browser that has shown it the token."""

    def __init__(self, home: Path, browser: Browser, *options: str) -> None:
        self.group = Group.create(home / "group", shards=2, max_attempts=3)
        tokens = home / "tokens"
        tokens.write_text(f"write {TOKEN}\n")
        tokens.chmod(0o600)
        command = ("serve", self.group.path, "--listen", "localhost:0", "--token-file", tokens, *options)
        self.process = self.command(*command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        self._browser = browser
        self.log_in()

    def log_in(self) -> None:
        """Show the browser's page the token."""
        self._browser.show(f"{self.address}/login", 1280)
        self._browser.run(f"document.querySelector('#token').value = '{TOKEN}'")
        self._browser.run("document.querySelector('form').submit()")
        first = urlsplit(self.address).path + "/"
        until(lambda: self._browser.run("location.pathname") == first, "the token to be taken")

    def command(self, *words: object, **how: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fsqueue_cli", *map(str, words)], text=True, stdin=subprocess.DEVNULL, **how
        )

    def show(self, path: str, width: int = 1280, dark: bool = False) -> None:
        self._browser.show(f"{self.address}{path}", width, dark)
        until(lambda: self._browser.run("!document.querySelector('#again').hidden"), "the script to run")
        until(lambda: self._browser.run("!document.querySelector('#part-reading')"), "the queues to be read")

    def says(self, text: str, where: str = "body") -> None:
        """Wait until the page says this."""
        shown = f"document.querySelector({where!r})?.innerText.includes({text!r})"
        until(lambda: self._browser.run(shown), f"{text!r} to be shown")


@pytest.fixture
def served(tmp_path: Path, browser: Browser) -> Iterator[Served]:
    with running(tmp_path, browser) as made:
        yield made


@contextmanager
def running(home: Path, browser: Browser, *options: str) -> Iterator[Served]:
    made = Served(home, browser, *options)
    try:
        yield made
    finally:
        made.process.send_signal(signal.SIGCONT)
        made.process.terminate()
        made.process.wait(PATIENCE_S)
        assert made.process.stdout is not None
        made.process.stdout.close()


def some_of_all(group: Group) -> None:
    """A group with whatever a page can show."""
    fetch = Group(group.path, worker=HOSTILE[:-1])["fetch"]
    fetch.insert_many([{"url": f"https://example.org/{HOSTILE}/{n}"} for n in range(40)], batch_tasks=40)
    for n, task in enumerate(fetch.lease(20)):
        if n < 10:
            task.complete({"n": n, "says": HOSTILE + "z" * (n << 10)})
        elif n < 14:
            task.bury(f"{HOSTILE} out of memory {n}" + "y" * (64 << 10))
        elif n < 16:
            task.fail(HOSTILE, delay_s=3600)
    with group.update() as update:
        update.complete(group["fetch"].lease()[0])
        update.insert("index", HOSTILE)
    group[HOSTILE].insert(HOSTILE + "x" * (64 << 10))
    group["parse"].insert(1)
    group["parse"].pause(HOSTILE)


def test_real_workers_are_seen_at_work_without_loading_the_page_again(served: Served, browser: Browser) -> None:
    """From a queue that nobody works on, by way of a worker that holds a task, to one that is done."""
    gates = [served.group.path.parent / name for name in ("one", "two")]
    for gate in gates:
        os.mkfifo(gate)
    served.group["fetch"].insert_many(map(str, gates))
    served.show("/queue?name=fetch")
    served.says("2 tasks could be worked on, and no worker is there")
    browser.run("window.sameDocument = true")
    script = 'read line <"$1"'
    worker = served.command("run", f"{served.group.path}/fetch", "-j", 1, "--", "sh", "-c", script, "sh", "{}")
    served.says("Tasks that are leased for longest", "#part-workers")
    served.says(f"(process {worker.pid})", "#part-workers")
    for gate in gates:
        gate.write_text("go on\n")  # as soon as its task reads it
    assert worker.wait(PATIENCE_S) == 0
    served.says("State: done")
    served.says("Completed: 2", "#part-time")
    assert browser.run("window.sameDocument") is True


def test_each_page_fits_each_window_and_runs_nothing_that_others_wrote(served: Served, browser: Browser) -> None:
    some_of_all(served.group)
    served.show("/")
    served.says("4 queues")
    served.says("→ index", "#part-stages")
    dead = next(served.group["fetch"].tasks("dead")).id
    [moved] = served.group["index"].peek()
    served.show("/queue?name=fetch")
    worker = "/" + browser.run("document.querySelector('a[href^=worker]').getAttribute('href')")
    for path in (
        "/", "/queue?name=fetch", "/dead?queue=fetch", f"/queue?name={quote(HOSTILE)}", f"/task?queue=fetch&id={dead}",
        f"/task?queue=index&id={moved.id}", "/tasks?queue=fetch&state=leased", "/tasks?queue=fetch&state=waiting",
        "/results?queue=fetch", worker,
    ):  # fmt: skip
        for width, dark in ((320, False), (420, True), (641, False), (1280, True)):
            where = f"{path} at {width}"
            served.show(path, width, dark)
            browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert browser.run("document.documentElement.scrollWidth") <= width, where
            assert browser.run(OVERLAPS)[1] == [], where
            assert width > 420 or browser.run(CUT) == [], where
            assert browser.run(SMALLEST) > 11, where
            text, bars = browser.run(CONTRASTS)
            assert text >= 4.5, where
            assert bars >= 3, where
        assert browser.run("typeof pwned") == "undefined"
        assert browser.run("document.querySelectorAll('script, img, iframe, object, [onerror]').length") == 1
        assert browser.run(
            "performance.getEntriesByType('resource').every(one => one.name.startsWith(location.origin))"
        )


def test_ten_queues_take_few_lines_of_a_phone(served: Served, browser: Browser) -> None:
    for number in range(10):
        queue = served.group[f"stage {number}"]
        queue.insert_many(range(100))
        queue.complete(queue.lease(20)[:10])
    served.show("/", 360)
    served.says("10 queues")
    rows = browser.run("[...document.querySelectorAll('#part-queues tbody tr')].map(row => row.offsetHeight)")
    assert len(rows) == 10
    assert max(rows) < 180  # one column a line takes 290
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.run(OVERLAPS)[1] == []
    assert browser.run(CUT) == []


def test_a_task_is_found_by_its_key_and_a_log_out_ends_the_visit(served: Served, browser: Browser) -> None:
    served.group["parse"].insert({"page": 17}, key="page 17/ä")
    served.show("/")
    browser.run("document.querySelector('#task').value = 'page 17/ä'")
    browser.run("document.querySelector('form[action=find] button').click()")
    served.says("page 17/ä", "#part-about")
    served.says('"page": 17', "#part-payload")
    browser.run("document.querySelector('form[action=logout] button').click()")
    until(lambda: browser.run("location.pathname").endswith("/login"), "the browser to be logged out")


def test_by_keyboard_alone_a_queue_is_resumed_and_the_focus_stays(served: Served, browser: Browser) -> None:
    served.group["parse"].insert(1)
    served.group["parse"].pause("why not")
    served.show("/")
    served.says("It is paused")

    def press(key: str, code: int, text: str = "") -> None:
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        browser.ask("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
        browser.ask("Input.dispatchKeyEvent", type="keyUp", **about)

    def focused() -> str:
        return str(browser.run("document.activeElement.innerText"))

    for _ in range(20):
        press("Tab", 9)
        if focused() == "Resume":
            break
    assert focused() == "Resume"
    press("Enter", 13, "\r")
    assert browser.run("document.activeElement.parentElement.open") is True
    served.group["parse"].insert(2)  # the part is replaced under the focus
    browser.run("document.querySelector('#again').click()")
    served.says("2 tasks wait", "#part-notices")
    assert focused() == "Resume"
    assert browser.run("document.activeElement.parentElement.open") is True
    press("Tab", 9)
    assert focused() == "Yes, do it"
    press("Enter", 13, "\r")
    served.says("The queue goes on.", "#part-done")
    assert served.group["parse"].paused is None or fsqueue.Queue(served.group["parse"].path).paused is None


def test_for_a_screen_reader(served: Served, browser: Browser) -> None:
    some_of_all(served.group)
    for path in ("/", "/queue?name=fetch"):
        served.show(path, 420)
        served.says("out of memory")
        nodes = browser.tree()
        roles = {node["role"] for node in nodes}
        names = {role: [node["name"] for node in nodes if node["role"] == role] for role in roles}
        assert {"banner", "main", "contentinfo", "navigation", "status"} <= roles
        assert all(names["table"])
        assert all(names.get("button", ["x"]))
        assert all(names.get("textbox", ["x"]) + names.get("searchbox", ["x"]))
        assert all(len(name) > 20 for name in names.get("image", []))
    assert browser.run("document.querySelector('#said').textContent") == "0 reasons to stand still, 1 problem."


def test_a_page_that_nobody_touches_asks_for_nothing_until_somebody_does(served: Served, browser: Browser) -> None:
    served.group["fetch"].insert(1)
    served.show("/queue?name=fetch")
    browser.run("document.querySelector('main').dataset.idleS = '-1'")
    served.says("Nobody was here for a while", "#live")
    asked = "performance.getEntriesByType('resource').length"
    before = browser.run(asked)
    served.group["fetch"].insert(2)
    assert browser.run(asked) == before
    browser.run("document.querySelector('main').dataset.idleS = '600'")
    browser.run("dispatchEvent(new KeyboardEvent('keydown'))")
    served.says("2 tasks could be worked on")
    assert browser.run("document.querySelector('#live').textContent") == ""


def test_a_gateway_that_is_gone_is_said_and_one_that_comes_back_is_used(served: Served, browser: Browser) -> None:
    served.group["fetch"].insert(1)
    served.show("/")
    os.kill(served.process.pid, signal.SIGSTOP)
    browser.ask("Network.enable")
    browser.ask("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    browser.run("document.querySelector('#again').click()")
    served.says("The gateway does not answer", "#live")
    os.kill(served.process.pid, signal.SIGCONT)
    browser.ask(
        "Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1
    )
    browser.run("document.querySelector('#again').click()")
    until(lambda: browser.run("document.querySelector('#live').textContent") == "", "an answer")


@pytest.mark.parametrize("strip", [True, False])
def test_behind_a_proxy_all_links_and_buttons_stay_below_its_prefix(
    tmp_path: Path, browser: Browser, strip: bool
) -> None:
    options = [] if strip else ["--root-path", "/node/here"]
    with running(tmp_path, browser, *options) as served, prefixed(served.address, "/node/here", strip) as address:
        some_of_all(served.group)
        served.address = address
        served.log_in()
        for path in (
            "/",
            "/queue?name=fetch",
            "/dead?queue=fetch",
            f"/task?queue=parse&id={served.group['parse'].peek()[0].id}",
        ):
            served.show(path)
            links = browser.run("[...document.querySelectorAll('a, form')].map(one => one.href || one.action)")
            outside = [link for link in links if not link.startswith(f"{address}/")]
            assert (len(links) > 0, outside) == (True, []), path
        served.show("/queue?name=parse")
        served.says("paused")
        assert served.group["parse"].paused
        browser.run("[...document.querySelectorAll('form')].find(one => one.elements.verb?.value == 'resume').submit()")
        until(lambda: not Group(served.group.path)["parse"].paused, "the button to do what it says")
        until(lambda: "/node/here/queue" in browser.run("location.href"), "the page to come back")
