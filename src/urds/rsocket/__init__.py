"""Stream and datagram sockets over RDMA, on the verbs of `urds`, as librdmacm's rsockets are."""
