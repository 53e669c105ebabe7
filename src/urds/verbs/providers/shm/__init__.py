"""Verbs between processes of one host and one user, over memory that both of them map.

`rendezvous` finds device contexts, `peers` joins two of them by channels of two `ring`s, `mappings`
makes and maps the memory that peers share; `adapter` puts the queue pairs on top, and
`native_adapter` does so with the compiled engine. See `ring` and `mappings` for what a hostile peer
can do.
"""

from pathlib import Path

from urds.common.implementation import NATIVE, choose
from urds.verbs.providers.shm.adapter import ShmAdapter

__all__ = ["ShmAdapter", "open_adapter"]


def open_adapter(name: str = "shm0", *, directory: Path | None = None) -> ShmAdapter:
    """Open the device on the engine of this process: see `common.implementation`.

    Raises what `ShmAdapter` does; SettingError, PlaneError as `choose`.
    """
    if choose().plane == NATIVE:
        from urds.verbs.providers.shm.native_adapter import NativeShmAdapter

        return NativeShmAdapter(name, directory=directory)
    return ShmAdapter(name, directory=directory)
