"""serve: answer requests over HTTP, on a TCP port or a Unix socket."""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import stat
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import click

from . import process
from .common import example, leave_soon
from .printing import complain, hint, is_screen, say

if TYPE_CHECKING:
    from fsqueue.service.gate import Role
    from fsqueue.service.taskstore_wire import DurationUnit

DEFAULT_LISTEN = "localhost:8750"
BACKLOG = 1024
FREE_PORT_TRIES = 20
TOKEN_BYTES = 32
TOKEN_FILE_BYTES_MAX = 4096
STOP_S = 10
"""How long requests that are under way may take when the gateway is told to end."""


_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


class Address(NamedTuple):
    """Where to listen: a host and a port, or the path of a Unix socket."""

    host: str
    port: int
    socket: str | None = None

    @property
    def url(self) -> str:
        """Return it as clients write it, without the scheme."""
        return (
            quote(self.socket, safe="")
            if self.socket
            else f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
        )


def address_in(text: str) -> Address:
    """Return what `--listen` says: HOST:PORT, PORT, [IPv6]:PORT or unix:PATH; a usage error for anything else."""
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Address("", 0, os.path.abspath(text.removeprefix("unix:")))
    host, colon, port = text.rpartition(":")
    if port.isascii() and port.isdecimal() and int(port) < 1 << 16 and (host or not colon):
        return Address(host.strip("[]") or "localhost", int(port))
    raise click.UsageError(f"--listen takes HOST:PORT or unix:PATH, not {text!r}. Nothing was done.")


@click.command(
    epilog=example(
        """fsqueue serve /scratch/me/crawl                            # on localhost:8750; shows a token the first time
fsqueue serve /scratch/me/crawl --listen unix:$HOME/crawl.sock    # users who may open the socket may do all
fsqueue serve /scratch/me/crawl --listen 0.0.0.0:8750 --tls-cert host.pem --tls-key host.key --allow-host node7
ssh -N -L 8750:localhost:8750 login1                       # on your own machine: then open http://localhost:8750"""
    )
)
@click.argument("path", metavar="PATH")
@click.option("--listen", metavar="WHERE", default=DEFAULT_LISTEN,
              help=f"HOST:PORT (port 0: any free one), or unix:PATH [{DEFAULT_LISTEN}].")  # fmt: skip
@click.option("--token-file", metavar="FILE", type=click.Path(dir_okay=False),
              help="The tokens; made if missing [on a TCP port: ~/.config/fsqueue/serve.tokens].")  # fmt: skip
@click.option("--read-only", is_flag=True, help="Change no task and no queue, whatever token comes.")
@click.option("--allow-host", "hosts", metavar="NAME", multiple=True,
              help="A name beside localhost by which clients call this gateway; may be repeated.")  # fmt: skip
@click.option("--root-path", metavar="PREFIX", default="",
              help="A prefix, as /queues, that a proxy before the gateway leaves in paths.")  # fmt: skip
@click.option("--taskstore-duration", type=click.Choice(["auto", "ms", "ns"]), default="auto",
              help="Unit of a claim's duration, for clients of taskstore [auto: its size tells].")  # fmt: skip
@click.option("--tls-cert", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="Serve https with this certificate chain (PEM).")  # fmt: skip
@click.option("--tls-key", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Its private key (PEM).")
def serve(
    path: str, listen: str, token_file: str | None, read_only: bool, hosts: Sequence[str],
    root_path: str, taskstore_duration: DurationUnit, tls_cert: str | None, tls_key: str | None,
) -> None:  # fmt: skip
    """Serve a queue, or a group of queues, over HTTP, until SIGTERM or Ctrl-C.

    Programs use it by fsqueue.connect(URL), by 'fsqueue run URL', or as /v1/openapi.json says. Clients of taskstore use
    a group by their own calls. It keeps nothing but caches: start as many as you like, kill them at any time, and work
    on the queue directly beside them.

    On a TCP port each request needs a token. The file has two, one that may do everything and one that may only read.
    When the gateway is ready, it prints its address, in the one line on standard output. All else, as the tokens, goes
    to standard error.
    """
    address = address_in(listen)
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together. Nothing was done.")
    root_path = root_path.rstrip("/")
    if not _ROOT_PATH.fullmatch(root_path):
        raise click.UsageError(
            f"--root-path takes a path as /queues, of letters, digits, -, _, ., ~ and /, not {root_path!r:.200}. "
            "Nothing was done."
        )
    if address.socket and tls_cert:
        raise click.UsageError("TLS is for a TCP port: a Unix socket does not leave the host. Nothing was done.")
    try:
        import uvicorn

        from fsqueue.service import application, gate
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"The gateway needs the package {error.name}, which is not installed. Nothing was done. To install it: "
            "pip install 'fsqueue-tasks[serve]'."
        ) from None
    from .serving_places import Handshakes
    from .serving_protocol import BoundedProtocol, GatewayServer

    made = application.gateway(path, None)  # before tokens are made: a wrong path makes none
    if address.socket is None or token_file is not None:
        made.tokens = gate.Tokens(tokens_in(Path(token_file) if token_file else default_token_file()))
    names = {*hosts, *([address.host] if address.host not in ("", "0.0.0.0", "::") else [])}
    app = application.application(made, names, read_only, taskstore_duration, root_path)
    listeners, address, proof = bound(address)
    most, spare = _connections(made.limits.connections_max)
    config = uvicorn.Config(
        app,
        backlog=min(spare, BACKLOG),  # asyncio accepts that many at once, before it closes those that are too many
        http=BoundedProtocol,
        ws="none",
        log_level="error",  # a warning is a line for each broken request: clients could fill the disk
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
    )
    BoundedProtocol.head_s = made.limits.head_s
    BoundedProtocol.connections_max, BoundedProtocol.refused_max = most, spare
    if tls_cert:
        BoundedProtocol.handshakes = Handshakes(spare)
        listeners = [BoundedProtocol.handshakes.listener(listening) for listening in listeners]
    server = GatewayServer(config)
    server.on_stop = made.stop
    try:
        config.load()  # says here what is wrong with a certificate
    except OSError as error:
        raise click.ClickException(f"The certificate or its key cannot be used: {error}. Nothing was done.") from None
    scheme = "http+unix://" if address.socket else "https://" if tls_cert else "http://"
    open_to_all = any(
        listener.family != socket.AF_UNIX and not ip_address(listener.getsockname()[0]).is_loopback
        for listener in listeners
    )
    if open_to_all and not tls_cert:
        complain(
            "other hosts can reach this port, and each request carries its token in the clear. Use --tls-cert and "
            "--tls-key, or listen on localhost and forward the port with ssh"
        )

    def tell() -> None:
        say(f"fsqueue serves {made.served.path} on {scheme}{address.url}")
        sys.stdout.flush()

    server.on_start = tell
    try:
        server.run(sockets=listeners)
    finally:
        for listener in listeners:
            listener.close()
        if address.socket:
            drop_socket(address.socket, proof)
    if server.signal_number is not None:
        code = 128 + server.signal_number
        if process.is_own:  # else Python waits for a verb that waits for a lock, or for a file server
            leave_soon(code)
        raise click.exceptions.Exit(code)


def _connections(wanted: int) -> tuple[int, int]:
    """Return how many connections the limit of open files suffices for, and how many more may be told to come again.

    The soft limit is raised for them. The other half of the descriptors is for the files of the queues.
    """
    from fsqueue.worker.shortages import raise_open_files

    most = raise_open_files(2 * wanted)
    return most // 2, most // 16


def default_token_file() -> Path:
    """Return where the tokens are unless a user says otherwise."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "fsqueue" / "serve.tokens"


# -- tokens ---------------------------------------------------------------------------------------------------


def tokens_in(path: Path) -> dict[Role, str]:
    """Return the tokens of a file: lines `write TOKEN` and `read TOKEN`. It is made if missing.

    The tokens are shown then, on standard error, if that is a terminal. The file appears whole: of two gateways that
    begin at once, one makes it and both read it.
    """
    try:
        text = _private_text(path)
    except FileNotFoundError:
        made: dict[Role, str] = {
            "write": secrets.token_urlsafe(TOKEN_BYTES),
            "read": secrets.token_urlsafe(TOKEN_BYTES),
        }
        if _make_private(path, "".join(f"{role} {token}\n" for role, token in made.items())):
            if is_screen(sys.stderr):
                hint(
                    f"Tokens were made, and are shown this once. They are in {path}.",
                    f"  to do everything: {made['write']}",
                    f"  to read only:     {made['read']}",
                )
            else:  # a batch job's output and the journal have other readers
                hint(f"Tokens were made. They are in {path}, and are shown only on a terminal.")
        text = _private_text(path)
    found: dict[Role, str] = {}
    for line in text.splitlines():
        role, _, token = line.strip().partition(" ")
        if not line.strip() or line.startswith("#"):
            continue
        if role not in ("write", "read") or len(token) < 16 or not token.isascii() or not token.isprintable():
            raise click.ClickException(
                f"{path} has a line that is neither 'write TOKEN' nor 'read TOKEN' with a token of 16 characters or "
                "more. Nothing was done. Remove the file to have new tokens made."
            )
        found[role] = token  # type: ignore[index]  # it is one of the two
    if not found:
        raise click.ClickException(f"{path} has no token. Nothing was done. Remove it to have new tokens made.")
    return found


def _private_text(path: Path) -> str:
    """Return what is in a file that only its owner may read, and that is this user's own or root's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        advice = " It must not be a symbolic link." if error.errno == errno.ELOOP else ""
        raise click.ClickException(f"The file of tokens cannot be read: {error}. Nothing was done.{advice}") from None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o077:
            raise click.ClickException(
                f"{path} must be a file of yours that nobody else may read, as by 'chmod 600'. Nothing was done."
            )
        return os.read(fd, TOKEN_FILE_BYTES_MAX).decode("utf-8", "replace")
    finally:
        os.close(fd)


def _make_private(path: Path, text: str) -> bool:
    """Make a file of mode 600 with this text. Return False if another process made one meanwhile."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise click.ClickException(f"The file of tokens cannot be made: {error}. Nothing was done.") from None
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(fd)
        os.link(fresh, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise click.ClickException(f"The file of tokens cannot be made: {error}. Nothing was done.") from None
    finally:
        os.unlink(fresh)
    return True


# -- sockets --------------------------------------------------------------------------------------------------

Proof = tuple[int, int]
"""Device and inode of a socket's file."""


def bound(address: Address) -> tuple[list[socket.socket], Address, Proof]:
    """Return sockets that listen, where that is, and of a Unix socket what proves that its file is this one."""
    try:
        if address.socket is not None:
            return [_bound_file(address.socket)], address, _proof_of(address.socket)
        listeners = _bound_port(address)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE and address.socket is None
        free = address._replace(port=0).url
        advice = f" Another process listens there. For any free port: --listen {free}" if taken else ""
        raise click.ClickException(
            f"{address.socket or address.url} cannot be listened on: {error}. Nothing is served.{advice}"
        ) from None
    return listeners, Address(address.host, listeners[0].getsockname()[1]), (0, 0)


def _bound_port(address: Address) -> list[socket.socket]:
    """Return sockets that listen on each address of a host, on one port: localhost is 127.0.0.1 and ::1. OSError.

    If another process has the port of one of them, the gateway has none: clients that try that address first would
    send their tokens there.
    """
    hosts = [address.host, "::1"] if address.host == "localhost" else [address.host]  # a browser tries both
    wanted = [
        one
        for host in hosts
        for one in socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    ]
    families = {one[0]: one for one in reversed(wanted)}  # of each the first
    for tries in range(FREE_PORT_TRIES):
        made: list[socket.socket] = []
        missing: OSError | None = None
        try:
            for family, kind, protocol, _, where in families.values():
                port = made[0].getsockname()[1] if made else address.port
                try:
                    made.append(_listening(family, kind, protocol, (where[0], port, *where[2:])))
                except OSError as error:
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    missing = error  # this host has no such address now, as without IPv6
        except OSError as error:
            for one in made:
                one.close()
            if error.errno == errno.EADDRINUSE and address.port == 0 and tries < FREE_PORT_TRIES - 1:
                continue  # the port was free at the first address alone
            raise
        if made:
            return made
        raise missing or OSError(errno.EADDRNOTAVAIL, "the host has no address")
    raise AssertionError


def _listening(family: int, kind: int, protocol: int, where: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _bound_file(path: str) -> socket.socket:
    """Return a Unix socket that listens at a path, and that only this user may open.

    It is bound under a fresh name and renamed: it is private from the first moment, and takes the place of what a
    gateway that was killed has left. A gateway that answers there is left alone.
    """
    fresh = os.path.join(os.path.dirname(path), f".{secrets.token_hex(4)}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(fresh)
    finally:
        os.umask(before)
    try:
        listener.listen(BACKLOG)
        _refuse_living(path)
        os.rename(fresh, path)
    except BaseException:
        listener.close()
        os.unlink(fresh)
        raise
    return listener


def _refuse_living(path: str) -> None:
    """Raise a ClickException if something is at a path that is no socket of this user which nobody listens on."""
    try:
        about = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(about.st_mode) or about.st_uid != os.geteuid():
        raise click.ClickException(
            f"{path} is there, and is no socket of yours. Nothing was done. Choose another path."
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
    raise click.ClickException(f"Another process listens on {path}. Nothing was done. Choose another path.")


def _proof_of(path: str) -> Proof:
    about = os.lstat(path)
    return about.st_dev, about.st_ino


def drop_socket(path: str, proof: Proof) -> None:
    """Remove the file of this process's socket, unless another gateway's has taken its place."""
    try:
        if _proof_of(path) == proof:
            os.unlink(path)
    except OSError as error:
        complain(f"The socket {path} could not be removed: {error}")
