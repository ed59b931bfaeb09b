"""MaxText's trainer over several hosts: what host 0 tells the others, and what they do.

Every computation on the devices of all hosts is launched by every host, in one order. Host 0 alone
has batches and signals, so it sends an order before each such computation:

    warm_start  path: of the finished warm start; "": all hosts train it now
    forward     a forward pass over the rows in the order, for a signal
    keep, save, load, drop  a copy of the weights, for a signal
    started     the signals have started: the first weights are published, and training begins
    update      the rows of the next update
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    FollowerPort,
    Followers,
    HostPlace,
    Order,
    ResolvedConfig,
    RlaxSection,
    RunFiles,
    TrainingError,
    one_line,
)

if TYPE_CHECKING:
    import numpy as np

    from maxtext_overrides.config.loading import Config
    from maxtext_overrides.trainer.kept_weights import KeptWeights
    from maxtext_overrides.trainer.train_loop import Loop


def join(context: BuildContext, given: ResolvedConfig, added_rows: int) -> ResolvedConfig:
    """Gives this process its devices, and connects it to the other hosts; before JAX is used.

    Args:
      added_rows: rows of a batch beside those of RL.

    Returns:
      The config that MaxText gets.

    Raises:
      ConfigError: the devices of the config cannot be divided among the hosts, or the hosts would
        meet at an address of other machines without certificates.
      DeadlineError: not all hosts came within ``startup_s``.
    """
    from maxtext_overrides.trainer import distributed

    place, section = context.hosts, context.section
    if given.maxtext.get("hardware") == "cpu":
        count = _devices(given, section, added_rows)
        if place is not None:
            if count % place.count:
                reason = f"must divide the {count} devices for which the config makes its batches"
                raise ConfigError("--hosts", place.count, reason)
            distributed.use_cpu_devices(count // place.count)
        elif _was_on_hosts(context) and not distributed.cpu_devices_are_set():
            distributed.use_cpu_devices(count)  # as all hosts of the run had together
    if place is None or not place.several:
        return given
    tls = section.network.tls
    if not distributed.is_local(place.coordinator) and not tls.given:
        reason = (
            "is not a loopback address, so the hosts need rlax.network.tls to verify each other: "
            "make certificates with rlax certs make, and set its three keys on each host"
        )
        raise ConfigError("--coordinator", place.coordinator, reason)
    files = {"certificate": tls.certificate, "key": tls.key, "ca": tls.ca}
    deadlines = section.deadlines
    distributed.join(place, startup_s=deadlines.startup_s, host_s=deadlines.host_s, tls=files)
    return replace(given, maxtext={**given.maxtext, "skip_jax_distributed_system": True})


def _was_on_hosts(context: BuildContext) -> bool:
    """True if the run that is continued, evaluated or replayed was trained with ``--hosts``."""
    if not (run := context.replays or context.run_url):
        return False
    # The config is of the newest start, which may be without; the other is that of several hosts.
    records = (RunFiles(run).get_json(name) or {} for name in ("config.json", "hosts.json"))
    return any(record.get("hosts") for record in records)


def _devices(given: ResolvedConfig, section: RlaxSection, added_rows: int) -> int:
    """The number of devices for which a config makes its batches; at least 1."""
    from maxtext_overrides.config.loading import default_of

    rows = 1.0
    for key in ("per_device_batch_size", "gradient_accumulation_steps"):
        rows *= float(given.maxtext.get(key, default_of(key)))
    # What is no whole number is reported where rows are checked.
    per_device = max(1.0, rows * section.objective.mini_batches)
    return max(1, int((section.batch_rows + added_rows) // per_device))


class Orders:
    """Host 0's orders for all other hosts; with one host it gives none.

    Args:
      followers: the other hosts; None: there are none.
      place: of this process, host 0; None: it is the only one.
    """

    def __init__(self, followers: Followers | None = None, place: HostPlace | None = None):
        self._followers = followers
        self._others = range(1, 1 if place is None or followers is None else place.count)
        self._numbers = itertools.count()
        self._kept: weakref.WeakKeyDictionary[KeptWeights, str] = weakref.WeakKeyDictionary()
        self._dropped: deque[str] = deque()  # copies that this host has dropped

    @property
    def any(self) -> bool:
        """True if there are other hosts."""
        return bool(self._others)

    def all(self, kind: str, **settings: str) -> None:
        """Gives all hosts the same order."""
        self._tell_dropped()
        self._tell_all(Order(kind, settings))

    def _tell_dropped(self) -> None:
        while self._dropped:
            self._tell_all(Order("drop", {"number": self._dropped.popleft()}))

    def _tell_all(self, order: Order) -> None:
        for host in self._others:
            self._tell(host, order)

    def _tell(self, host: int, order: Order) -> None:
        assert self._followers is not None, "there are other hosts"
        self._followers.tell(host, order)

    def number(self) -> str:
        """A new number, by which all hosts know a copy of weights."""
        return str(next(self._numbers))

    def know(self, weights: KeptWeights, number: str) -> None:
        """Notes the number of a copy, which the other hosts drop when this host does."""
        self._kept[weights] = number
        # It may be dropped in the middle of anything: the order waits for the next one.
        weakref.finalize(weights, self._dropped.append, number).atexit = False

    def divided(
        self, loop: Loop, kind: str, arrays: Mapping[str, np.ndarray], **settings: str
    ) -> dict[str, np.ndarray]:
        """Gives every other host the rows that it holds; returns those of this host.

        Args:
          arrays: name -> [rows, length, ...].
        """
        from maxtext_overrides.trainer.host_rows import rows_of

        self._tell_dropped()
        held = rows_of(loop)
        for host in self._others:
            self._tell(host, Order(kind, settings, held.share(host, arrays)))
        return held.share(0, arrays)

    def number_of(self, weights: KeptWeights | None) -> str:
        """The number by which all hosts know kept weights; "" for the present ones."""
        return "" if weights is None else self._kept[weights]

    def place(self, loop: Loop, arrays: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """Gives all hosts the rows of an update; returns them as arrays on all devices."""
        if not self.any:
            return arrays
        from maxtext_overrides.trainer.host_rows import rows_of

        rows = len(arrays["inputs"])
        own = self.divided(loop, "update", arrays, rows=str(rows))
        return rows_of(loop).placed(own, rows)


class Obedient:
    """Another host's model, which does what host 0 orders.

    Args:
      config: MaxText's, of the RL loop.
      context: of the trainer.
      port: gives the orders.
    """

    def __init__(self, config: Config, context: BuildContext, port: FollowerPort):
        from maxtext_overrides.trainer.model_outputs import BatchScores

        self._scores = BatchScores(config, context.section.rollouts.only_temperature)
        self._context, self._port = context, port
        self._kept: dict[str, KeptWeights] = {}
        self.loop: Loop | None = None

    def until(self, kind: str) -> Order:
        """Does what is ordered, until an order of this kind arrives; returns that one.

        Raises:
          TrainingError: host 0 gives an unknown order, or has ended training.
        """
        while (order := self._port.next_order()).kind != kind:
            action = self._actions.get(order.kind)
            if action is None:
                raise TrainingError(f"host 0 gives an unknown order: {one_line(order.kind)}")
            action(self, order)
        return order

    @property
    def shown(self) -> Loop:
        assert self.loop is not None, "a loop starts before orders come"
        return self.loop

    def next_update(self) -> Mapping[str, Any]:
        """The arrays of the next update."""
        from maxtext_overrides.trainer.host_rows import rows_of

        order = self.until("update")
        return rows_of(self.shown).placed(order.arrays, int(order.settings["rows"]))

    def _forward(self, order: Order) -> None:
        from maxtext_overrides.variables import published

        number, loop = order.settings["weights"], self.shown
        weights = self._kept[number].on_devices(loop) if number else published(loop.model_state)
        names = tuple(order.settings["names"].split())
        for _ in self._scores.parts(loop, weights, order.arrays, names):
            pass  # host 0 alone reads the outputs

    def _keep(self, order: Order) -> None:
        from maxtext_overrides.trainer.kept_weights import KeptWeights

        offload = order.settings["offload"] == "True"
        self._kept[order.settings["number"]] = KeptWeights.of(self.shown, offload)

    def _save(self, order: Order) -> None:
        from maxtext_overrides.trainer import kept_weights

        kept_weights.save(self._own_path(order), self.shown)

    def _load(self, order: Order) -> None:
        from maxtext_overrides.trainer import kept_weights

        said, path = order.settings, order.settings["path"]
        if path != self._context.section.objective.reference.path:
            path = self._own_path(order)
        offload = said["offload"] == "True"
        self._kept[said["number"]] = kept_weights.load(path, self.shown, offload, said["key"])

    def _drop(self, order: Order) -> None:
        self._kept.pop(order.settings["number"], None)

    def _own_path(self, order: Order) -> str:
        """The path of an order, which must be below the run's directory."""
        path = order.settings["path"]
        own = RunFiles(self._context.run_url).location("").rstrip("/")
        if not path.startswith(f"{own}/") or ".." in path.removeprefix(own).split("/"):
            raise TrainingError(f"host 0 names {one_line(path)}, which is not below {own}")
        return path

    _actions: Mapping[str, Callable[[Obedient, Order], None]] = {
        "forward": _forward,
        "keep": _keep,
        "save": _save,
        "load": _load,
        "drop": _drop,
    }
