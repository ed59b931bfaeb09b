"""Parts of built-in plug-ins, without a config."""

from pathlib import Path
from types import ModuleType
from typing import Any

from sections import section_with

from rlax_plugin.api import BuildContext

CONTEXT = BuildContext(run_dir=Path("unused"), seed=0, section=section_with())


def built(plugin: ModuleType, kind: str, name: str, **options: Any) -> Any:
    """What the plug-in builds of a choice."""
    extension = getattr(plugin, f"rlax_register_{kind}")()[name]
    return extension.build(extension.config_class(**options), CONTEXT)
