"""Verbs between processes of one host and one user, by memory that both of them map.

`rendezvous` says who is there, `channel` joins two contexts by two `ring`s, `memory` makes what
peers may map and `grants` lets them; `adapter` puts the queue pairs on top. What one context
believes of another is bounded: see `ring` and `grants` for what a hostile peer can do.
"""

from urds.verbs.providers.shm.adapter import ShmAdapter, open_adapter

__all__ = ["ShmAdapter", "open_adapter"]
