"""A child process that executes the file of a function, and says what the function takes.

It is a process of its own because a file may end the process or hang when it is executed. Started
as ``python -m rlax_plugin.functions.inspecting PATH MODULE NAME KIND``; its answer is one line of
JSON on standard output, whatever the file prints.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from rlax_plugin.functions.loading import function_of
from rlax_plugin.functions.signatures import FunctionError, Signature, signature_of


def inspected(path: str, module: str, name: str, kind: str) -> Signature:
    """Returns the signature of a function, whose file is executed in this process.

    Raises:
      FunctionError: it cannot be used as a part of this kind.
    """
    file = os.path.basename(path)
    return signature_of(function_of(path, module, name), name, kind, file)


def main() -> None:
    answer = os.dup(1)
    os.dup2(2, 1)  # what the file prints is no answer
    said: dict[str, Any]
    try:
        said = {"signature": asdict(inspected(*sys.argv[1:]))}
    except FunctionError as error:
        said = {"error": str(error)}
    os.write(answer, json.dumps(said).encode() + b"\n")
    os._exit(0)  # threads that the file has started are not waited for


if __name__ == "__main__":
    main()
