"""RDS over RDMA: the IB transport of the wire specification, on the verbs providers."""
