"""Trainer ``maxtext``: MaxText's own training loop with the run's objective."""

from __future__ import annotations

from rlax_maxtext.facts import check
from rlax_maxtext.trainer import MaxTextTrainer
from rlax_plugin.api import BuildContext, Extension, NoOptions, hookimpl


def _build(config: NoOptions, context: BuildContext) -> MaxTextTrainer:
    return MaxTextTrainer(context)


@hookimpl
def rlax_register_trainer() -> dict[str, Extension]:
    trainer = Extension(NoOptions, _build, check, needs_model=True, warm_starts=True)
    return {"maxtext": trainer}
