"""The verbs engine: requester, responder, receive queues, keys and completions; no I/O, no clock.

`QueuePair` is the value machine: work requests, packets and `now_ns` go in, packets, completions
and events come out. A provider moves the packets; its adapter owns the lock.
"""
