"""The ``rlax:`` section where only some of its keys matter."""

from typing import Any

from rlax_plugin.config import RlaxSection


def section_with(**values: Any) -> RlaxSection:
    """A valid section with these values; the parts that it must name are not there."""
    return RlaxSection.model_validate(
        {"prompt_source": {"name": "x"}, "rewards": [{"name": "x"}]} | values
    )
