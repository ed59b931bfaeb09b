"""Checks that the data has the columns that functions need, once the prompts are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rlax_plugin.config import FunctionChoice
from rlax_plugin.errors import ConfigError, alternatives
from rlax_plugin.functions.checking import checked_signature
from rlax_plugin.functions.signatures import FILTER, GROUP, SAMPLE, FunctionError
from rlax_plugin.types import Prompt

_LOOKED_AT = 100  # prompts; those of a file nearly always have the same columns


def check_columns(
    choices: Sequence[FunctionChoice],
    kind: str,
    key: str,
    functions: Mapping[str, str],
    prompts: Sequence[Prompt],
    references: Collection[str],
    deadline_s: float,
) -> None:
    """Checks that some of the first prompts have each column that a function needs.

    A prompt that lacks one nevertheless leaves its samples without a reward.

    Args:
      choices: the parts under ``key``.
      kind: their kind.
      references: columns that the prompt source may read as the reference, which it then does not
        keep under their own names.

    Raises:
      ConfigError: none has it; lists those that there are.
    """
    columns: set[str] | None = None
    for number, choice in enumerate(choices):
        if not choice.function:
            continue
        place = f"{key}.{number}"
        try:
            found = checked_signature(choice.function, kind, functions, deadline_s)
        except FunctionError as error:
            raise ConfigError(f"{place}.function", choice.function, str(error)) from None
        if columns is None:
            first = (prompts[index] for index in range(min(_LOOKED_AT, len(prompts))))
            columns = {name for prompt in first for name in prompt.metadata}
        if lacking := [name for name in found.columns if name not in columns]:
            own = FILTER if kind == "filter" else GROUP if found.form == "group" else SAMPLE
            name = lacking[0]
            reason = (
                f"{found.where} has a parameter {name!r}, but the prompts have no such column; "
                f"{alternatives(name, {*own, *columns})}. "
            )
            if name in references:
                kept = ", ".join(sorted({*columns, name}))
                reason += (
                    f"If {name} is the column of the references, its parameter is called "
                    f"'reference'; with rlax.prompt_source.metadata: [{kept}] it keeps its name too"
                )
            else:
                reason += "Give the parameter a default if it may be missing"
            raise ConfigError(f"{place}.function", choice.function, reason)
