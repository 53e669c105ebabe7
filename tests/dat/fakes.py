"""A small adapter without packets: lock, keys, and a clock that runs while a thread waits."""

import threading
from collections.abc import Callable
from typing import Any, ClassVar

from urds.dat.constants import DtoStatus, EventNumber, HandleType
from urds.dat.endpoint import DtoCompletionEvent
from urds.dat.evd import EventDispatcher
from urds.dat.handles import DatObject
from urds.dat.ia import InterfaceAdapter
from urds.dat.registry import Support
from urds.dat.returns import Subtype
from urds.verbs.engine.completions import Outbox
from urds.verbs.engine.keys import KeyTable
from urds.verbs.engine.queue_pair import LinkTraits
from urds.verbs.engine.work import EngineEvent
from urds.verbs.providers.base import Adapter, DeviceAttributes


class FakeAdapter(Adapter):
    """Waits by doing what the test has planned: `plans` run one after the other."""

    def __init__(self, **limits: Any) -> None:
        link = LinkTraits(mtu_bytes=1024, lossless=True)
        self.attributes = DeviceAttributes("fake0", "fake", link, **limits)
        self.gid = bytes(16)
        self.keys = KeyTable()
        self.lock = threading.RLock()
        self.outbox = Outbox()
        self.plans: list[Callable[[], object]] = []
        self.later: list[Callable[[], None]] = []
        self.waits_ns: list[int | None] = []
        self.is_closed = False

    def now_ns(self) -> int:
        """Return no time: nothing here depends on it."""
        return 0

    def progress(self) -> None:
        """Have nothing to do."""

    def wait(self, is_ready: Callable[[], bool], timeout_ns: int | None) -> bool:
        """Run the plans until `is_ready`; when none is left the time is over."""
        self.waits_ns.append(timeout_ns)
        while not is_ready() and self.plans:
            self.plans.pop(0)()
        return is_ready()

    def call_soon(self, action: Callable[[], None]) -> None:
        """Keep the action until `run_later`."""
        self.later.append(action)

    def tell(self, event: EngineEvent) -> None:
        """Let an event be all that a pass has brought."""
        self.outbox.events.append(event)
        self.finish_pass()

    def run_later(self) -> None:
        """Run what was put off."""
        while self.later:
            self.later.pop(0)()

    def close(self) -> None:
        """Note that it was closed."""
        self.is_closed = True

    def _refuse(self, *_: object, **__: object) -> Any:
        raise AssertionError("the fake adapter has no queue pairs and no connections")

    new_qpn = add = remove = progress_qp = listen = connect = _refuse


def open_fake(support: Support | None = None, **limits: Any) -> InterfaceAdapter:
    """Return an interface adapter on a fake; its `adapter` is the `FakeAdapter`."""
    return InterfaceAdapter(
        "fake", FakeAdapter(**limits), address="127.0.0.1", support=support or Support()
    )


def fake_of(ia: InterfaceAdapter) -> FakeAdapter:
    """Return the fake below an interface adapter."""
    assert isinstance(ia.adapter, FakeAdapter)
    return ia.adapter


class FakeFeeder(DatObject):
    """Feeds dispatchers in place of an endpoint, and notes which of them overflowed."""

    handle_type: ClassVar[HandleType] = HandleType.EP
    invalid_subtype: ClassVar[Subtype] = Subtype.INVALID_HANDLE_EP

    def __init__(self, ia: InterfaceAdapter) -> None:
        super().__init__(ia)
        self.overflows: list[EventDispatcher] = []
        self.device.add(self)

    def handle_evd_overflow(self, evd: EventDispatcher) -> None:
        """Note it; an endpoint would break its connection."""
        self.overflows.append(evd)

    def complete(
        self,
        evd: EventDispatcher,
        cookie: object,
        *,
        signals: bool = True,
        on_taken: Callable[[], None] | None = None,
    ) -> bool:
        """Post the completion of a transfer of one byte."""
        ep: Any = self
        event = DtoCompletionEvent(
            EventNumber.DTO_COMPLETION, evd, ep, cookie, DtoStatus.SUCCESS, 1
        )
        return evd.queue(event, signals=signals, on_taken=on_taken)
