"""The context in which the parts of a toy run are built, with signals of a config."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlax_plugin.api import BuildContext
from rlax_plugin.build import registry_for
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import resolved
from rlax_plugin.config.validation import validate


def toy_context(
    directory: Path,
    *signals: str | Mapping[str, Any],
    objective: Mapping[str, Any],
    plugins: tuple[str, ...] = (),
    steps: int = 4,
    made: bool = True,
) -> BuildContext:
    """The context of a run of two groups of two samples a step.

    Args:
      directory: parent of the run's directory, which is ``run``.
      signals: names or choices of ``rlax.signals``.
      objective: ``rlax.objective``; the preset is grpo.
      plugins: further plug-ins.
      steps: of the run.
      made: the run's directory is made.
    """
    section = {
        "plugins": [*plugins, "rlax_plugin.testing"],
        "prompt_source": {"name": "numbers"},
        "rewards": [{"name": "even"}],
        "rollouts": {"engine": {"name": "scripted"}, "group_size": 2, "groups_per_step": 2},
        "trainer": {"name": "bigram", "checkpoint_every": 2},
        "objective": {"preset": "grpo", **objective},
        "signals": [{"name": one} if isinstance(one, str) else dict(one) for one in signals],
    }
    content = {"steps": steps, "base_output_directory": str(directory), "run_name": "run"}
    config = resolved(content | {"rlax": section})
    found = validate(RlaxSection, section, "rlax")
    registry = registry_for(found)
    registry.validate(found)
    run_dir = directory / "run"
    if made:
        run_dir.mkdir(parents=True, exist_ok=True)
    context = BuildContext(run_dir, found.seed, found, config, run_url=str(run_dir))

    def part(kind: str, choice: Any, key: str) -> Any:
        return registry.part(kind, choice, key, context)

    return replace(context, part=part)
