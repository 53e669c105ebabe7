"""RDS sockets for asyncio and trio: `async with await urds.aio.bind((host, port)) as sock`.

The public name of `urds.rds.aio`.
"""

from urds.rds.aio.sockets import Receipt, Socket, bind, open_socket

__all__ = ["Receipt", "Socket", "bind", "open_socket"]
