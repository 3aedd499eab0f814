"""serve: where it listens, its tokens, how it ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from fsqueue import Group, Queue
from tests.cli.conftest import Run, Spawn
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


def tokens_at(path: Path) -> dict[str, str]:
    """Return the tokens of a file. It is made if missing: a gateway that makes it says so on standard error."""
    from fsqueue_cli.serving import tokens_in

    return dict(tokens_in(path))


def address_of(process: object) -> str:
    """Return the address that a gateway tells when it is ready."""
    line = process.stdout.readline()  # type: ignore[attr-defined]
    assert line.startswith("fsqueue serves "), line + process.stderr.read()  # type: ignore[attr-defined]
    return str(line.rstrip().rpartition(" on ")[2])


class ToSocket(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def status(connection: http.client.HTTPConnection, path: str, **headers: str) -> int:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


HEALTHY = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


def sent(address: str, request: bytes) -> bytes:
    """Send bytes, and return all that comes until the gateway has ended the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_it_tells_its_address_and_ends_at_a_signal(tmp_path: Path, spawn: Spawn) -> None:
    Queue.create(tmp_path / "q", shards=1)
    token = tokens_at(tmp_path / "tokens")["write"]
    served = spawn("serve", tmp_path / "q", "--listen", "localhost:0", "--token-file", tmp_path / "tokens")
    address = address_of(served).removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    assert status(connection, "/healthz") == 200
    assert status(connection, "/v1/nothing") == 401
    assert status(connection, "/v1/nothing", Authorization=f"Bearer {token}") == 404
    two_lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    answers = sent(address, b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n" + two_lengths + HEALTHY + b"\r\n")
    assert answers.startswith(b"HTTP/1.1 400")
    assert answers.count(b"HTTP/1.1") == 1, "a proxy may take what follows for the body"
    assert sent(address, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n"
    assert sent(address, HEALTHY + upgrade).startswith(b"HTTP/1.1 200")
    served.send_signal(signal.SIGTERM)
    assert served.wait(PATIENCE_S) == 143
    assert served.stderr.read() == "", "what clients send fills no log"  # type: ignore[union-attr]


def test_the_address_is_all_that_is_on_standard_output(tmp_path: Path, spawn: Spawn) -> None:
    """Scripts read it there. The first time, the gateway also tells that it has made tokens."""
    Queue.create(tmp_path / "q", shards=1)
    served = spawn("serve", tmp_path / "q", "--listen", "127.0.0.1:0", "--token-file", tmp_path / "tokens")
    assert served.stdout is not None
    assert served.stderr is not None
    printed = served.stdout.readline()
    assert re.fullmatch(rf"fsqueue serves {re.escape(str(tmp_path))}/q on http://127\.0\.0\.1:\d+\n", printed)
    served.send_signal(signal.SIGTERM)
    assert served.wait(PATIENCE_S) == 143
    assert served.stdout.read() == ""
    told = f"Tokens were made. They are in {tmp_path}/tokens, and are shown only on a terminal.\n"
    assert served.stderr.read() == told


def test_a_port_that_other_hosts_reach_without_tls_is_told(tmp_path: Path, spawn: Spawn) -> None:
    Queue.create(tmp_path / "q", shards=1)
    tokens_at(tmp_path / "tokens")
    served = spawn("serve", tmp_path / "q", "--listen", "0.0.0.0:0", "--token-file", tmp_path / "tokens")
    address_of(served)
    assert served.stderr is not None
    assert "carries its token in the clear" in served.stderr.readline()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_without_a_traceback(tmp_path: Path, spawn: Spawn, number: int) -> None:
    Queue.create(tmp_path / "q", shards=1)
    tokens_at(tmp_path / "tokens")
    served = spawn("serve", tmp_path / "q", "--listen", "localhost:0", "--token-file", tmp_path / "tokens")
    host, _, port = address_of(served).removeprefix("http://").rpartition(":")
    assert status(http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S), "/healthz") == 200
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")  # not whole: it keeps the gateway after one signal
        served.send_signal(number)
        until(lambda: not accepts(host, int(port)), "the gateway to accept no connection")
        served.send_signal(number)
        assert served.wait(PATIENCE_S) == 128 + number
    assert served.stderr.read() == ""  # type: ignore[union-attr]


NEVER = """
import sys, threading, fsqueue
from fsqueue_cli.entry import main
def never(*_, **__):
    print("waits", flush=True)
    threading.Event().wait()
fsqueue.Queue.pause = never
main()
"""


def test_what_never_comes_to_an_end_does_not_keep_it(tmp_path: Path) -> None:
    """As a verb on a file server that does not answer."""
    Queue.create(tmp_path / "q", shards=1)
    at = tmp_path / "s.sock"
    command = [sys.executable, "-c", NEVER, "serve", tmp_path / "q", "--listen", f"unix:{at}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served, closing(ToSocket(at)) as connection:
        assert address_of(served)
        assert served.stdout is not None
        connection.request("POST", "/v1/queues/q/pause", "{}", {"Content-Type": "application/json"})
        assert served.stdout.readline() == "waits\n"
        served.send_signal(signal.SIGTERM)  # it ends ten seconds later
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("retry-after")) == (503, "5")
        assert "Whether it is done in the end is unknown" in json.loads(answer.read())["error"]["message"]
        assert served.wait(PATIENCE_S) == 143
    assert not at.exists()


def accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=PATIENCE_S).close()
    except ConnectionError:
        return False
    return True


def test_a_socket_takes_no_other_files_place(tmp_path: Path, spawn: Spawn) -> None:
    Group.create(tmp_path / "g")
    at = tmp_path / "s.sock"

    def serve() -> object:
        return spawn("serve", tmp_path / "g", "--listen", f"unix:{at}")

    first = serve()
    assert address_of(first) == f"http+unix://{quote(str(at), safe='')}"
    assert stat.S_IMODE(at.stat().st_mode) == 0o600
    assert status(ToSocket(at), "/v1/nothing") == 404, "whoever may open the socket may ask"
    second = serve()
    assert second.wait(PATIENCE_S) == 1  # type: ignore[attr-defined]
    assert "Another process listens" in second.stderr.read()  # type: ignore[attr-defined]
    first.kill()  # type: ignore[attr-defined]
    first.wait()  # type: ignore[attr-defined]
    assert at.exists(), "a gateway that was killed leaves its socket"
    third = serve()
    assert address_of(third)
    assert status(ToSocket(at), "/healthz") == 200
    third.send_signal(signal.SIGTERM)  # type: ignore[attr-defined]
    assert third.wait(PATIENCE_S) == 143  # type: ignore[attr-defined]
    assert not at.exists()
    at.write_text("precious")
    fourth = serve()
    assert fourth.wait(PATIENCE_S) == 1  # type: ignore[attr-defined]
    assert at.read_text() == "precious"
    nowhere = spawn("serve", tmp_path / "g", "--listen", f"unix:{tmp_path}/no/such")
    assert nowhere.wait(PATIENCE_S) == 1
    assert f"{tmp_path}/no/such cannot be listened on" in nowhere.stderr.read()  # type: ignore[union-attr]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_tokens_are_made_once_and_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsqueue_cli import serving

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = serving.default_token_file()
    made = serving.tokens_in(path)
    assert set(made) == {"write", "read"}
    assert made["write"] != made["read"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert serving.tokens_in(path) == made
    assert os.listdir(path.parent) == ["serve.tokens"]


def test_where_nothing_can_be_served_no_tokens_are_made_and_a_taken_port_is_explained(
    tmp_path: Path, fsqueue_cli: Run
) -> None:
    tokens = tmp_path / "tokens"
    assert "There is no queue" in fsqueue_cli("serve", tmp_path / "none", "--token-file", tokens, code=5).output
    assert not tokens.exists(), "they are shown only once"
    Queue.create(tmp_path / "q", shards=1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        said = fsqueue_cli("serve", tmp_path / "q", "--listen", where, "--token-file", tokens, code=1).output
    assert "Another process listens there. For any free port: --listen 127.0.0.1:0" in said


@pytest.mark.parametrize(
    ("mode", "text", "why"),
    [
        (0o644, f"write {'x' * 20}\n", "nobody else may read"),
        (0o600, "write short\n", "16 characters"),
        (0o600, f"admin {'x' * 20}\n", "16 characters"),
        (0o600, "", "has no token"),
    ],
)
def test_a_file_of_tokens_that_is_not_private_or_not_whole_is_refused(
    tmp_path: Path, fsqueue_cli: Run, mode: int, text: str, why: str
) -> None:
    Queue.create(tmp_path / "q", shards=1)
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(mode)
    assert why in fsqueue_cli("serve", tmp_path / "q", "--token-file", path, code=1).output


def test_bad_use_is_a_sentence(tmp_path: Path, fsqueue_cli: Run) -> None:
    assert "HOST:PORT" in fsqueue_cli("serve", tmp_path / "q", "--listen", "here", code=2).output
    assert "belong together" in fsqueue_cli("serve", tmp_path / "q", "--tls-cert", __file__, code=2).output
    fsqueue_cli("serve", tmp_path / "q", "--listen", f"unix:{tmp_path}/s", code=5)
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_sends_half_a_head_is_told_so_and_one_that_sends_nothing_is_left(tmp_path: Path) -> None:
    """The bound is tested on the protocol: a gateway's own is 20 s."""
    import asyncio

    import uvicorn
    from fsqueue_cli.serving_protocol import BoundedProtocol

    class Impatient(BoundedProtocol):
        head_s = 0.05

    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("no request has come")

    async def story(sent: bytes) -> bytes:
        config = uvicorn.Config(app, http=Impatient, log_level="critical", lifespan="off")  # type: ignore[arg-type]
        server = uvicorn.Server(config)
        listener = socket.create_server(("localhost", 0))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(sent)
        rest = await reader.read()  # until the server has ended the connection
        writer.close()
        server.should_exit = True
        await running
        return rest

    assert asyncio.run(story(b"")) == b""
    said = asyncio.run(story(b"GET / HTTP/1.1\r\nHost: loc"))
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"The head of the request stopped. Nothing was done." in said


@pytest.mark.one_in(2)
@pytest.mark.parametrize("then", [b"x", b"xxxxx"])
def test_a_client_that_was_refused_and_goes_on_sending_is_left(tmp_path: Path, then: bytes) -> None:
    """A client without a token is answered before its body is read. It could hold the connection with one more byte."""
    import asyncio

    import uvicorn
    from fsqueue_cli.serving_protocol import BoundedProtocol

    class Impatient(BoundedProtocol):
        head_s = 0.05

    async def app(scope: object, receive: object, send: Callable[[object], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def story() -> bytes:
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=Impatient, log_level="critical", lifespan="off", timeout_keep_alive=1,
        )  # fmt: skip
        server = uvicorn.Server(config)
        listener = socket.create_server(("localhost", 0))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n")
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.write(then)
        rest = await reader.read()  # until the server has ended the connection
        writer.close()
        server.should_exit = True
        await running
        return answer[:12] + rest

    assert asyncio.run(story()) == b"HTTP/1.1 401"


def test_tokens_are_shown_on_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a batch job or a unit prints has other readers: everybody on the host, or those of the journal."""
    from fsqueue_cli import serving

    made = serving.tokens_in(tmp_path / "a")
    printed = capsys.readouterr()
    assert str(tmp_path / "a") in printed.err
    assert not [token for token in made.values() if token in printed.err]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    shown = serving.tokens_in(tmp_path / "b")
    again = capsys.readouterr()
    assert [token in again.err for token in shown.values()] == [True, True]
    assert printed.out + again.out == "", "scripts read the address there"


def certificate(home: Path) -> tuple[Path, Path]:
    """Make a certificate for localhost. Return its file and that of its key."""
    cert, key = home / "cert.pem", home / "key.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    made += f" -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {key} -out {cert}"
    subprocess.run(made.split(), check=True, capture_output=True)
    return cert, key


def test_it_serves_https_with_a_certificate_of_the_users(tmp_path: Path, spawn: Spawn, fsqueue_cli: Run) -> None:
    Queue.create(tmp_path / "q", shards=1)
    cert, key = certificate(tmp_path)
    options = ["serve", tmp_path / "q", "--listen", "localhost:0", "--token-file", tmp_path / "tokens"]
    served = spawn(*options, "--tls-cert", cert, "--tls-key", key)
    address = address_of(served)
    assert address.startswith("https://localhost:")
    trusting = ssl.create_default_context(cafile=str(cert))
    connection = http.client.HTTPSConnection(address.removeprefix("https://"), context=trusting, timeout=PATIENCE_S)
    assert status(connection, "/healthz") == 200
    key.write_text("no key")
    assert "cannot be used" in fsqueue_cli(*options, "--tls-cert", cert, "--tls-key", key, code=1).output


@contextmanager
def served_with(
    soft: int, hard: int, path: Path, tokens: Path, logged: str = "", options: Sequence[object] = ()
) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """A gateway whose limits of open files are `soft` and `hard`. It logs what matches `logged`. Yield it with its host
    and port.
    """
    tokens_at(tokens)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    command = [
        sys.executable,
        "-m",
        "fsqueue_cli",
        "serve",
        path,
        "--token-file",
        tokens,
        "--listen",
        "127.0.0.1:0",
        *options,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit
    ) as process:
        try:
            host, _, port = address_of(process).partition("://")[2].rpartition(":")
            yield process, host, int(port)
        finally:
            process.terminate()
        assert process.wait(PATIENCE_S) == 143
        assert process.stderr is not None
        assert re.fullmatch(logged, process.stderr.read())


def test_it_raises_its_limit_of_open_files(tmp_path: Path) -> None:
    Queue.create(tmp_path / "q", shards=1)
    with served_with(128, 1000, tmp_path / "q", tmp_path / "tokens") as (process, _, _):
        limits = Path(f"/proc/{process.pid}/limits").read_text()
    [files] = [line.split() for line in limits.splitlines() if line.startswith("Max open files")]
    assert files[3:5] == ["1000", "1000"]


def test_idle_connections_take_no_descriptor_from_the_queues(tmp_path: Path) -> None:
    """Clients without a token open more connections than it may have files: those that have one go on."""
    group = Group.create(tmp_path / "group", shards=2)
    with served_with(128, 256, Path(group.path), tmp_path / "tokens") as (_, host, port), ExitStack() as idle:
        token = tokens_at(tmp_path / "tokens")["write"]
        kept = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        idle.callback(kept.close)
        assert status(kept, "/v1", Authorization=f"Bearer {token}") == 200
        strangers = [idle.enter_context(socket.create_connection((host, port), timeout=PATIENCE_S)) for _ in range(260)]
        told = strangers[0].recv(4096)  # it has ended for one of the others
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in told
        late = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        idle.callback(late.close)
        assert status(late, "/v1", Authorization=f"Bearer {token}") == 200
        for number in range(20):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            kept.request("POST", f"/v1/queues/new{number}/tasks", '{"payload": 3}', headers)
            answer = kept.getresponse()
            assert (answer.status, json.loads(answer.read())["inserted"]) == (201, True)
    assert {queue.name: queue.status().waiting for queue in group.queues()} == {f"new{n}": 1 for n in range(20)}


def test_a_gateway_that_has_no_descriptor_for_a_connection_says_so_in_one_line(tmp_path: Path) -> None:
    """asyncio logs a traceback for each try. And an idle connection of a client without a token gives its own up."""
    Queue.create(tmp_path / "q", shards=1)
    said = (
        r"fsqueue: The gateway can accept no connection for now: Too many open files\. [^\n]*raise their limit[^\n]*\n"
    )
    with (
        served_with(256, 256, tmp_path / "q", tmp_path / "tokens", said) as (process, host, port),
        ExitStack() as opened,
    ):
        may = {"Authorization": f"Bearer {tokens_at(tmp_path / 'tokens')['write']}"}

        def connect() -> http.client.HTTPConnection:
            made = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
            made.connect()
            opened.callback(made.close)
            return made

        def has_answered(connection: http.client.HTTPConnection) -> bool:
            return status(connection, "/v1", **may) == 200

        first = connect()
        assert has_answered(first)
        stranger = connect()
        assert status(stranger, "/healthz") == 200
        files = len(os.listdir(f"/proc/{process.pid}/fd"))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, 256))
        assert has_answered(connect()), "the stranger's descriptor has become this one's"
        assert stranger.sock.recv(4096).startswith(b"HTTP/1.1 503 ")
        waiting = connect()
        waiting.request("GET", "/v1", headers=may)
        assert has_answered(first), "the others go on"
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (256, 256))
        assert waiting.getresponse().status == 200


def test_connections_that_begin_no_handshake_or_show_no_token_take_no_place_from_others(tmp_path: Path) -> None:
    Queue.create(tmp_path / "q", shards=1)
    cert, key = certificate(tmp_path)
    options = ("--tls-cert", cert, "--tls-key", key)
    trusting = ssl.create_default_context(cafile=str(cert))
    with (
        served_with(128, 128, tmp_path / "q", tmp_path / "tokens", options=options) as (_, host, port),
        ExitStack() as opened,
    ):

        def connect() -> socket.socket:
            return opened.enter_context(socket.create_connection((host, port), timeout=PATIENCE_S))

        may = {"Authorization": f"Bearer {tokens_at(tmp_path / 'tokens')['write']}"}
        silent = [connect() for _ in range(200)]
        assert silent[0].recv(1) == b"", "it has ended for one of the others"
        strangers = [opened.enter_context(trusting.wrap_socket(connect(), server_hostname=host)) for _ in range(70)]
        assert strangers[0].recv(4096).startswith(b"HTTP/1.1 503 ")
        for _ in range(3):
            client = http.client.HTTPSConnection(host, port, context=trusting, timeout=PATIENCE_S)
            opened.callback(client.close)
            assert status(client, "/v1", **may) == 200


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_localhost_is_each_address_of_this_host(tmp_path: Path, spawn: Spawn) -> None:
    Queue.create(tmp_path / "q", shards=1)
    served = spawn("serve", tmp_path / "q", "--listen", "localhost:0", "--token-file", tmp_path / "tokens")
    port = int(address_of(served).rpartition(":")[2])
    for host in ("127.0.0.1", *(["::1"] if has_ipv6() else [])):
        assert status(http.client.HTTPConnection(host, port, timeout=PATIENCE_S), "/healthz") == 200


def test_a_port_that_another_process_has_at_one_address_is_not_taken_at_the_other(
    tmp_path: Path, fsqueue_cli: Run
) -> None:
    """A client that tries ::1 first would send its token there."""
    Queue.create(tmp_path / "q", shards=1)
    family, host = (socket.AF_INET6, "::1") if has_ipv6() else (socket.AF_INET, "127.0.0.1")
    with socket.create_server((host, 0), family=family) as taken:
        listen = f"localhost:{taken.getsockname()[1]}"
        said = fsqueue_cli("serve", tmp_path / "q", "--listen", listen, "--token-file", tmp_path / "tokens", code=1)
    assert "Another process listens there" in said.output


@pytest.mark.parametrize("root", ["queues", "//evil.example", "/a b", "/a?b", "/ä", "/a/../b#"])
def test_a_root_path_that_is_none_is_refused(tmp_path: Path, fsqueue_cli: Run, root: str) -> None:
    Queue.create(tmp_path / "q", shards=1)
    said = fsqueue_cli("serve", tmp_path / "q", "--root-path", root, code=2).output
    assert "--root-path takes a path as /queues" in said
