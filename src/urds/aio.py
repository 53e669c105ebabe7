"""RDS sockets for asyncio and trio: `async with await urds.aio.bind((host, port)) as sock`.

One implementation serves both; which loop runs is found out when a call has to wait. Importing
this package imports neither asyncio nor trio.
"""

from urds.aio.sockets import Receipt, Socket, bind, open_socket

__all__ = ["Receipt", "Socket", "bind", "open_socket"]
