"""The launcher ``ray``: workers as actors of a Ray cluster, which starts lost ones elsewhere."""

from __future__ import annotations

import os

from rlax_plugin.api import BuildContext, Extension, hookimpl
from rlax_ray.launcher import RayLauncher
from rlax_ray.options import RayConfig


def _make(config: RayConfig, context: BuildContext) -> RayLauncher:
    return RayLauncher(config, context.section.deadlines.drain_s)


def _check(config: RayConfig, context: BuildContext) -> None:
    config.check(os.environ)


@hookimpl
def rlax_register_launcher() -> dict[str, Extension]:
    return {"ray": Extension(RayConfig, _make, check_start=_check)}
