"""What the sources may import, open and start; import-linter proves more of who imports whom."""

import graphlib
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[3]
CODE = ("rlax_plugin", "plugins", "maxtext_overrides")
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in (*CODE, "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if "_pb2" not in path.name
}
PLUGINS = {path.stem for path in (ROOT / "plugins").glob("rlax_*")}
# Of programs that run in another Python: transformers_program.py, rlax_vllm_inside.py.
FOREIGN = {"torch", "verifiers", "vllm"}
OPENS = re.compile(
    r"\.listen\(|\b(?:insecure_channel|secure_channel|add_insecure_port|add_secure_port"
    r"|start_server|start_unix_server|create_server|open_connection|create_connection"
    r"|create_datagram_endpoint|open_unix_connection|connect_ex|(?:Threading)?HTTPServer"
    r"|TCPServer|start_http_server|Listener)\("
)


def imported(text: str) -> set[str]:
    """Dotted names of the modules that a source imports, wherever in it."""
    return {
        one or other
        for one, other in re.findall(r"^\s*(?:from ([\w.]+) import|import ([\w.]+))", text, re.M)
    }


def having(pattern: str | re.Pattern[str]) -> set[str]:
    return {path for path, text in SOURCES.items() if re.search(pattern, text)}


def test_no_imports_form_a_cycle() -> None:
    """Not even in functions; and between folders not for types either."""
    packages = [name for name in PLUGINS if (ROOT / "plugins" / name).is_dir()]
    packages += ["rlax_plugin", "maxtext_overrides"]
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    arrows = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    graphlib.TopologicalSorter(arrows).prepare()  # its error names the cycle
    graph = grimp.build_graph(*packages, cache_dir=None)
    rooms: dict[str, set[str]] = {}
    for name in graph.modules:
        found = map(room, graph.find_modules_directly_imported_by(name))
        rooms.setdefault(room(name), set()).update({*found} - {room(name)})
    graphlib.TopologicalSorter(rooms).prepare()
    assert len(arrows) > 500 and {"rlax_plugin.base", "maxtext_overrides.trainer"} < rooms.keys()


def room(module: str) -> str:
    """The folder or file below ``rlax_plugin`` or ``maxtext_overrides``; or a plug-in."""
    parts = module.split(".")
    return parts[0] if parts[0] in PLUGINS else ".".join(parts[:2])


def test_plugins_import_the_public_api_and_never_each_other() -> None:
    """A built-in gets no other door than a stranger; of MaxText it goes through the overrides."""
    wrong = []
    for path, text in SOURCES.items():
        if path.startswith("plugins/"):
            own = Path(path).parts[1].removesuffix(".py")
            doors = {"rlax_plugin.api", "rlax_plugin.testing"}
            strange = {
                name
                for name in imported(text) - doors
                if name.startswith(("rlax_", "maxtext")) and name.split(".")[0] != own
            }
            wrong += [(path, name) for name in strange if not name.startswith("maxtext_overrides")]
    assert wrong == []


def test_imported_packages_are_declared() -> None:
    """And not only there because another one needs them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = ("mcp", "mlflow", "ray", "reasoning-gym", "wandb")
    optional = [one for name in names for one in extras[name]]
    declared = {normal(one) for one in (*project["dependencies"], *optional)}
    known = sys.stdlib_module_names | {*CODE, *PLUGINS} | FOREIGN
    providers = metadata.packages_distributions()
    missing = {
        (path, name)
        for path, text in SOURCES.items()
        for name in {one.partition(".")[0] for one in imported(text)} - known
        if path.startswith(CODE) and not declared & set(map(normal, providers.get(name, ())))
    }
    assert not missing


def normal(requirement: str) -> str:
    name = re.split(r"[\[<>=!~; ]", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def test_only_the_room_of_rpc_opens_a_port_or_a_connection() -> None:
    """See Ports in docs/security.md."""
    security, transport = "rlax_plugin/rpc/security", "rlax_plugin/rpc/transport"
    doors = {f"{security}/operator_certificate.py", f"{transport}/doors.py", f"{transport}/http.py"}
    doors |= {f"{transport}/forwarding.py"}
    # In a network namespace of its own, which nothing outside can reach.
    doors |= {"rlax_plugin/reward/sandbox/server.py"}
    assert having(OPENS) == doors


def test_each_python_child_is_started_without_the_working_directory_on_its_path() -> None:
    """By ``python_command``; a sandbox's has even less on its path, and a model's is another."""
    starting = {path for path in having(r"sys\.executable") if path.startswith(CODE)}
    assert starting == {
        "rlax_plugin/base/processes/python.py",
        "rlax_plugin/reward/sandbox/layers.py",
        "rlax_plugin/tools/cli/models.py",
    }


def test_every_test_file_has_a_name_of_its_own() -> None:
    """pytest imports test files by their name alone, and collects nothing where one comes twice."""
    tests = ROOT / "tests"
    names = [p.name for p in tests.rglob("test_*.py") if not (p.parent / "__init__.py").exists()]
    assert len(names) > 400 and sorted(names) == sorted(set(names))
