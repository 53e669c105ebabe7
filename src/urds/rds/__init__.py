"""Reliable Datagram Sockets: the API of rds(7) and the wire of Linux, over TCP and RDMA."""
