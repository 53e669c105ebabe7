"""A real Linux kernel's RDS in a virtual machine, joined to this host by a wire that can cut.

`image` builds the guest from Debian packages, `guest` boots it, `wire` sits between the two
hosts, `agent` and `remote` run Python on either side, `workload` is what both sides run.
"""
