"""``check_plugin``: every part that a plug-in offers, against the contract of its kind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rlax_plugin.build import Registry, registry_of
from rlax_plugin.config import Choice, Curation, RlaxSection, Rollouts, Weights
from rlax_plugin.errors import ConfigError, ContractError, PluginError, alternatives
from rlax_plugin.ports.kinds import BY_NAME
from rlax_plugin.ports.manager import KINDS, REGISTER, Manager
from rlax_plugin.ports.protocols import BuildContext, RolloutEngine, WeightStore
from rlax_plugin.ports.training import Trainer
from rlax_plugin.testing import policy
from rlax_plugin.testing.builders import make_prompt, make_request, publish_version
from rlax_plugin.testing.contracts import (
    advantage,
    curation,
    engine,
    launcher,
    observers,
    preset,
    slots,
    store,
    task,
    tracker,
    trainer,
)
from rlax_plugin.testing.contracts.inspection import Inspection, require
from rlax_plugin.testing.fakes import CANARY_TOKENS, FakeTrainerPort
from rlax_plugin.types import Canary, GroupRequest, Prompt, WeightVersion

TOYS = "rlax_plugin.testing"  # has a part of every kind that a plug-in may need and not offer
STEPS = 3
_CANARY_TOLERANCE = 1e-4  # nats
_BUILD = "let build(config, context) return the part, and raise a ConfigError for bad options"


@dataclass(frozen=True, slots=True)
class Checked:
    """One part that keeps its contract.

    Attributes:
      plugin: as given to ``check_plugin``.
      kind: such as ``reward``; ``observer`` for a ``rlax_on_<event>`` hook.
      name: what the config would choose; of an observer, the hook.
      rules: what holds, one phrase each; empty if nothing could be tried.
      note: why nothing could be tried.
    """

    plugin: str
    kind: str
    name: str
    rules: tuple[str, ...]
    note: str = ""


def check_plugin(
    name: str,
    *,
    options: Mapping[str, Mapping[str, object]] | None = None,
    plugins: Sequence[str] = (),
) -> tuple[Checked, ...]:
    """Builds every part of a plug-in and tries what its kind promises.

    Nothing but the plug-in is real: prompts, groups, batches and weights are small and made up. An
    engine and a trainer get the toy policy of ``rlax_plugin.testing.policy``, unless they are
    registered with ``needs_model``.

    Args:
      name: of an entry point or a module, as ``rlax.plugins`` lists it.
      options: ``"kind/name"`` -> options of that part, where they have no defaults.
      plugins: others that it needs, such as one with prompts for its reward.

    Raises:
      ContractError: parts break their contracts; tells all of them.
      PluginError: it cannot be loaded, or breaks the contract of hooks.
      ConfigError: options are missing, wrong, or of a part that it does not offer.
    """
    with tempfile.TemporaryDirectory(prefix="rlax-check-", ignore_cleanup_errors=True) as folder:
        return _Check(name, options or {}, plugins, Path(folder)).run()


def check_engine(
    make_engine: Callable[[], RolloutEngine],
    versions: Sequence[WeightVersion],
    request: GroupRequest | None = None,
    *,
    tolerance: float = 1e-5,
    deadline_s: float = 60.0,
) -> tuple[str, ...]:
    """Tries what a rollout engine promises, with weights of its own model.

    Args:
      make_engine: makes a fresh one; it is closed if it has a ``close``.
      versions: two that are published, the older one first; see ``publish_version``.
      request: prompt and sampling to generate with; its seeds and ids are replaced.
      tolerance: between log-probs of one seed, generated beside others and alone; nats.
      deadline_s: for each of about six scenarios.

    Returns:
      What was tried.

    Raises:
      ContractError: a promise is broken.
    """
    part = Inspection("rollout engine")
    engine.check_rollout_engine(
        make_engine,
        versions,
        request or make_request(),
        part,
        tolerance=tolerance,
        deadline_s=deadline_s,
    )
    return part.close()


def check_store(weight_store: WeightStore) -> tuple[str, ...]:
    """Tries what a weight store promises, in a temporary local directory.

    Returns:
      What was tried.

    Raises:
      ContractError: a promise is broken.
    """
    part = Inspection(f"weight store {type(weight_store).__name__}")
    with tempfile.TemporaryDirectory(prefix="rlax-check-", ignore_cleanup_errors=True) as folder:
        store.check_weight_store(weight_store, Path(folder), part)
    return part.close()


def check_trainer(
    make_trainer: Callable[[], Trainer],
    make_port: Callable[..., FakeTrainerPort] = FakeTrainerPort,
    *,
    steps: int = STEPS,
) -> tuple[str, ...]:
    """Tries what a trainer promises, with batches for its own model.

    Args:
      make_trainer: makes one of the same run each time, so that the second goes on.
      make_port: ``functools.partial(FakeTrainerPort, batches)`` for other batches.
      steps: the run's, at least 3.

    Returns:
      What was tried.

    Raises:
      ContractError: a promise is broken.
    """
    part = Inspection("trainer")
    trainer.check_training(make_trainer, make_port, steps, part)
    return part.close()


class _Check:
    """One run of ``check_plugin``, which writes below ``folder``."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Mapping[str, object]],
        plugins: Sequence[str],
        folder: Path,
    ):
        self._name, self._options, self._folder = name, options, folder
        self._own = Registry(Manager((name, *plugins)))
        loaded = (name, *plugins) if TOYS in (name, *plugins) else (name, *plugins, TOYS)
        self._registry = registry_of(loaded)
        self._section = self._section_with(loaded)
        # Another process builds one part, which needs no toy ones.
        self._lean = self._section.model_copy(update={"plugins": (name, *plugins)})
        self._run_dirs = 0

    def run(self) -> tuple[Checked, ...]:
        offered = list(self._offered())
        if unknown := self._options.keys() - {f"{kind}/{name}" for kind, name in offered}:
            known = (f"{kind}/{name}" for kind, name in offered)
            raise ConfigError(
                f"options[{min(unknown)!r}]", None, f"no such part; {alternatives('', known)}"
            )
        for kind, name in offered:
            self._check_options(kind, name)
        checked, findings = [], []
        for one, part in [*self._parts(offered), *self._observers()]:
            checked.append(replace(one, rules=tuple(part.rules)))
            findings += part.findings
        if findings:
            raise ContractError(findings)
        if not checked:
            raise PluginError(f"plug-in {self._name!r} offers nothing: its hooks return no part")
        return tuple(checked)

    def _offered(self) -> Iterator[tuple[str, str]]:
        for kind in KINDS:
            for name, offer in self._own.offers[kind].items():
                if offer.plugin == self._name:
                    yield kind, name

    def _section_with(self, plugins: tuple[str, ...]) -> RlaxSection:
        """A config whose parts are the plug-in's own where it offers them, else the toy ones."""

        def chosen(kind: str) -> Choice:
            return self._choice(kind, next(iter(self._own.offers[kind]), BY_NAME[kind].toy))

        return RlaxSection(
            plugins=plugins,
            prompt_source=chosen("prompt_source"),
            rewards=(chosen("reward"),),
            rollouts=Rollouts(
                engine=chosen("rollout_engine"),
                group_size=4,
                groups_per_step=2,
                slots=8,
                max_prompt_tokens=8,
                max_new_tokens=16,
            ),
            weights=Weights(store=chosen("weight_store")),
            curation=Curation(sampler=chosen("sampler")),
            trainer=chosen("trainer"),
        )

    def _choice(self, kind: str, name: str) -> Choice:
        """The part of the plug-in, or else the toy one, whoever else has one of that name."""
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
        """Of a run of its own: an empty directory, and a config file."""
        self._run_dirs += 1
        run_dir = self._folder / f"run-{self._run_dirs}"
        run_dir.mkdir()
        config = self._folder / f"run-{self._run_dirs}.yml"
        content = {
            "run_name": run_dir.name,
            "base_output_directory": str(self._folder),
            "steps": STEPS,
            "rlax": self._section.model_dump(mode="json"),
        }
        config.write_text(yaml.safe_dump(content))
        return BuildContext(
            run_dir=run_dir,
            run_url=str(run_dir),
            seed=self._section.seed,
            section=self._section,
            maxtext_argv=(str(config),),
        )

    def _parts(self, offered: Sequence[tuple[str, str]]) -> Iterator[tuple[Checked, Inspection]]:
        for kind, name in offered:
            where = f"plug-in {self._name!r}, {REGISTER}{kind}[{name!r}]"
            part, one = Inspection(where), Checked(self._name, kind, name, ())
            if self._own.offer(kind, name, kind).extension.needs_model:
                own = {"rollout_engine": "check_engine", "trainer": "check_trainer"}
                how = own.get(kind, "a test of its author's")
                yield replace(one, note=f"needs a model: its author runs {how}"), part
                continue
            self._check(kind, name, part)
            yield one, part

    def _observers(self) -> Iterator[tuple[Checked, Inspection]]:
        manager, run_dir = Manager((self._name,)), self._context().run_dir
        for hook in observers.OBSERVERS:
            part = Inspection(f"plug-in {self._name!r}, {hook}")
            if observers.check_observer(manager, hook, run_dir, part):
                yield Checked(self._name, "observer", hook, ()), part

    def _check(self, kind: str, name: str, part: Inspection) -> None:
        context = self._context()

        def build() -> Any:
            return self._registry.part(kind, self._choice(kind, name), kind, context)

        if kind == "reward":  # built where it is used: in a process of its own
            with part.rule("there are prompts to judge", "mend the plug-in's prompt source first"):
                task.check_reward(self._choice(kind, name), self._lean, self._prompts(), part)
        elif kind == "rollout_engine":
            versions: list[WeightVersion] = []
            with part.rule("there are weights to load", "mend the plug-in's weight store first"):
                versions = self._published(context)
            if part.sound:
                engine.check_rollout_engine(build, versions, make_request(), part)
        elif kind == "trainer":
            trainer.check_training(build, FakeTrainerPort, STEPS, part)
        elif kind == "launcher":
            config = Path(context.maxtext_argv[0])
            launcher.check_launcher(build, config, context.run_dir, part)
        else:
            self._check_built(kind, name, build, context, part)

    def _check_built(
        self,
        kind: str,
        name: str,
        build: Callable[[], Any],
        context: BuildContext,
        part: Inspection,
    ) -> None:
        built = None
        with part.rule("can be built", _BUILD):
            built = build()
            require(built is not None, "build returned None")
        if built is None:
            return
        if kind == "prompt_source":
            task.check_prompt_source(build, self._choice(kind, name), self._lean, part)
        elif kind == "objective":
            preset.check_preset(built, self._choice("objective", name).name, self._section, part)
        elif kind == "tracker":
            tracker.check_tracker(built, build, context.run_dir, part)
        elif kind == "weight_store":
            store.check_weight_store(built, self._folder / f"store-{name}", part)
        elif kind == "sampler":
            curation.check_sampler(build, part)
        else:
            _PURE[kind](built, part)

    def _prompts(self) -> Sequence[Prompt]:
        """Two that a reward can judge: the plug-in's own, if it has any."""
        sources = self._own.offers["prompt_source"]
        if not sources:
            return make_prompt("12+30=", "42"), make_prompt("7+8=", "15")
        choice = self._section.prompt_source
        source = self._registry.part("prompt_source", choice, "prompt_source", self._context())
        return source.prompts("train")[:2]

    def _published(self, context: BuildContext) -> list[WeightVersion]:
        """Two versions of the toy policy."""
        choice = self._section.weights.store
        kept = self._registry.part("weight_store", choice, "weight_store", context)
        versions = []
        for number in (0, 1):
            weights = policy.initial_weights(number)
            logprobs = policy.sequence_log_probs(weights, CANARY_TOKENS)
            canary = Canary(CANARY_TOKENS, logprobs, _CANARY_TOLERANCE)
            path = str(context.run_dir / f"weights-{number}")
            versions.append(publish_version(kept, path, weights, version=number, canary=canary))
        return versions


_PURE: Mapping[str, Callable[[Any, Inspection], None]] = {
    "aggregation": slots.check_aggregation,
    "importance_weight": slots.check_importance_weight,
    "correction": slots.check_correction,
    "gradient_term": slots.check_gradient_term,
    "advantage": advantage.check_advantage,
    "filter": curation.check_filter,
}
