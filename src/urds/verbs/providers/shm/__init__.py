"""Verbs between processes of one host and one user, over memory that both of them map.

`rendezvous` finds device contexts, `peers` joins two of them by channels of two `ring`s, `mappings`
makes and maps the memory that peers share; `adapter` puts the queue pairs on top. See `ring` and
`mappings` for what a hostile peer can do.
"""

from urds.verbs.providers.shm.adapter import ShmAdapter, open_adapter

__all__ = ["ShmAdapter", "open_adapter"]
