"""The compiled data plane behind the contract of `rds.plane.contract`.

The classes of `urds_native` use plain values, the thin classes here the contract's records. The
calls of every message, `Mailbox.sendto` and `Mailbox.recvfrom`, are inherited unchanged.
"""
