"""``check_plugin``: checks every part that a plug-in offers against the contract of its kind."""

from __future__ import annotations

import functools
import importlib
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.errors import ConfigError, ContractError, Finding, PluginError, alternatives
from rlax_plugin.base.types import Request, WeightVersion
from rlax_plugin.build import Registry, registry_of
from rlax_plugin.config import Choice, RlaxSection
from rlax_plugin.config.loading import resolved
from rlax_plugin.ports.hookspecs import EVENTS
from rlax_plugin.ports.kinds import ALL, BY_NAME, Kind, choose
from rlax_plugin.ports.manager import Manager
from rlax_plugin.ports.protocols import BuildContext, RolloutEngine, WeightStore
from rlax_plugin.ports.training import Trainer
from rlax_plugin.testing import contracts
from rlax_plugin.testing.builders import make_request
from rlax_plugin.testing.contracts import engine, observers, store, trainer
from rlax_plugin.testing.contracts.inspection import Inspection
from rlax_plugin.testing.contracts.trial import STEPS, Trial, Unbuilt
from rlax_plugin.testing.fakes import FakeTrainerPort

_THREAD = "check of a part"  # the command line knows it


def within[T](deadline_s: float, work: Callable[[], T], late: Callable[[str], Exception]) -> T:
    """Runs work on a thread of its own, which is abandoned after the deadline.

    Args:
      late: makes the error of work that took too long, from its present line of code.
    """
    threads: list[threading.Thread] = []

    def run() -> T:
        threads.append(threading.current_thread())
        return work()

    future = on_daemon(run, _THREAD)
    try:
        return future.result(deadline_s)
    except TimeoutError:
        if future.done():  # the work itself raised it
            raise
        raise late(_line_of(threads[0])) from None


def _line_of(thread: threading.Thread) -> str:
    """Returns the innermost line of code of a thread outside the standard library."""
    frame = sys._current_frames().get(thread.ident or 0)
    lines = traceback.extract_stack(frame) if frame else []
    library = Path(threading.__file__).parent
    own = [one for one in lines if Path(one.filename).parent not in (library, library / "asyncio")]
    if not own:
        return "an unknown line"
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} ({own[-1].line})"


HOOK = "hook"
DEADLINE_S = 90.0  # for each part
_PROCESS_SHARE = 2 / 3  # of the deadline, so that no process is left when it expires
_ENDS = "its check ends within the deadline"
_MEND = (
    "give every wait a deadline of its own; if it only needs longer, check it with "
    "rlax check-plugin --deadline SECONDS, or check_plugin(..., deadline_s=...)"
)
TOYS = "rlax_plugin.testing"  # has a part of every kind that a plug-in may need and not offer


@dataclass(frozen=True, slots=True)
class Checked:
    """The result for one part.

    Attributes:
      plugin: as given to ``check_plugin``.
      kind: such as ``reward``; ``hook`` for ``rlax_on_<event>``.
      name: the name to choose in the config; for a hook, the hook's name.
      rules: rules that were tried, one phrase each; empty if the part could not be tried.
      note: the reason why the part could not be tried.
      abilities: optional abilities that it has, and those that it does not have, in words.
      findings: broken rules; empty if it fulfils its contract.
    """

    plugin: str
    kind: str
    name: str
    rules: tuple[str, ...]
    note: str = ""
    abilities: str = ""
    findings: tuple[Finding, ...] = ()


def check_plugin(
    name: str,
    *,
    options: Mapping[str, Mapping[str, object]] | None = None,
    plugins: Sequence[str] = (),
    deadline_s: float = DEADLINE_S,
    on_checked: Callable[[Checked], None] | None = None,
) -> tuple[Checked, ...]:
    """Builds every part of a plug-in and checks it against the contract of its kind.

    Only the plug-in is real: prompts, groups, batches and weights are small and made up. An engine
    and a trainer get the toy policy of ``rlax_plugin.testing.policy``, unless they are registered
    with ``needs_model``.

    Args:
      name: name of an entry point or a module, as in ``rlax.plugins``.
      options: ``"kind/name"`` -> options of that part, for options that have no defaults.
      plugins: other plug-ins that it needs, such as one with prompts for its reward.
      deadline_s: time limit for each part, and for loading the plug-in. A part that blocks beyond
        it is a finding; its thread is abandoned.
      on_checked: called with the result of each part as soon as it is known.

    Raises:
      ContractError: parts break their contracts; the error lists all of them.
      PluginError: it cannot be loaded, or breaks the contract of hooks.
      ConfigError: options are missing, wrong, or of a part that it does not offer.
    """

    def late(where: str) -> PluginError:
        return PluginError(
            f"plug-in {name!r} was not loaded within {deadline_s:g} s: it is still at {where}. Do "
            "not wait while a module is imported or a hook registers parts: wait in build"
        )

    with tempfile.TemporaryDirectory(prefix="rlax-check-", ignore_cleanup_errors=True) as folder:
        check = within(
            deadline_s, lambda: _Check(name, options or {}, plugins, Path(folder), deadline_s), late
        )
        return check.run(on_checked or (lambda one: None))


def check_engine(
    make_engine: Callable[[], RolloutEngine],
    versions: Sequence[WeightVersion],
    request: Request | None = None,
    *,
    tolerance: float = 1e-5,
    deadline_s: float = 60.0,
) -> tuple[str, ...]:
    """Checks the contract of a rollout engine, with weights of its own model.

    Args:
      make_engine: makes a fresh engine, which is closed if it has a ``close``.
      versions: two published versions, the older one first; see ``publish_version``.
      request: prompt and sampling to generate with; its seeds and ids are replaced.
      tolerance: maximum difference of log-probs of one seed, generated beside others and alone;
        nats.
      deadline_s: time limit of each of about eight scenarios.

    Returns:
      The fulfilled rules; the last entry lists the optional abilities that were found.

    Raises:
      ContractError: a rule is broken.
    """
    part = Inspection("rollout engine")
    engine.check_generation(
        make_engine,
        versions,
        request or make_request(),
        part,
        tolerance=tolerance,
        deadline_s=deadline_s,
    )
    return *part.close(), part.abilities


def check_store(weight_store: WeightStore) -> tuple[str, ...]:
    """Checks the contract of a weight store, in a temporary local directory.

    Returns:
      The fulfilled rules.

    Raises:
      ContractError: a rule is broken.
    """
    part = Inspection(f"weight store {type(weight_store).__name__}")
    with tempfile.TemporaryDirectory(prefix="rlax-check-", ignore_cleanup_errors=True) as folder:
        store.check_versions(weight_store, Path(folder), part)
    return part.close()


def check_trainer(
    make_trainer: Callable[[], Trainer],
    make_port: Callable[..., FakeTrainerPort] = FakeTrainerPort,
    *,
    steps: int = STEPS,
) -> tuple[str, ...]:
    """Checks the contract of a trainer, with batches for its own model.

    Args:
      make_trainer: makes a trainer of the same run each time, so the second one resumes.
      make_port: ``functools.partial(FakeTrainerPort, batches)`` for other batches.
      steps: number of the run's steps, at least 3.

    Returns:
      The fulfilled rules.

    Raises:
      ContractError: a rule is broken.
    """
    part = Inspection("trainer")
    trainer.check_training(make_trainer, make_port, steps, part)
    return part.close()


def contract_of(kind: Kind) -> Callable[[Trial, Inspection], None]:
    """The function that checks a part of this kind."""
    module = importlib.import_module(f"{contracts.__name__}.{kind.contract}")
    return getattr(module, f"check_{kind.name}")


_ToCheck = tuple[Checked, Inspection, Callable[[], bool]]


class _Check:
    """One run of ``check_plugin``, which writes below ``folder``."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Mapping[str, object]],
        plugins: Sequence[str],
        folder: Path,
        deadline_s: float,
    ):
        self._name, self._options, self._folder = name, options, folder
        self._deadline_s = deadline_s
        self._own = Registry(Manager((name, *plugins)))
        loaded = (name, *plugins) if TOYS in (name, *plugins) else (name, *plugins, TOYS)
        self._registry = registry_of(loaded)
        self._section = self._section_with(loaded)
        # Another process builds one part, which needs no toy ones.
        self._lean = self._section.model_copy(update={"plugins": (name, *plugins)})
        self._run_dirs = 0

    def run(self, on_checked: Callable[[Checked], None]) -> tuple[Checked, ...]:
        """See ``check_plugin``."""
        offered = list(self._offered())
        if unknown := self._options.keys() - {f"{kind}/{name}" for kind, name in offered}:
            known = (f"{kind}/{name}" for kind, name in offered)
            raise ConfigError(
                f"options[{min(unknown)!r}]", None, f"no such part; {alternatives('', known)}"
            )
        for kind, name in offered:
            self._check_options(kind, name)
        checked = []
        for one, part, check in (*self._parts(offered), *self._hooks()):
            if not (done := self._checked(one, part, check)):
                continue
            checked.append(done)
            on_checked(done)
        if broken := [finding for one in checked for finding in one.findings]:
            raise ContractError(broken)
        if not checked:
            raise PluginError(f"plug-in {self._name!r} offers nothing: its hooks return no part")
        return tuple(checked)

    def _offered(self) -> Iterator[tuple[str, str]]:
        for kind in BY_NAME:
            for name, offer in self._own.offers[kind].items():
                if offer.plugin == self._name:
                    yield kind, name

    def _section_with(self, plugins: tuple[str, ...]) -> RlaxSection:
        """A config with the plug-in's own parts, and toy parts for the kinds that it lacks."""

        content: dict[str, Any] = {
            "plugins": plugins,
            "rollouts": {
                "group_size": 4,
                "groups_per_step": 2,
                "slots": 8,
                "max_prompt_tokens": 8,
                "max_new_tokens": 16,
            },
        }
        for kind in ALL:
            if kind.toy:
                name = next(iter(self._own.offers[kind.name]), kind.toy)
                choose(content, kind.places[0], self._choice(kind.name, name))
        return RlaxSection.model_validate(content)

    def _choice(self, kind: str, name: str) -> Choice:
        """The plug-in's part, or else the toy part, even if another plug-in has this name."""
        options = self._options.get(f"{kind}/{name}", {})
        if name not in self._registry.offers[kind]:
            own = self._own.offers[kind].get(name)
            name = f"{own.plugin if own else TOYS}:{name}"
        return Choice(name=name, **options)

    def _check_options(self, kind: str, name: str) -> None:
        key = f"options['{kind}/{name}']"
        try:
            self._registry.options(kind, self._choice(kind, name), key)
        except ConfigError as error:
            field = error.key.removeprefix(f"{key}.")
            how = (
                f"check_plugin({self._name!r}, options={{'{kind}/{name}': {{{field!r}: ...}}}}), "
                f"or rlax check-plugin {self._name} --options {kind}/{name}.{field}=..."
            )
            raise ConfigError(
                error.key, error.value, f"{error.reason}; give it with {how}", error.others
            ) from None

    def _context(self) -> BuildContext:
        """The context of a separate run, in an empty directory."""
        self._run_dirs += 1
        run_dir = self._folder / f"run-{self._run_dirs}"
        run_dir.mkdir()
        content = {
            "run_name": run_dir.name,
            "base_output_directory": str(self._folder),
            "steps": STEPS,
            "rlax": self._section.model_dump(mode="json"),
        }
        return BuildContext(
            run_dir=run_dir,
            run_url=str(run_dir),
            seed=self._section.seed,
            section=self._section,
            config=resolved(content),
        )

    def _parts(self, offered: Sequence[tuple[str, str]]) -> Iterator[_ToCheck]:
        for kind, name in offered:
            where = f"plug-in {self._name!r}, {BY_NAME[kind].hook}[{name!r}]"
            part, one = Inspection(where), Checked(self._name, kind, name, ())
            if self._own.offer(kind, name, kind).extension.needs_model:
                own = {"rollout_engine": "check_engine", "trainer": "check_trainer"}
                how = own.get(kind, "a test of its author's")
                note = f"needs a model: its author runs {how}"
                yield replace(one, note=note), part, lambda: True
            else:
                yield one, part, functools.partial(self._check, kind, name, part)

    def _check(self, kind: str, name: str, part: Inspection) -> bool:
        with suppress(Unbuilt):
            contract_of(BY_NAME[kind])(self._trial(kind, name), part)
        return True

    def _checked(self, one: Checked, part: Inspection, check: Callable[[], bool]) -> Checked | None:
        """Runs a check within the deadline; None if the plug-in does not have this hook."""

        def late(where: str) -> ContractError:
            during = f", while it is checked: {part.rules[-1]}" if part.rules else ""
            found = f"it blocks at {where}{during}"
            return ContractError([*part.findings, Finding(part.where, _ENDS, found, _MEND)])

        broken = part.findings
        try:
            if not within(self._deadline_s, check, late):
                return None
        except ContractError as error:
            broken = error.findings
        rules, abilities = tuple(part.rules), part.abilities
        return replace(one, rules=rules, abilities=abilities, findings=tuple(broken))

    def _trial(self, kind: str, name: str) -> Trial:
        return Trial(
            kind=kind,
            choice=self._choice(kind, name),
            registry=self._registry,
            context=self._context(),
            lean=self._lean,
            make_context=self._context,
            own_prompts=bool(self._own.offers["prompt_source"]),
            process_s=_PROCESS_SHARE * self._deadline_s,
        )

    def _hooks(self) -> Iterator[_ToCheck]:
        manager, run_dir = Manager((self._name,)), self._context().run_dir
        for event in EVENTS:
            hook = f"rlax_on_{event}"
            part = Inspection(f"plug-in {self._name!r}, {hook}")
            one = Checked(self._name, HOOK, hook, ())
            yield one, part, functools.partial(observers.check_hook, manager, event, run_dir, part)
