"""Reports a run's events to the hooks of plug-ins and to the observers that a config chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.errors import PluginError
from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.base.text.secrets import hidden
from rlax_plugin.ports.manager import Manager
from rlax_plugin.ports.observer import Observer, defect, storable
from rlax_plugin.run.controller.chosen import Builder, Chosen

_START, _STEP_END, _ERROR = "run_start", "step_end", "run_error"


def chosen_observers(builder: Builder) -> list[Chosen[Observer]]:
    """Builds the observers of a config, in its order.

    Raises:
      ConfigError: see ``Registry.part``.
      PluginError: a method of an observer cannot receive its event.
    """
    found = []
    for index, choice in enumerate(builder.section.observers):
        key = f"rlax.observers.{index}"
        one = Chosen.build(builder, "observer", choice, key)
        if wrong := defect(one.part):
            raise one.error(wrong)
        found.append(one)
    return found


class Observers:
    """Reports events to hooks and observers. Lives on the controller's event loop.

    An exception of a hook or observer fails the run, but is not raised here: events are reported in
    the middle of other work, which must be completed. Afterwards ``state`` raises it, because the
    state would lack the failed event.

    Observers receive ``run_start`` first, when they are restored; earlier events, such as the
    publication of the first weights, follow it in order. Hooks have no state and receive events at
    once.

    Attributes:
      last_step: the last step whose end is in the states.

    Args:
      manager: of the plug-ins whose hooks observe.
      chosen: the observers.
      supervision: gets the exception of a plug-in, as a ``PluginError`` that names it.
    """

    def __init__(
        self, manager: Manager, chosen: Sequence[Chosen[Observer]], supervision: Supervision
    ):
        self._manager, self._chosen = manager, tuple(chosen)
        self._supervision = supervision
        self._held: list[tuple[str, Mapping[str, Any]]] | None = []  # None: the run has started
        self._missed: PluginError | None = None  # what was raised in place of taking an event
        self.last_step = 0

    def notify(self, event: str, **arguments: Any) -> None:
        """Reports an event, e.g. ``notify("step_end", step=1, metrics={})``."""
        try:
            self._manager.call(f"rlax_on_{event}", **arguments)
            self._tell(event, arguments)
        except PluginError as error:
            self._failed(error)

    def notify_again(self, event: str, **arguments: Any) -> None:
        """Reports an event of an earlier process that is not in the restored states.

        Hooks received it from that process.
        """
        try:
            self._tell(event, arguments)
        except PluginError as error:
            self._failed(error)

    def _tell(self, event: str, arguments: Mapping[str, Any]) -> None:
        if event == _START:
            held, self._held = self._held or [], None
            for earlier, its in ((event, arguments), *held):
                self._call(earlier, its)
        elif self._held is not None and event != _ERROR:
            self._held.append((event, arguments))
        else:
            self._call(event, arguments)

    def _call(self, event: str, arguments: Mapping[str, Any]) -> None:
        if event == _STEP_END:
            self.last_step = arguments["step"]
        for one in self._chosen:
            one.call(getattr(one.part, f"on_{event}"), **arguments)

    def _failed(self, error: PluginError) -> None:
        self._missed = self._missed or error
        self._supervision.fail(error)

    async def run_failed(self, error: Exception) -> None:
        """Reports that the run has failed, before everything is shut down."""
        self.notify(_ERROR, error=hidden(harmless(str(error))))

    def state(self) -> dict[str, Any]:
        """Returns the current states of the observers, for ``restore``.

        Raises:
          PluginError: a state cannot be stored, or an observer failed at an earlier event.
        """
        if self._missed is not None:
            raise self._missed
        states = {name: _stored(one) for name, one in self._named()}
        return {"last_step": self.last_step, "states": states}

    def restore(self, document: Mapping[str, Any]) -> None:
        """Restores the observers from ``state``; an observer missing in it keeps its initial state.

        Raises:
          PluginError: an observer raised.
        """
        self.last_step, states = document.get("last_step", 0), document.get("states", {})
        for name, one in self._named():
            if name in states:
                one.call(one.part.restore, states[name])

    def _named(self) -> Iterator[tuple[str, Chosen]]:
        """Yields each observer with its name, numbered from the second observer of a name on."""
        used: Counter[str] = Counter()
        for one in self._chosen:
            used[one.name] += 1
            yield one.name if used[one.name] == 1 else f"{one.name} {used[one.name]}", one


def _stored(one: Chosen) -> Any:
    state = one.call(one.part.state)
    try:
        return storable(state)
    except ValueError as error:
        raise one.error(str(error)) from error
