"""The compiled data plane behind the contract of `dataplane.base`.

Thin: the classes of `urds_native` speak plain values, those here the contract's records. What
every message passes, `Mailbox.sendto` and `Mailbox.recvfrom`, is inherited as it is.
"""
