"""Functions that torch runs, called on NumPy arrays or on tensors.

torch's switches for arithmetic (tf32, deterministic algorithms) are the process's: a call that
wants one sets it, runs and puts it back, and such calls take turns.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from ....common.errors import DelianError
from ...ir import Array, DType, Function, ListType, TensorType, Type
from ...passes.lowering.attention_products import decompose_attention
from ...passes.lowering.half_storage import widen_halves
from ...transforms.custom import expanded
from ..reference import check_arguments, check_out
from .torch_lowering import PRODUCTS, lower
from .torch_options import Options, parse
from .torch_tensors import Tensor, to_array, to_tensor

#: cuBLAS adds in one order only with a workspace of this form (its documentation's).
_CUBLAS_WORKSPACE = ":4096:8"
_modes = threading.Lock()


class TorchProgram:
    """A function that torch runs on one device. Safe to call from several threads at once."""

    def __init__(self, function: Function, options: Options) -> None:
        for type_ in (*function.param_types, *function.result_types):
            if isinstance(type_, ListType):
                raise DelianError(
                    f"{function.name} takes or gives a list, which stays within a torch program",
                    'run it with backend="reference"',
                )
        if any(t.dtype is DType.U64 for t in _types(function)):
            raise DelianError(
                f"{function.name} computes with u64, for which torch has no operations",
                'run it with backend="native", or convert to i64',
            )
        self.function, self.options = function, options
        # On a CPU as the reference does it; a GPU has products of halves, summed in f32.
        whole = frozenset() if options.kind == "cpu" else frozenset(PRODUCTS)
        narrow = decompose_attention(widen_halves(expanded(function), whole))
        self._run = lower(narrow.body, options)
        self._one_at_a_time = options.graphs
        self._turn = threading.Lock()

    @property
    def code(self) -> str:
        """The program as calls of torch's functions; those of loops and branches are apart."""
        return str(getattr(self._run, "code", ""))

    def tensors(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Runs it on tensors of the device; results may share memory with arguments."""
        with torch.no_grad(), _on(self.options), _arithmetic(self.options):
            if self._one_at_a_time:
                with self._turn:
                    return self._run(*args)
            return self._run(*args)

    def __call__(self, *args: Array, out: Sequence[Array] | None = None) -> tuple[Array, ...]:
        """Runs it on arrays by way of the device. Raises DelianError where they do not fit."""
        args = tuple([np.asarray(a) if isinstance(a, np.generic) else a for a in args])
        check_arguments(self.function, args)
        if out is not None:
            check_out(self.function, out)
        try:
            given = [to_tensor(a, self.options.device) for a in args]
            made = self.tensors(*given)
            found = [to_array(t, _tensor(r)) for t, r in self._typed(made)]
        except torch.OutOfMemoryError as error:
            raise DelianError(
                f"{self.function.name}: {self.options.device} has too little memory",
                "run fewer devices at once, or smaller batches",
            ) from error
        if out is None:
            # A result may be an argument or a constant, whose memory is not the caller's.
            return tuple([f.copy() for f in found])
        for buffer, result in zip(out, found, strict=True):
            buffer[...] = result
        return tuple(out)

    def _typed(self, made: Sequence[Tensor]) -> Iterator[tuple[Tensor, Any]]:
        return zip(made, self.function.result_types, strict=True)


def _types(function: Function) -> Iterator[Type]:
    """Those of all values of a program."""
    yield from function.param_types
    for op in function.body.walk():
        yield from (r.type for r in op.results)
        yield from (p.type for region in op.regions for p in region.params)


def _tensor(type_: Any) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_


def _on(options: Options) -> AbstractContextManager[Any]:
    """Within, streams and graphs are those of the options' device, where there are several."""
    if options.kind == "cpu" or options.device == options.kind:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(options.device).device(
        options.device
    )
    return context


@contextmanager
def _arithmetic(options: Options) -> Iterator[None]:
    """Within, torch computes as the options say."""
    if not (options.tf32 or options.deterministic):
        yield
        return
    with _modes:
        products, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        certain = torch.are_deterministic_algorithms_enabled()
        search = torch.backends.cudnn.benchmark
        try:
            torch.backends.cuda.matmul.allow_tf32 = options.tf32
            torch.backends.cudnn.allow_tf32 = options.tf32
            if options.deterministic:
                torch.use_deterministic_algorithms(True)
                torch.backends.cudnn.benchmark = False
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = products
            torch.backends.cudnn.allow_tf32 = cudnn
            torch.use_deterministic_algorithms(certain)
            torch.backends.cudnn.benchmark = search


def compile_torch(functions: Mapping[str, Function], backend: str) -> dict[str, TorchProgram]:
    """Functions ready to run as a back end's name says. Raises DelianError."""
    options = parse(backend)
    _check_device(options)
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    return {name: TorchProgram(function, options) for name, function in functions.items()}


def _check_device(options: Options) -> None:
    if options.kind == "npu":
        try:
            import torch_npu  # noqa: F401 - gives torch the device
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            # It may be there and not load: without CANN's libraries, or with another torch.
            is_there = importlib.util.find_spec("torch_npu") is not None
            why = f"does not load: {error}" if is_there else "is not installed"
            raise DelianError(
                f"torch:npu needs the package torch_npu, which {why}",
                "install the torch_npu that fits your CANN and torch",
            ) from None
    if options.kind == "cpu":
        return
    module = getattr(torch, options.kind)
    _, _, number = options.device.partition(":")
    if not module.is_available() or int(number or 0) >= module.device_count():
        raise DelianError(
            f"torch:{options.device}: there is no such device here",
            'use backend="torch:cpu" or "native"',
        )
