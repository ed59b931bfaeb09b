"""A process for the tests of ``processes``: it answers each line as the line says."""

import json
import os
import subprocess
import sys
import time

from rlax_plugin.base.processes.inside import Lines


def main() -> None:
    lines = Lines()
    while line := lines.next():
        asked = json.loads(line)
        if "sleep" in asked:
            time.sleep(asked["sleep"])
        if "print" in asked:
            print(asked["print"], file=sys.stderr, flush=True)
        if "signal" in asked:
            os.kill(os.getpid(), asked["signal"])
        if "begin" in asked:
            os.write(lines._answers, asked["begin"].encode())
            os._exit(3)
        if "start" in asked:
            started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            asked = {"pid": started.pid}
        print("what is printed is no answer", flush=True)
        lines.say(asked)


if __name__ == "__main__":
    main()
