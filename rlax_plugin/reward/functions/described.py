"""What a function tells of itself, for a policy that calls it as a tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from rlax_plugin.base.text.harmless import one_line

_LONGEST = 500  # characters of a reason


def description_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns a function's description in OpenAI's form, as transformers derives it.

    Types come from the annotations, texts from the docstring in Google's style
    (``transformers.utils.get_json_schema``).

    Raises:
      ValueError: an annotation or the docstring lacks something.
    """
    from transformers.utils.chat_template_utils import get_json_schema  # takes a second

    try:
        arguments_of(function)
        return get_json_schema(function)
    except Exception as error:  # noqa: BLE001  hints are evaluated, and their schemas are built
        reason = one_line(str(error), _LONGEST)
        raise ValueError(
            f"{reason}. A tool needs a type for each parameter, and a docstring in Google's style "
            "that describes it and each parameter under Args:"
        ) from None


def arguments_of(function: Callable[..., Any]) -> type[BaseModel]:
    """Returns the model of the arguments: JSON's types, and no conversion."""
    hints = inspect.signature(function, eval_str=True).parameters.values()
    fields: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is one.empty else one.default)
        for one in hints
    }
    config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
    return create_model("Arguments", __config__=config, **fields)
