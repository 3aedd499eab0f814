"""The places for connections of one server, and which connection ends when there is none left."""

from __future__ import annotations

import socket
from collections import OrderedDict
from contextlib import suppress
from typing import Any, ClassVar, Protocol

from fsqueue.weak_table import WeakTable


class PlacedConnection(Protocol):
    """A connection."""

    def has_shown_token(self) -> bool | None:
        """Return whether a request with a valid token has come on it; None while its first request is not judged."""

    def end_for_another(self) -> None:
        """End at once. Its client is told to come again, if it can take that."""


class ConnectionPlaces:
    """The connections that may have to end for others, each with the oldest first.

    A client without a token could otherwise keep out those that have one, by connections that ask for nothing.
    """

    _of: ClassVar[WeakTable[object, ConnectionPlaces]] = WeakTable()

    @classmethod
    def of(cls, server: object) -> ConnectionPlaces:
        """Return those of a server, which is any object that all of its connections have in common."""
        places = cls._of.get(server)
        if places is None:
            places = cls._of[server] = cls()
        return places

    def __init__(self) -> None:
        self._strangers: OrderedDict[PlacedConnection, None] = OrderedDict()
        """They have places. A connection leaves this when it is found to have shown a token, or ends."""
        self._refused: OrderedDict[PlacedConnection, None] = OrderedDict()
        """They have none, and wait to be told so: a client that is told before it has asked may not hear it."""

    def admit(self, newcomer: PlacedConnection, open_count: int, most: int, refused_max: int) -> bool:
        """Return whether a newcomer has a place, at the cost of the oldest connection without a token if need be.

        `open_count`: how many connections there are, the newcomer among them. `most`: how many have places.
        `refused_max`: how many more may wait to be told that there is none.
        """
        if open_count - len(self._refused) <= most or self.end_oldest():
            self._strangers[newcomer] = None
            return True
        self._refused[newcomer] = None
        if len(self._refused) > refused_max:
            self._refused.popitem(last=False)[0].end_for_another()
        return False

    def end_oldest(self) -> bool:
        """End the oldest connection that has a place and has shown no token. Return False if there is none."""
        for _ in range(len(self._strangers)):
            oldest, _ = self._strangers.popitem(last=False)
            has_shown = oldest.has_shown_token()
            if has_shown is None:  # its request may be under way before it can be told that nothing was done
                self._strangers[oldest] = None
            elif not has_shown:
                oldest.end_for_another()
                return True
        return False

    def leave(self, connection: PlacedConnection) -> None:
        """Forget a connection that has ended."""
        self._strangers.pop(connection, None)
        self._refused.pop(connection, None)


class Handshakes:
    """The connections within a TLS handshake. When there are more than `most`, the oldest one ends.

    asyncio tells the server of a connection only after its handshake, for which a client has a minute. Clients that
    begin none could otherwise take all descriptors.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: OrderedDict[int, socket.socket] = OrderedDict()
        """By descriptor. Those of connections that have ended within the handshake stay until these are the oldest, or
        until another connection has the descriptor."""

    def listener(self, listening: socket.socket) -> socket.socket:
        """Return a socket that listens in the place of another one. Its connections begin with a handshake."""
        made = _Listener(fileno=listening.detach())
        made.handshakes = self
        return made

    def begin(self, connection: socket.socket) -> None:
        """Note a new connection."""
        self._under_way.pop(connection.fileno(), None)
        self._under_way[connection.fileno()] = connection
        if len(self._under_way) > self._most:
            with suppress(OSError):  # it has ended
                self._under_way.popitem(last=False)[1].shutdown(socket.SHUT_RDWR)

    def end(self, descriptor: int) -> None:
        """Forget a connection whose handshake is over."""
        self._under_way.pop(descriptor, None)


class _Listener(socket.socket):
    handshakes: Handshakes

    def accept(self) -> tuple[socket.socket, Any]:
        connection, where = super().accept()
        self.handshakes.begin(connection)
        return connection, where
