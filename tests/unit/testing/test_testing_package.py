"""``rlax_plugin.testing`` is light: processes of toy runs import it."""

import pkgutil
import subprocess
import sys

import rlax_plugin.testing


def test_no_module_of_it_imports_jax_or_the_stack() -> None:
    found = pkgutil.walk_packages(rlax_plugin.testing.__path__, "rlax_plugin.testing.")
    modules = ["rlax_plugin.testing", "rlax_plugin.weights.verification", *(m.name for m in found)]
    assert len(modules) >= 9
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module)\n"
        "heavy = {'jax', 'jaxlib', 'maxtext', 'orbax', 'tensorflow', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
