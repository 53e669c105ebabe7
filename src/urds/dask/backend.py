"""The backend that Dask loads for `rds://`, by the entry point `distributed.comm.backends`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed.comm.addressing import get_address_host
from distributed.comm.tcp import BaseTCPBackend
from distributed.utils import get_ip

from urds.dask.comm import RDSComm, RDSConnector, RDSListener

__all__ = ["RDSBackend", "RDSComm", "RDSConnector", "RDSListener"]


class RDSBackend(BaseTCPBackend):
    """Addresses are `host:port`, as those of TCP; so are the answers about them."""

    _connector_class = RDSConnector
    _listener_class = RDSListener

    def get_listener(
        self,
        loc: str,
        handle_comm: Callable[[RDSComm], Any],
        deserialize: bool,
        **connection_args: Any,
    ) -> RDSListener:
        """Return a listener that is not started; arguments of other backends are ignored.

        A worker without a host listens at the address towards its scheduler, as with TCP.
        """
        if not connection_args.get("default_host"):
            connection_args["default_host"] = _host_towards_scheduler(handle_comm)
        listener: RDSListener = super().get_listener(
            loc, handle_comm, deserialize, **connection_args
        )
        return listener


def _host_towards_scheduler(handle_comm: object) -> str | None:
    """Return the local address towards the scheduler of the server that listens.

    Dask tells a backend a `default_host` for TCP alone. Source: distributed 2026.8.0
    distributed/worker.py (start_unsafe).
    """
    server = getattr(handle_comm, "__self__", None)
    scheduler = getattr(server, "scheduler", None)
    address = getattr(scheduler, "address", None) or getattr(server, "scheduler_addr", None)
    if not isinstance(address, str) or not address.startswith(RDSListener.prefix):
        return None
    return str(get_ip(get_address_host(address)))
