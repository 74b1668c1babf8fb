"""Statements that change nothing in what a program computes: `import`, `del`, some `with`."""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import operators, special_methods, statements
from .containers import containers, program_objects
from .hir import hir
from .values import Frame, Unbound, describe, is_static

if TYPE_CHECKING:
    from .specialise import Specialiser


def run_import(s: Specialiser, node: hir.Import, frame: Frame) -> None:
    """Imports a module while the program is compiled.

    Raises:
        ProgramError: DL113, it cannot be imported, or has no such attribute.
    """
    s.at(node.loc)
    value: Any
    try:
        value = importlib.import_module(node.module, _package(node, frame))
        if node.attribute is not None:
            value = _of_module(s, value, node.attribute)
        elif node.top:
            value = sys.modules[node.module.split(".")[0]]
    except ImportError as e:
        text = f"the import fails: {type(e).__name__}: {e}"
        raise s.error("DL113", text, "install the module, or import what there is") from e
    frame.vars[node.name] = value


def _package(node: hir.Import, frame: Frame) -> str | None:
    """The package that a relative import of a function's module starts from."""
    package: str | None = frame.module.get("__package__") or None
    if node.module.startswith(".") and package is None:
        raise ImportError("attempted relative import with no known parent package")
    return package


def _of_module(s: Specialiser, module: Any, name: str) -> Any:
    """An attribute of a module, or a module of a package."""
    if not hasattr(module, name):
        try:
            return importlib.import_module(f"{module.__name__}.{name}")
        except ModuleNotFoundError:
            raise ImportError(f"cannot import name '{name}' from '{module.__name__}'") from None
    value = getattr(module, name)
    s.read(module.__dict__, name, value)
    return value


def run_delete(s: Specialiser, node: hir.Delete, frame: Frame) -> None:
    """`del name`, `del items[k]`."""
    s.at(node.loc)
    target = node.target
    if isinstance(target, hir.Name):
        s.lookup(frame, target.name)
        text = f"`{target.name}` is read after `del` (line {node.loc.line})"
        frame.vars[target.name] = Unbound("DL103", text, "assign it again before it is read")
    elif isinstance(target, hir.Subscript):
        owner, index = s.eval(target.value, frame), s.eval(target.index, frame)
        s.at(node.loc)
        if (method := special_methods.find(owner, "__delitem__")) is not None:
            s.call(MethodType(method, owner), index)
            return
        if not isinstance(owner, list | dict):
            raise s.error("DL111", f"no item of {describe(owner)} can be deleted")
        if not is_static(index):
            raise s.needs_static(index, "what `del` deletes")
        containers.may_change(s, owner)
        operators.python(s, lambda: owner.__delitem__(index), "`del`")
    elif isinstance(target, hir.Attribute):
        owner = s.eval(target.value, frame)
        s.at(node.loc)
        program_objects.delete(s, owner, target.name)
    else:
        statements.assign(s, target, None, frame)


def enter(s: Specialiser, node: hir.Enter, frame: Frame) -> None:
    """The head of a `with`.

    Raises:
        ProgramError: DL102, the context may change what the body does.
    """
    made = _call(s, node.context, frame)
    if made is None:
        s.at(node.loc)
        raise s.error(
            "DL102",
            "with cannot be compiled on this context",
            "np.errstate with 'ignore' or 'warn', contextlib.nullcontext and"
            " warnings.catch_warnings change nothing in a program; open others around the call of"
            " the compiled function",
        )
    if node.target is not None:
        s.at(node.loc)
        statements.assign(s, node.target, made[0], frame)


def _call(s: Specialiser, context: hir.Expr, frame: Frame) -> tuple[Any] | None:
    """What a context gives to `as`; None where it is no context that changes nothing."""
    if not isinstance(context, hir.Call):
        return None
    function = s.eval(context.function, frame)
    if not any(function is f for f in _HARMLESS):
        return None
    args = s.items(context.args, frame)
    named = {name: s.eval(value, frame) for name, value in context.keywords}
    if function is contextlib.nullcontext:
        given = [*args, *named.values()]
        return (
            None
            if len(given) > 1 or any(n != "enter_result" for n in named)
            else (given[0] if given else None,)
        )
    if function is warnings.catch_warnings:
        return None if args or named else (None,)
    harmless = all(type(v) is str and v in ("ignore", "warn") for v in named.values())
    return (None,) if not args and harmless and None not in named else None


_HARMLESS: tuple[Any, ...] = (np.errstate, contextlib.nullcontext, warnings.catch_warnings)
