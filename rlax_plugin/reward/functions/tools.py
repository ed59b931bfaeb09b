"""Functions of the user's as tools that a policy calls: their description, and calling them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.functions import parse_function
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.reward.functions.checking import checked_signature
from rlax_plugin.reward.functions.described import arguments_of, description_of
from rlax_plugin.reward.functions.signatures import FunctionError, function_of, signature_of


class CallError(Exception):
    """The policy's call was wrong; the message is what it gets as the result."""


class FunctionTool:
    """A function that a config names, as a tool. It is trusted, and runs in this process.

    Args:
      function: ``FILE.py:NAME`` or ``package.module:NAME``.
      key: config key of ``function``, for messages.

    Attributes:
      description: in OpenAI's form.

    Raises:
      ConfigError: it cannot be used.
    """

    def __init__(self, function: str, key: str, context: BuildContext):
        name = parse_function(function)
        path = context.functions.get(name.file, name.file)
        try:
            self._function = function_of(path, name.module, name.name)
            signature = signature_of(self._function, name.name, "tool", name.file)
        except FunctionError as error:
            raise ConfigError(key, function, str(error)) from None
        self._waits = signature.waits
        self._arguments = arguments_of(self._function)
        self.description = description_of(self._function)

    @staticmethod
    def check(function: str, key: str, context: BuildContext) -> None:
        """Checks the function in a process of its own, which its file may end.

        Raises:
          ConfigError: it cannot be used.
        """
        deadline_s = context.section.deadlines.startup_s
        try:
            checked_signature(function, "tool", context.functions, deadline_s)
        except FunctionError as error:
            raise ConfigError(key, function, str(error)) from None

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Returns the function's result: a text as it is, everything else as JSON.

        Raises:
          CallError: the arguments are wrong, or the function has raised a ValueError.
          TypeError: JSON cannot hold the result.
        """
        try:
            checked = self._arguments.model_validate_json(json.dumps(dict(arguments)))
        except ValidationError as error:
            told = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
            raise CallError("; ".join(told)) from None
        passed = {name: getattr(checked, name) for name in arguments}
        try:
            if self._waits:
                result = await self._function(**passed)
            else:
                result = await asyncio.to_thread(self._function, **passed)
        except ValueError as error:
            raise CallError(str(error)) from None
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
