"""Faults of what a run under chaos stands on: its network and its weight store.

- ``network``: one more worker, named ``far``, and a separate parameter server are reached through
  proxies only. A proxy delays all bytes or holds them back for a while; or it resets all open
  connections, or makes them half-open for good. It needs Linux, where 127.0.0.2 and 127.0.0.3 are
  addresses of the machine.
- ``store``: each call takes 200 ms longer, one in twenty fails (half of them only after they were
  carried out), both, or no writing and no reading returns. The time begins with the first call that
  suffers. It puts ``unreliable_store`` between the run and its own store, whichever that is.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from chaos import unreliable_store as unreliable
from chaos.blows import Blow, EventLog, Kind
from chaos.network import Connection, Proxy, ThreadedProxy
from rlax_plugin.base.files.faults import FaultPoint

_DELAY_S, _JITTER_S = 0.2, 0.1


_OF_STORE: dict[Kind, tuple[FaultPoint, Sequence[str]]] = {
    "slow": (FaultPoint.STORE_SLOWED, [unreliable.SLOW]),
    "faulty": (FaultPoint.STORE_FAILED, [unreliable.FAULTY]),
    "slow and faulty": (FaultPoint.STORE_FAILED, [unreliable.SLOW, unreliable.FAULTY]),
    "hang": (FaultPoint.STORE_HUNG, [unreliable.WRITES_HANG, unreliable.READS_HANG]),
}
"""Kind -> the event of the first call that suffers, and the words of the switch."""


class Trouble(Protocol):
    """A fault that begins with a blow and ends with it."""

    def begin(self, blow: Blow) -> str:
        """Begins the fault; returns in words what is hit, or "" if nothing is there to hit yet.

        It is called until it returns something, or for so long that nothing will be there.
        """
        ...

    def end(self) -> None:
        """Ends the fault; without a fault it does nothing."""
        ...


class NetworkTrouble:
    """Faults of connections that pass through proxies.

    Args:
      proxies: name of a way through the network -> its proxy.
    """

    def __init__(self, proxies: dict[str, ThreadedProxy]):
        self._proxies = proxies

    def begin(self, blow: Blow) -> str:
        """See ``Trouble``."""
        names = sorted(name for name, one in self._proxies.items() if one.proxy.connections)
        if not names:
            return ""
        name = names[min(int(blow.choice * len(names)), len(names) - 1)]
        proxy = self._proxies[name]
        count = len(proxy.proxy.connections)
        if blow.kind == "delay":
            proxy.call(_change(delay_s=_DELAY_S, jitter_s=_JITTER_S))
        elif blow.kind == "stall":
            proxy.call(_change(stalled=True))
        elif blow.kind == "reset":
            proxy.call(_each(Connection.reset))
        else:
            proxy.call(_each(Connection.half_open))
        return f"{count} connections {name}"

    def end(self) -> None:
        """See ``Trouble``."""
        for proxy in self._proxies.values():
            proxy.call(_change(delay_s=0.0, jitter_s=0.0, stalled=False))


def _change(**conditions: Any) -> Callable[[Proxy], None]:
    return lambda proxy: proxy.change(**conditions)


def _each(what: Callable[[Connection], None]) -> Callable[[Proxy], None]:
    def all_of(proxy: Proxy) -> None:
        for connection in list(proxy.connections):
            what(connection)

    return all_of


class StoreTrouble:
    """A weight store that is slow, fails or hangs; see ``unreliable_store``.

    Args:
      switch: path of the file that makes it so.
      events: log of the fault points that the run reaches.
    """

    def __init__(self, switch: Path, events: Path):
        self._switch, self._log = switch, EventLog(events)

    def begin(self, blow: Blow) -> str:
        """See ``Trouble``; a call must have suffered."""
        point, words = _OF_STORE[blow.kind]
        if not self._switch.exists():
            self._log.take()
            unreliable.switch_on(self._switch, *words)
        return "the weight store" if point in self._log.take() else ""

    def end(self) -> None:
        """See ``Trouble``."""
        self._switch.unlink(missing_ok=True)
