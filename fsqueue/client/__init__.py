"""The client: queues of a gateway as Python has them. Read `remote_queue` first.

It needs no extra, and opens no file of a queue. Arguments are checked by what checks those of `Queue` and `Group`, and
an update is put together by the same class: so both kinds refuse the same things, in the same words.
"""

from fsqueue.client.remote_group import RemoteGroup, connect
from fsqueue.client.remote_queue import RemoteQueue

__all__ = ["RemoteGroup", "RemoteQueue", "connect"]
