"""Software RDMA: verbs objects, a connection manager and the providers under them."""
