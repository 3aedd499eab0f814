"""A headless Chromium, driven through a pipe: pages as a browser lays them out, and as a screen reader gets them."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S, until

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
ANSWER_S = PATIENCE_S
"""How long an answer may take."""

OVERLAPS = """(() => {
    const found = [], shown = [...document.querySelectorAll('svg')].filter(one => one.getBoundingClientRect().width);
    for (const svg of shown) {
        const edge = svg.getBoundingClientRect();
        const boxes = [...svg.querySelectorAll('text')].map(one => [one.textContent, one.getBoundingClientRect()])
            .filter(([text, box]) => box.width);
        boxes.forEach(([text, a], n) => {
            const across = a.left < edge.left - 1 || a.right > edge.right + 1;
            if (across || a.bottom > edge.bottom + 1 || a.top < edge.top - 1)
                found.push(text + ' sticks out');
            for (const [other, b] of boxes.slice(n + 1))
                if (a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2)
                    found.push(text + ' / ' + other);
        });
    }
    return [shown.length, found];
})()"""
CUT = """[...document.querySelectorAll('.box')].filter(one => one.scrollWidth > one.clientWidth)
    .map(one => one.querySelector('caption').textContent)"""
"""The tables of which a part is out of sight until they are scrolled. A phone shows no scroll bar that says so."""
SMALLEST = """Math.min(16, ...[...document.querySelectorAll('svg text')].map(one => one.getBoundingClientRect().height)
    .filter(Boolean))"""
CONTRASTS = """(() => {
    const light = text => {
        const parts = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map(one => one / 255)
            .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const back = light(getComputedStyle(document.body).backgroundColor);
    const ratio = colour => { const one = light(colour);
        return (Math.max(one, back) + 0.05) / (Math.min(one, back) + 0.05); };
    const styles = which => [...document.querySelectorAll(which)].map(one => getComputedStyle(one));
    const texts = styles('h1,h2,h3,p,th,td,caption,summary,footer,a,strong,button,code,pre').map(one => one.color);
    const drawn = styles('svg text').map(one => one.fill), bars = styles('rect').map(one => one.fill);
    return [Math.min(...[...texts, ...drawn].map(ratio)), Math.min(21, ...bars.map(ratio))];
})()"""


def why_not() -> str:
    """Return why there is no browser here; "" if there is one."""
    if shutil.which("chromium") is None:
        return "Chromium is not installed (as root on Debian: scripts/setup-chromium)"
    return ""


class Browser:
    """One Chromium with one tab. It ends with `close`, or with this process."""

    def __init__(self, home: Path) -> None:
        ours_out, theirs_in = _pipe(), _pipe()
        program = f'exec chromium {" ".join(FLAGS)} --user-data-dir="$1" 3<&{theirs_in[0]} 4>&{ours_out[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", program, "bash", str(home)], pass_fds=(theirs_in[0], ours_out[1]), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"HOME": str(home)},
        )  # fmt: skip
        os.close(theirs_in[0])
        os.close(ours_out[1])
        self._in, self._out = ours_out[0], theirs_in[1]
        self._rest, self._number, self._session = b"", 0, ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")

    def close(self) -> None:
        """End it."""
        for fd in (self._out, self._in):
            os.close(fd)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def show(self, page: Path | str, width: int, dark: bool = False) -> None:
        """Load a page, a file or what has this address, in a window of this width."""
        address = page if isinstance(page, str) else page.as_uri()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=address)
        loaded = ["complete", address]
        until(lambda: self.run("[document.readyState, location.href]") == loaded, f"{page} to load")

    def run(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def tree(self) -> list[dict[str, Any]]:
        """Return the accessibility tree's nodes that a screen reader sees: role and name of each."""
        nodes = self.ask("Accessibility.getFullAXTree")["nodes"]
        return [
            {"role": node["role"]["value"], "name": node.get("name", {}).get("value", "")}
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def picture(self, file: Path) -> None:
        """Save what the whole page looks like."""
        made = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(made["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], ANSWER_S)[0], "Chromium does not answer"
            got = os.read(self._in, 1 << 16)
            assert got, "Chromium has ended"
            self._rest += got
        line, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(line)
        return found


def _pipe() -> tuple[int, int]:
    """Make a pipe whose ends have high numbers: 3 and 4 are to be Chromium's own."""
    ends = os.pipe()
    reader, writer = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 100) for end in ends)
    for end in ends:
        os.close(end)
    return reader, writer
