"""Which module may import which, read from the source, so that an import that nothing runs is found too."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import safexplain

ROOT = Path(safexplain.__file__).parent
REPOSITORY = Path(__file__).parents[1]

SHARED = ("_validate", "_digest", "_files", "_progress", "_privacy_loss", "_secure_random", "_versions", "errors")
"""What everybody may import."""

MAY_IMPORT = {
    **dict.fromkeys(SHARED, ()),
    "columns": (),
    "outputs": ("columns",),
    "faithfulness": ("outputs",),
    "native_maps": ("outputs",),
    "hardening": (),
    "verdict": (),
    "explain": ("faithfulness", "hardening", "native_maps", "outputs", "verdict"),
    **dict.fromkeys(("captum", "alibi", "aix360", "lime", "shap"), ("explain",)),
    "dp": ("verdict",),
    "ledger": ("verdict",),
    "recourse": ("dp", "ledger", "verdict"),
    "audit": ("columns", "faithfulness", "native_maps", "outputs", "verdict", "dp", "recourse"),
    "tune": ("audit", "explain", "faithfulness", "hardening", "outputs", "verdict"),
    "loading": ("columns", "outputs"),
    "serve": ("columns", "explain", "hardening", "ledger", "loading", "outputs", "verdict"),
    "testing": ("explain", "hardening", "outputs"),
    "cli": (
        "__init__", "audit", "columns", "dp", "explain", "hardening", "ledger", "loading", "outputs", "recourse",
        "serve", "tune", "verdict",
    ),
    "__main__": ("cli",),
    "__init__": ("explain", "hardening", "outputs", "recourse"),
}  # fmt: skip
"""Part of the package -> the other parts that it may import, besides `SHARED` and itself: directly, in any function,
and for type checkers. There are no exceptions."""

NO_TORCH = ("verdict", "ledger", *SHARED)
"""Parts that must not import torch, nor anything that does."""

MOST_FILES = 15
"""Python files in one folder, tests included."""


@cache
def sources(root: Path = ROOT) -> dict[str, str]:
    """Module name, without the package's -> source. The package itself is `__init__`, a folder goes by its own name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path.read_text()
    return found


@cache
def imported(module: str, source: str, is_folder: bool) -> frozenset[str]:
    """Full names that the import statements of a module name, wherever they stand."""
    package = ["safexplain", *module.split(".")] if module != "__init__" else ["safexplain"]
    here = package if is_folder or module == "__init__" else package[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = here[: len(here) - node.level + 1] if node.level else []
            of = ".".join([*start, *([node.module] if node.module else [])])
            found |= {f"{of}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module"):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return frozenset(found)


def graph(modules: dict[str, str]) -> dict[str, set[str]]:
    """Module -> the modules of this package that it imports; a name of a folder's `__init__` is an import of it."""
    edges = {}
    for module, source in modules.items():
        is_folder = any(name.startswith(f"{module}.") for name in modules)
        edges[module] = set()
        for name in imported(module, source, is_folder):
            parts = name.split(".")
            if parts[0] != "safexplain":
                continue
            inner = [".".join(parts[1:k]) for k in range(len(parts), 1, -1)]
            edges[module].add(next((i for i in inner if i in modules), "__init__"))
        edges[module].discard(module)
    return edges


def part(module: str) -> str:
    return module.split(".")[0]


def violations(modules: dict[str, str]) -> list[str]:
    """Imports that the table does not allow, one line each."""
    return [
        f"{module} imports {to}"
        for module, names in graph(modules).items()
        for to in sorted(names)
        if part(to) not in (part(module), *SHARED, *MAY_IMPORT[part(module)])
    ]


def test_imports_point_the_right_way():
    assert violations(sources()) == []


def test_no_modules_import_each_other():
    TopologicalSorter(graph(sources())).prepare()  # or CycleError


def test_every_part_of_the_package_has_a_rule():
    assert {part(module) for module in sources()} - MAY_IMPORT.keys() == set()
    assert len(sources()) > 100


def test_folders_stay_small_enough_to_be_read():
    folders: dict[Path, int] = {}
    for root in (ROOT, REPOSITORY / "tests", REPOSITORY / "audit", REPOSITORY / "examples"):
        for path in root.rglob("*.py"):
            folders[path.parent] = folders.get(path.parent, 0) + 1
    too_many = {str(folder.relative_to(REPOSITORY)): n for folder, n in folders.items() if n > MOST_FILES}
    assert too_many == {}


def test_every_folder_says_what_is_in_it():
    for path in ROOT.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.relative_to(ROOT)


def test_a_verdict_is_read_and_signals_are_attacked_without_torch():
    modules = [m for m in sources() if part(m) in NO_TORCH] + ["audit.certify", "cli.audit", "cli.run.tables"]
    code = (
        "import sys, importlib\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.partition('.')[0] == 'torch': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        f"for name in {modules!r}: importlib.import_module('safexplain.' + name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_guide_for_contributors_names_what_exists():
    guide = (REPOSITORY / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:safexplain|audit|tests|docs)/[\w./]*|[A-Z]+\.md)`", guide)
    assert len(named) > 20
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
