"""Finds code that could execute data: pickles, eval, shells, code from checkpoints."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

FORBIDDEN_MODULES = frozenset(
    {
        "pickle",
        "_pickle",
        "cPickle",
        "cloudpickle",
        "dill",
        "marshal",
        "shelve",
        "joblib",
        "code",
        "codeop",
        "yaml",
    }
)
"""Nothing of these may be imported."""

FORBIDDEN_BUILTINS = frozenset({"eval", "exec", "compile", "__import__", "__builtins__", "breakpoint"})

FORBIDDEN_NAMES = frozenset(
    {
        "torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "torch.serialization.load",
        "numpy.fromregex", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
        "builtins.eval", "builtins.exec", "builtins.compile", "builtins.__import__", "runpy.run_path",
        "runpy.run_module", "importlib.util.spec_from_file_location", "importlib.machinery.SourceFileLoader",
    }
)  # fmt: skip

FORBIDDEN_ARGUMENTS = {"shell": True, "allow_pickle": True, "trust_remote_code": True}


def _parsed(source: str) -> ast.Module:
    """The module as a tree. Up to Python 3.11.7 and 3.12.1 that fails where a finalizer or another thread builds a tree
    meanwhile (cpython issue 106905), so it is tried again."""
    for _ in range(9):
        try:
            return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)


def forbidden(source: str) -> list[str]:
    """Findings in a module, as "line: what"."""
    tree = _parsed(source)
    nodes = [node for node in ast.walk(tree) if isinstance(node, _LOOKED_AT)]
    names = _imported_names(nodes)
    return [f"{line}: {what}" for node in nodes for line, what in _faults(node, names)]


_LOOKED_AT = (ast.Import, ast.ImportFrom, ast.Name, ast.Attribute, ast.Call)


def _imported_names(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """What each imported name stands for, whatever it was called: {"load": "torch.load"}."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _faults(node: ast.AST, names: dict[str, str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] in FORBIDDEN_MODULES:
                yield node.lineno, f"imports {alias.name}"
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        if node.module.split(".")[0] in FORBIDDEN_MODULES:
            yield node.lineno, f"imports {node.module}"
        for alias in node.names:
            if f"{node.module}.{alias.name}" in FORBIDDEN_NAMES:
                yield node.lineno, f"imports {node.module}.{alias.name}"
    elif isinstance(node, ast.Name) and node.id in FORBIDDEN_BUILTINS:
        yield node.lineno, f"names {node.id}"
    elif isinstance(node, ast.Attribute):
        path = _dotted(node, names)
        if path in FORBIDDEN_NAMES:
            yield node.lineno, f"names {path}"
    elif isinstance(node, ast.Call):
        yield from _faults_of_call(node, names)


def _faults_of_call(node: ast.Call, names: dict[str, str]) -> Iterator[tuple[int, str]]:
    for keyword in node.keywords:
        if keyword.arg in FORBIDDEN_ARGUMENTS and not (
            isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        ):
            yield node.lineno, f"passes {keyword.arg}"
    called = _dotted(node.func, names)
    if called in ("getattr", "builtins.getattr") and len(node.args) > 1:
        name = node.args[1]
        if isinstance(name, ast.Constant) and name.value in FORBIDDEN_BUILTINS:
            yield node.lineno, f"gets {name.value}"
    if called in ("importlib.import_module", "import_module") and node.args:
        name = node.args[0]
        if isinstance(name, ast.Constant) and str(name.value).split(".")[0] in FORBIDDEN_MODULES:
            yield node.lineno, f"imports {name.value}"


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    """The full name that an expression reads, as far as it is one; "" for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""
