# Made by `python -m tools.stubs`.
# ruff: noqa: I001 - packed, in the order of the source
# fmt: off
from typing import TypedDict
class SettingValues(TypedDict, total=False):
    reconnect_min_delay_ms: int | str
    reconnect_max_delay_ms: int | str
    reconnect_give_up_s: float | str
    max_unacked_packets: int | str
    max_unacked_bytes: int | str
    ping_enable: bool | str
    wmem_default: int | str
    rmem_default: int | str
    wmem_max: int | str
    rmem_max: int | str
    max_message_bytes: int | str
    tcp_port: int | str
    tcp_sndbuf: int | str
    tcp_rcvbuf: int | str
    shared_memory: bool | str
    shared_memory_bytes: int | str
    busy_poll_us: int | str
    npaths: int | str
    keepalive_idle_s: int | str
    keepalive_interval_s: int | str
    keepalive_count: int | str
    allow: str | list[str] | tuple[str, ...]
    peers_max: int | str
    pending_max: int | str
    pending_per_address_max: int | str
    pending_wait_s: float | str
    drain_s: float | str
    linger_s: float | str
    idle_s: float | str
    transport: str
    rdma_devices: str | list[str] | tuple[str, ...]
    ib_max_send_wr: int | str
    ib_max_recv_wr: int | str
    ib_flow_control: bool | str
    node: str
    info_socket: bool | str
    info_directory: str
    strict_linux: bool | str
    reconnect_delay_min_ms: int | str
    reconnect_delay_max_ms: int | str
    rds_tcp_sndbuf: int | str
    rds_tcp_rcvbuf: int | str
