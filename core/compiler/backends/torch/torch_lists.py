"""Persistent stacks of tensors, and arrays of them.

The lists of `core.compiler.primitives.lists` in torch.

A list with lanes is an array of stacks, each cell of which holds one lane's tensor: right, and slow
where there are many lanes. Choosing among lanes waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ...ir import ListType, Type
from .torch_tensors import TORCH, Tensor


class Cell(NamedTuple):
    """The top of a stack and what is below; the empty stack is None."""

    top: Any
    below: Any


class Stack(NamedTuple):
    """One list. `element` says what zero is."""

    element: Type
    device: str
    cell: Cell | None = None


class Lanes(NamedTuple):
    """An array of stacks, as a NumPy array of objects."""

    stacks: Any


def zero_of(type_: Type, device: str) -> Any:
    if isinstance(type_, ListType):
        empty = Stack(type_.element, device)
        return _each(type_.lanes, lambda at: empty) if type_.lanes else empty
    return torch.zeros(type_.shape, dtype=TORCH[type_.dtype], device=device)


def _each(shape: tuple[int, ...], make: Callable[[tuple[int, ...]], Any]) -> Lanes:
    stacks = np.empty(shape, dtype=object)
    for at in np.ndindex(shape):
        # An array of objects would take a tuple apart.
        stacks[at] = _Box(make(at))
    return Lanes(stacks)


class _Box:
    """Holds one stack where NumPy would see a sequence."""

    __slots__ = ("stack",)

    def __init__(self, stack: Stack) -> None:
        self.stack = stack


def _lane(value: Any, at: tuple[int, ...]) -> Any:
    """What one lane's stack takes of a value for all lanes."""
    if isinstance(value, Lanes):
        found = value.stacks[at]
        return found.stack if isinstance(found, _Box) else Lanes(found)
    return value[at]


def push(list_: Any, value: Any) -> Any:
    if isinstance(list_, Stack):
        return list_._replace(cell=Cell(value, list_.cell))
    stacks = list_.stacks
    return _each(stacks.shape, lambda at: push(stacks[at].stack, _lane(value, at)))


def pop(list_: Any) -> tuple[Any, Any]:
    """What is below and the top; of the empty list, itself and zero."""
    if isinstance(list_, Stack):
        if list_.cell is None:
            return list_, zero_of(list_.element, list_.device)
        return list_._replace(cell=list_.cell.below), list_.cell.top
    shape = list_.stacks.shape
    pairs = {at: pop(list_.stacks[at].stack) for at in np.ndindex(shape)}
    tops = [top for _, top in pairs.values()]
    rest = _each(shape, lambda at: pairs[at][0])
    if isinstance(tops[0], Stack):
        return rest, _each(shape, lambda at: pairs[at][1])
    if isinstance(tops[0], Lanes):
        whole = np.array([t.stacks for t in tops], dtype=object)
        return rest, Lanes(whole.reshape(*shape, *tops[0].stacks.shape))
    return rest, torch.stack(tops).reshape(*shape, *tops[0].shape)


def add(a: Any, b: Any) -> Any:
    """Element by element from the top; the longer one's rest is shared."""
    if isinstance(a, Lanes):
        left, right = a.stacks, b.stacks
        return _each(left.shape, lambda at: add(left[at].stack, right[at].stack))
    if not isinstance(a, Stack):
        return a + b
    sums, left, right = [], a.cell, b.cell
    while left is not None and right is not None:
        sums.append(add(left.top, right.top))
        left, right = left.below, right.below
    cell = right if left is None else left
    for value in reversed(sums):
        cell = Cell(value, cell)
    return a._replace(cell=cell)


def select(pred: Tensor, a: Any, b: Any) -> Any:
    chosen = pred.cpu().numpy()
    if isinstance(a, Stack):
        return a if chosen else b
    return Lanes(np.where(chosen, a.stacks, b.stacks))


def take(list_: Any, at: Tensor) -> Any:
    places = at.cpu().numpy()
    if isinstance(list_, Stack):
        return _each(places.shape, lambda _: list_)
    flat = list_.stacks.reshape(-1)
    return Lanes(flat[np.clip(places, 0, flat.size - 1)])
