"""Turns the choices of a config into parts, by name; no other module does.

Looking up a choice and validating its options builds nothing and needs no JAX; the plug-in's
``build`` is called when a part is requested.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from rlax_plugin.base.errors import (
    ConfigError,
    PluginError,
    RlaxError,
    UnknownKeyError,
    alternatives,
)
from rlax_plugin.base.types import SideSpec
from rlax_plugin.config import (
    FUNCTION,
    SLOTS,
    Algorithm,
    Choice,
    OwnObjective,
    RlaxSection,
    plain_name,
)
from rlax_plugin.config.validation import validate
from rlax_plugin.ports.compiling import CompiledProgram, CompileTarget
from rlax_plugin.ports.kinds import ALL, BY_NAME
from rlax_plugin.ports.manager import Manager, installed
from rlax_plugin.ports.offers import check_offer
from rlax_plugin.ports.protocols import BuildContext, CheckResult, Extension, WeightStore
from rlax_plugin.reward.functions.calling import EXTENSIONS
from rlax_plugin.reward.functions.signatures import FunctionError
from rlax_plugin.training.objective.loss import (
    ObjectiveSlots,
    Preset,
    algorithm_of,
    choices,
    kind_of,
    resolve,
)


@dataclass(frozen=True, slots=True)
class Offer:
    """An extension that a plug-in offers under a name."""

    plugin: str
    extension: Extension


@dataclass(frozen=True, slots=True)
class Use:
    """A part that a config chooses.

    Attributes:
      key: dotted config key, e.g. ``rlax.rewards.0``.
      kind: kind of the part, e.g. ``reward``.
      choice: name and options as given.
      environment: the one of several environments that has this part; several may have the part of
        one key. "": the run has it.
    """

    key: str
    kind: str
    choice: Choice
    environment: str = ""


class Registry:
    """Everything that plug-ins offer; calls each register hook once.

    Args:
      manager: the plug-ins that a config lists.
      built_in: the plug-ins that need not be listed; none of the listed ones.

    Attributes:
      manager: as given; only listed plug-ins observe a run.
      offers: kind -> name -> offer. A name that several plug-ins offer is written
        ``plugin:name``.

    Raises:
      PluginError: a plug-in returned something else than ``{name: Extension}``.
    """

    def __init__(self, manager: Manager, built_in: Manager | None = None):
        self.manager = manager
        self._managers = [manager] if built_in is None else [manager, built_in]
        self._all = {kind: list(self._offered(kind)) for kind in BY_NAME}
        self.offers: Mapping[str, Mapping[str, Offer]] = {
            kind: _by_name(offers) for kind, offers in self._all.items()
        }

    def _offered(self, kind: str) -> Iterator[tuple[str, Offer]]:
        """Yields (name, offer) of every plug-in, the listed ones first."""
        hook = BY_NAME[kind].hook
        for manager in self._managers:
            for plugin, result in manager.call(hook):
                if not isinstance(result, Mapping):
                    raise PluginError(
                        f"plug-in {plugin!r}: {hook} returned {result!r}, expected "
                        "{name: Extension}"
                    )
                for name, extension in result.items():
                    check_offer(kind, f"plug-in {plugin!r}: {hook}[{name!r}]", name, extension)
                    yield name, Offer(plugin, extension)

    def offer(self, kind: str, name: str, key: str) -> Offer:
        """Returns the offer for ``name``, or for ``plugin:name``.

        Raises:
          ConfigError: no plug-in offers it, or several do; names an installed plug-in that would
            offer it.
        """
        if (found := self.offers[kind].get(name)) is not None:
            return found
        if name == FUNCTION and kind in EXTENSIONS:
            return Offer(FUNCTION, EXTENSIONS[kind])
        plugin, _, plain = name.rpartition(":")
        for offered, offer in self._all[kind]:
            if (offer.plugin, offered) == (plugin, plain):
                return offer
        # A preset is chosen by a plain name, every other part by a mapping with a name in it.
        name_key = key if kind == "objective" else f"{key}.name"
        what = kind.replace("_", " ")
        if several := [one for one in self.offers[kind] if plain_name(one) == name]:
            reason = f"several plug-ins offer this {what}: write {' or '.join(several)}"
            raise ConfigError(name_key, name, reason)
        elsewhere = _offered_by(kind, plugin, plain, self.manager.names)
        if elsewhere:
            offering = " or ".join(map(repr, elsewhere))
            raise ConfigError(
                name_key,
                name,
                f"plug-in {offering} offers this {what}, but is not listed: add it to rlax.plugins",
            )
        reason = f"no plug-in offers this {what}; {alternatives(name, self.offers[kind])}"
        raise ConfigError(name_key, name, reason)

    def options(self, kind: str, choice: Choice, key: str) -> BaseModel:
        """Returns the validated options of a choice; ``key`` is its dotted config key.

        Raises:
          ConfigError: an unknown name or option, or a bad value, with the full dotted key.
        """
        extension = self.offer(kind, choice.part, key).extension
        try:
            return validate(extension.config_class, choice.options, key)
        except UnknownKeyError as error:
            # What stands beside the options, as the weight of a reward, may have been meant too.
            beside = type(choice).model_fields.keys() - {"name", "function"}
            known = {*error.known, *(beside if error.key.rpartition(".")[0] == key else ())}
            raise UnknownKeyError(error.key, error.value, known, error.others) from None

    def part(self, kind: str, choice: Choice, key: str, context: BuildContext) -> Any:
        """Builds the part that the config chooses under ``key``.

        Raises:
          ConfigError: see ``options``. Exceptions of the plug-in's ``build`` are passed on, with a
            note that names the plug-in.
          PluginError: the part does not derive from the base class of its kind.
        """
        offer = self.offer(kind, choice.part, key)
        options = self.options(kind, choice, key)
        try:
            built = offer.extension.build(options, self._within(context, key))
            if not isinstance(built, base := BY_NAME[kind].base):
                raise PluginError(
                    f"plug-in {offer.plugin!r}: {key} = {choice.name!r} built {built!r}, expected "
                    f"an object of a class that derives from rlax_plugin.api.{base.__name__}"
                )
            return self._qualified(built, offer.plugin) if isinstance(built, Preset) else built
        except RlaxError:
            raise
        except FunctionError as error:
            raise _of_function(error, choice, key) from None
        except Exception as error:
            error.add_note(f"while plug-in {offer.plugin!r} built {key} = {choice.name!r}")
            raise

    def slots(self, context: BuildContext) -> ObjectiveSlots:
        """Builds the objective of the context's config.

        Raises:
          ConfigError, PluginError: see ``part`` and
            ``rlax_plugin.training.objective.loss.resolve``.
        """
        return resolve(context.section, self._within(context).part)

    def slots_of_environments(
        self, context: BuildContext, slots: ObjectiveSlots
    ) -> dict[str, ObjectiveSlots]:
        """Builds the objective of each of several environments, by name.

        Args:
          slots: of the context's config.

        Raises:
          ConfigError: one differs in more than its advantages; or the advantages are computed again
            by the trainer, which does not know environments.
        """
        section, found, theirs = context.section, dict[str, ObjectiveSlots](), slots.algorithm
        again = (
            "with rlax.environments: the trainer would compute the advantages of a whole batch "
            "again, over all environments"
        )
        if section.environments and section.signals:
            names = [signal.name for signal in section.signals]
            raise ConfigError("rlax.signals", names, f"must be empty {again}")
        if section.environments and theirs.kl.penalises and theirs.kl.placement == "reward":
            raise ConfigError("rlax.objective.kl.placement", "reward", f"must be loss {again}")
        for name in section.environments:
            one, key = section.of_environment(name), f"rlax.environments.{name}.objective"
            with section.keys_of(name):
                found[name] = self.slots(replace(context, section=one))
            ours = found[name].algorithm
            for field in Algorithm.model_fields:
                its, wanted = getattr(ours, field), getattr(theirs, field)
                if its != wanted and field not in OwnObjective.model_fields:
                    reason = (
                        f"has {field} {its}, but rlax.objective has {wanted}: the objectives of "
                        "environments may differ in advantage and overlong only"
                    )
                    raise ConfigError(f"{key}.preset", one.objective.preset, reason)
        return found

    def _within(self, context: BuildContext, key: str = "") -> BuildContext:
        """Returns a context that can build further parts, for what is chosen under a key."""
        if key.startswith("rlax.environments.") and context.section.environments:
            context = replace(context, section=context.section.of_environment(key.split(".")[2]))

        def part(kind: str, choice: Choice, key: str) -> Any:
            return self.part(kind, choice, key, context)

        def check_part(kind: str, choice: Choice, key: str) -> None:
            self.check_part(kind, choice, key, context)

        return replace(context, part=part, check_part=check_part)

    def uses(self, section: RlaxSection) -> Iterator[Use]:
        """Yields every part that a config chooses, the slots of its objective included."""
        for kind in ALL:
            if kind.name == "objective":
                yield from self.objective_uses(section)
                continue
            own = [key for key in kind.config_keys if ".environments." in key]
            places, known = [key for key in kind.config_keys if key not in own], set[str]()
            # Those of environments first: rlax.prompt_source stands for that of the first one.
            for name, one in {**(section.by_environment if own else {}), "": section}.items():
                for place in places:
                    for key, choice in _chosen(one, "rlax", place.split(".")[1:]):
                        its_key = section.own_key(name, key)
                        if its_key.startswith("rlax.objective.") or (not name and key in known):
                            continue
                        known.add(its_key)
                        if choice.name:  # else it has options of the preset's part
                            yield Use(its_key, kind.name, choice, name)

    def _qualified(self, preset: Preset, plugin: str) -> Preset:
        """Returns a preset with its author's parts, even if other plug-ins offer the same names.

        They are the parts of the preset's own plug-in or, if it has none of a name, built-in ones.
        """

        def meant(kind: str, choice: Any) -> Any:
            if not isinstance(choice, Choice) or choice.name in self.offers[kind]:
                return choice
            offering = {o.plugin for name, o in self._all[kind] if name == choice.name}
            known = [plugin, *(p.name for p in installed() if p.built_in)]
            owner = next((name for name in known if name in offering), None)
            return Choice(name=f"{owner}:{choice.name}", **choice.options) if owner else choice

        parts = {slot: meant(kind_of(slot), getattr(preset, slot)) for slot in SLOTS}
        corrections = tuple(meant("correction", choice) for choice in preset.corrections)
        return preset.model_copy(update=parts | {"corrections": corrections})

    def objective_uses(self, section: RlaxSection) -> Iterator[Use]:
        """Yields the preset of a config, and the parts that fill its slots."""
        name = Choice(name=section.objective.preset)
        yield Use("rlax.objective.preset", "objective", name)
        for slot, kind, choice in choices(self.algorithm(section)):
            yield Use(f"rlax.objective.{slot}", kind, choice)

    def algorithm(self, section: RlaxSection) -> Algorithm:
        """Returns preset and config, merged."""
        objective, key = section.objective, "rlax.objective.preset"
        # A preset is five names and options: building it computes nothing.
        context = BuildContext.outside_run(section)
        preset = self.part("objective", Choice(name=objective.preset), key, context)
        if not isinstance(preset, Preset):
            plugin = self.offer("objective", objective.preset, key).plugin
            raise PluginError(
                f"plug-in {plugin!r}: objective {objective.preset!r} built {preset!r}, expected "
                "an rlax_plugin.api.Preset"
            )
        return algorithm_of(objective, preset)

    def validate(self, section: RlaxSection) -> None:
        """Checks the name and options of every choice of a config. Builds only the preset.

        Raises:
          ConfigError: the first choice that is wrong.
        """
        for use in self.uses(section):
            self.options(use.kind, use.choice, use.key)

    def side_channels(self, section: RlaxSection) -> Mapping[str, SideSpec]:
        """Returns the side channels that the run's rollout engine declares."""
        choice, key = section.rollouts.engine, "rlax.rollouts.engine"
        return self.offer("rollout_engine", choice.part, key).extension.side

    def workers(self, section: RlaxSection) -> int | None:
        """Returns the number of workers that the config's launcher starts; None if it is unknown.

        A launcher has this number in an option ``workers``, as docs/plugin_hooks.md tells its
        authors.
        """
        options = self.options("launcher", section.launcher, "rlax.launcher")
        workers = getattr(options, "workers", None)  # of a third party's it may be anything
        return workers if isinstance(workers, int) and workers > 0 else None

    def check_start(self, section: RlaxSection, context: BuildContext) -> list[tuple[str, str]]:
        """Runs the ``check_start`` of every chosen part that has one; see ``Extension``.

        Returns:
          The parts' warnings, each once.

        Raises:
          ConfigError: a part's check failed.
        """
        found: dict[tuple[str, str], None] = {}
        for use in self.uses(section):
            own = replace(context, section=section.of_environment(use.environment))
            with section.keys_of(use.environment):
                warnings = self.check_part(use.kind, use.choice, use.key, own)
            for key, text in warnings:
                found[section.own_key(use.environment, key), text] = None
        return list(found)

    def check_part(
        self, kind: str, choice: Choice, key: str, context: BuildContext
    ) -> Sequence[tuple[str, str]]:
        """Runs the ``check_start`` of one part, if it has one.

        Returns:
          The part's warnings.

        Raises:
          ConfigError: the part's check failed.
        """
        extension = self.offer(kind, choice.part, key).extension
        if extension.check_start is not None:
            try:
                found = extension.check_start(
                    self.options(kind, choice, key), self._within(context, key)
                )
            except FunctionError as error:
                raise _of_function(error, choice, key) from None
            if found is not None:
                return found.warnings
        return ()

    def check(self, section: RlaxSection, context: BuildContext) -> dict[str, CheckResult]:
        """Runs the ``check`` of every chosen part that has one; see ``Extension``.

        The trainer comes first, because its messages about a wrong model are the best.

        Returns:
          Key of the part -> result of its check; the second of several environments with this part
          has its name behind the key.

        Raises:
          ConfigError: a part's check failed.
        """
        checked = {}
        for use in sorted(self.uses(section), key=lambda use: use.kind != "trainer"):
            extension = self.offer(use.kind, use.choice.part, use.key).extension
            if extension.check is not None:
                options = self.options(use.kind, use.choice, use.key)
                own = replace(context, section=section.of_environment(use.environment))
                title = f"{use.key} ({use.environment})" if use.key in checked else use.key
                with section.keys_of(use.environment):
                    found = extension.check(options, self._within(own, use.key)) or CheckResult()
                key_of = functools.partial(section.own_key, use.environment)
                warnings = tuple((key_of(key), text) for key, text in found.warnings)
                checked[title] = replace(found, warnings=warnings)
        return checked

    def compiled(
        self, kind: str, choice: Choice, key: str, context: BuildContext, target: CompileTarget
    ) -> Iterable[CompiledProgram] | None:
        """Runs the ``compile`` of one part; None if it has none.

        Raises:
          ConfigError: the part's options are wrong, or do not suit the target.
        """
        extension = self.offer(kind, choice.part, key).extension
        if extension.compile is None:
            return None
        return extension.compile(self.options(kind, choice, key), self._within(context), target)


def _of_function(error: FunctionError, choice: Choice, key: str) -> ConfigError:
    return ConfigError(f"{key}.function", choice.options["function"], str(error))


def _chosen(value: Any, key: str, place: Sequence[str]) -> Iterator[tuple[str, Choice]]:
    """Yields (dotted key, choice) of every part that is chosen at a place below ``value``."""
    if isinstance(value, Choice):
        yield key, value
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _chosen(item, f"{key}.{index}", place)
    elif isinstance(value, Mapping):  # of names that the config chooses
        for name, item in value.items():
            yield from _chosen(item, f"{key}.{name}", place[1:])
    elif value is not None:
        yield from _chosen(getattr(value, place[0]), f"{key}.{place[0]}", place[1:])


def _by_name(offered: Sequence[tuple[str, Offer]]) -> dict[str, Offer]:
    times = Counter(name for name, _ in offered)
    return {
        name if times[name] == 1 else f"{offer.plugin}:{name}": offer for name, offer in offered
    }


def _offered_by(kind: str, owner: str, name: str, loaded: tuple[str, ...]) -> list[str]:
    """Returns installed plug-ins, not loaded so far, that offer a name, for an error message.

    Each is loaded alone; a plug-in that fails to load cannot be recommended and is skipped.

    Args:
      owner: the only plug-in to consider; empty: any.
      loaded: plug-ins that are loaded.
    """
    found = []
    for plugin in installed():
        if plugin.name in loaded or plugin.built_in or owner not in ("", plugin.name):
            continue
        try:
            offers = Registry(Manager([plugin.name])).offers[kind]
        except PluginError:
            continue
        if name in offers:
            found.append(plugin.name)
    return found


@functools.cache
def built_in_plugins(listed: tuple[str, ...] = ()) -> Manager:
    """Returns the plug-ins of this project. Importing them takes a tenth of a second, and no JAX.

    Args:
      listed: plug-ins that a config lists. Built-in ones among them are left out, because another
        manager has them: listing a built-in plug-in changes nothing.
    """
    return Manager([p.name for p in installed() if p.built_in and p.name not in listed])


@functools.cache
def registry_of(plugins: tuple[str, ...]) -> Registry:
    """Returns ``registry_for`` a config that lists these plug-ins."""
    return Registry(Manager(plugins), built_in_plugins(plugins))


def registry_for(section: RlaxSection) -> Registry:
    """Returns the registry of the built-in and the listed plug-ins; one per process and list.

    Raises:
      PluginError: a plug-in cannot be loaded or breaks the hook contract.
    """
    return registry_of(section.plugins)


def build_part(kind: str, choice: Choice, key: str, context: BuildContext) -> Any:
    """Builds one part, with the plug-ins that the context's config lists; see ``Registry.part``."""
    return registry_for(context.section).part(kind, choice, key, context)


def build_weight_store(context: BuildContext) -> WeightStore:
    """Builds the weight store of the context's config."""
    return build_part("weight_store", context.section.weights.store, "rlax.weights.store", context)
