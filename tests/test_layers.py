"""Imports run one way: a module imports from its own package and from those below it, lazily or not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "pipediag"
#: Packages and single modules, lowest first; those in one line do not import from each other.
LAYERS = (
    ("clock", "errors", "frames", "lifeline", "marker", "patches", "_version"),
    ("session",),
    ("analysis",),
    ("usercode", "report"),
    ("measure",),
    ("loop", "memo", "replay"),
    ("streams",),
    ("remedy",),
    ("ladder",),
    ("diagnosing", "host", "monitoring"),
    ("watch",),
    ("commands", "demo", "integrations"),
    ("cli",),
    ("__init__", "__main__"),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
#: Packages that work without torch and numpy.
PURE = (
    "errors",
    "frames",
    "lifeline",
    "marker",
    "patches",
    "_version",
    "session",
    "analysis",
    "report",
)


#: All that the engine may import of pipediag, as it is a library of its own.
ENGINE = {"replay", "errors", "frames", "patches", "session", "usercode"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def home(path: Path) -> str:
    """The package below ``pipediag`` that a module is in, or its own name."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and dotted name of everything that a module imports, wherever in it."""
    package = ("pipediag", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module or "").split(".")) if node.module else base
            for alias in node.names:
                yield node.lineno, (*module, alias.name)


def test_every_module_has_its_layer() -> None:
    assert {home(path) for path in modules()} == set(LAYER)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_import_runs_up(path: Path) -> None:
    own = home(path)
    for line, names in imported(path):
        if names[0] != "pipediag" or own in ("__init__", "__main__"):
            continue
        target = names[1] if names[1] in LAYER else "__init__"
        assert target == own or LAYER[target] < LAYER[own], f"line {line} imports {'.'.join(names)}"


@pytest.mark.parametrize("path", [p for p in modules() if home(p) in PURE], ids=lambda path: path.name)
def test_pure_packages_import_no_torch(path: Path) -> None:
    outermost = {names[0] for _, names in imported(path)}
    assert not outermost & {"torch", "torchvision", "numpy", "scipy", "PIL"}


@pytest.mark.parametrize("path", [p for p in modules() if home(p) == "replay"], ids=lambda path: path.stem)
def test_the_engine_is_a_library_of_its_own(path: Path) -> None:
    assert {names[1] for _, names in imported(path) if names[0] == "pipediag"} <= ENGINE


def bound(path: Path) -> set[str]:
    """Names that a module binds, and the modules beside it if it is a package's."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.alias, ast.Name))]
    names = {getattr(node, "asname", None) or getattr(node, "name", getattr(node, "id", "")) for node in nodes}
    return names | ({one.stem for one in path.parent.iterdir()} if path.name == "__init__.py" else set())


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_what_is_imported_from_outside_exists(folder: str) -> None:
    """Benchmarks run by hand, some on a GPU only: nothing else would tell that a module has moved."""
    for path in (PACKAGE.parent / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pipediag.") and not node.level:
                module = PACKAGE.parent.joinpath(*str(node.module).split("."))
                home = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
                lacking = {alias.name for alias in node.names} - bound(home)
                assert not lacking, f"{path}:{node.lineno} imports {lacking} from {node.module}"
