"""``rlax serve`` with a worker that is called at another address than its own, such as a proxy's.

Arguments: that address, a file for its own address, and those of ``rlax``.
"""

import os
import sys
from pathlib import Path
from typing import Any

from rlax_plugin.rollout.worker.endpoint import Endpoint
from rlax_plugin.run.programs import serve
from rlax_plugin.tools.cli import main

CALLED_AT, OWN, *REST = sys.argv[1:]


class Elsewhere(Endpoint):
    """It registers with the other address."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        beside = Path(f"{OWN}.writing")
        beside.write_text(self.address)
        os.replace(beside, OWN)
        self.address = CALLED_AT


if __name__ == "__main__":
    serve.Endpoint = Elsewhere
    sys.argv = ["rlax", *REST]
    main()
