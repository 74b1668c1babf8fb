"""Reading a model's file: limits before anything is allocated, tensors within the model's folder.

A file comes from outside. Its size, the number of its nodes and the bytes of each tensor have
limits, a tensor's shape must fit its bytes, and data outside the file are read from the model's own
folder alone: no absolute path, no `..`, no link.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ....common.errors import DelianError
from ....common.files import read_at_most
from ....common.foreign_formats import refuse_file, way_of
from ....common.install_hint import install
from ....compiler.ir import Array
from .onnx_errors import OnnxError

#: Bytes of a file; protobuf itself ends at 2 GiB.
FILE_BYTES_MAX = 2**31 - 1
#: Bytes of one tensor, and of all tensors of a model.
TENSOR_BYTES_MAX = 2**31
MODEL_BYTES_MAX = 2**34
#: Nodes of a model, with those of its functions and inner graphs.
NODES_MAX = 100_000
#: Graphs within graphs.
DEPTH_MAX = 16
_DOMAIN = ("", "ai.onnx")


def onnx_package() -> Any:
    """The package `onnx`. Raises DelianError where it is not installed."""
    try:
        import onnx
    except ImportError:
        raise DelianError(
            "reading ONNX models needs the package onnx",
            f"install it with: {install('onnx')}",
        ) from None
    return onnx


def read_model(source: Any) -> tuple[Any, Path | None]:
    """A `ModelProto` and the folder of its data, from a path, bytes or a `ModelProto`.

    Raises:
        OnnxError: it is too large, is no model of ONNX, or breaks a limit.
    """
    if isinstance(source, onnx_package().ModelProto):
        _check(source)
        return source, None
    if isinstance(source, bytes | bytearray | memoryview):
        return _parsed(bytes(source)), None
    if not isinstance(source, str | PathLike):
        foreign = way_of(source)
        raise OnnxError(
            f"a model in ONNX is a path, bytes or an onnx.ModelProto, not {type(source).__name__}",
            foreign[1] if foreign else "dl.from_onnx('net.onnx')",
        )
    path = Path(source)
    if path.suffix != ".onnx":
        refuse_file(path, "model")
    try:
        return _parsed(_bytes_of(path)), path.parent
    except OnnxError as fault:
        raise OnnxError(f"{path}: {fault.message}", fault.hint) from None


def _parsed(data: bytes) -> Any:
    if len(data) > FILE_BYTES_MAX:
        raise OnnxError(f"the model has {len(data)} bytes, of at most {FILE_BYTES_MAX}")
    model = onnx_package().ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own class differs by its implementation
        raise OnnxError(
            f"this is no model in ONNX: {str(error)[:200]}",
            "the file may be truncated; load it again",
        ) from None
    _check(model)
    return model


def _bytes_of(path: Path) -> bytes:
    try:
        return read_at_most(path, FILE_BYTES_MAX)
    except OSError as error:
        hint = "check the path and its permissions"
        if error.errno == errno.EFBIG:
            hint = "save the weights as external data (onnx.save_model(save_as_external_data=True))"
        raise OnnxError(f"cannot be read: {error.strerror}", hint) from None


def opsets_of(imports: Any) -> dict[str, int]:
    """The version of each domain of operators, "" for ONNX's own."""
    return {("" if o.domain in _DOMAIN else o.domain): int(o.version) for o in imports}


def _check(model: Any) -> None:
    if not model.HasField("graph") or not model.graph.output:
        raise OnnxError("the model has no graph, or its graph has no outputs", "export it again")
    newest = onnx_package().defs.onnx_opset_version()
    version = opsets_of(model.opset_import).get("")
    if version is not None and not 1 <= version <= newest:
        raise OnnxError(
            f"the model has operators of version {version}; 1 to {newest} are read",
            "convert it with onnx.version_converter, or export it with another opset_version",
        )
    graphs = [(model.graph, 0), *((f, 0) for f in model.functions)]
    nodes = 0
    while graphs:
        graph, depth = graphs.pop()
        nodes += len(graph.node)
        if nodes > NODES_MAX or depth > DEPTH_MAX:
            raise OnnxError(
                f"the model has more than {NODES_MAX} nodes, or graphs {DEPTH_MAX} deep",
                "import a part of it (onnx.utils.extract_model)",
            )
        graphs.extend((inner, depth + 1) for node in graph.node for inner in graphs_of(node))


def graphs_of(node: Any) -> Iterator[Any]:
    """The graphs within a node: branches, bodies of loops."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


class Tensors:
    """Reads a model's tensors, and counts their bytes."""

    def __init__(self, folder: Path | None) -> None:
        """folder: of external data; None where there is none."""
        self._folder = folder
        self._bytes = 0

    def array(self, tensor: Any) -> Array:
        """A tensor as an array that cannot be written to; strings as an array of objects.

        Raises:
            OnnxError: it is too large, its bytes do not fit its shape, its type is unknown, or its
                data lies outside the model's folder.
        """
        onnx = onnx_package()
        name = f"tensor {tensor.name[:200]!r}"
        shape = tuple(int(n) for n in tensor.dims)
        if any(n < 0 for n in shape) or len(shape) > _RANK_MAX:
            raise OnnxError(f"{name} has the shape {list(shape)[:10]}", "export the model again")
        try:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        except KeyError:
            raise OnnxError(f"{name} has the unknown element type {tensor.data_type}") from None
        size = math.prod(shape) * max(1, dtype.itemsize)
        self._bytes += size
        if size > TENSOR_BYTES_MAX or self._bytes > MODEL_BYTES_MAX:
            raise OnnxError(
                f"{name} of shape {list(shape)} takes {size} bytes; a tensor takes at most "
                f"{TENSOR_BYTES_MAX}, a model {MODEL_BYTES_MAX}",
                "import a part of the model",
            )
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            held = self._external(tensor, name, size, dtype)
            tensor, inline = onnx.TensorProto(), tensor
            tensor.data_type, tensor.raw_data = inline.data_type, held
            tensor.dims.extend(shape)
        try:
            array: Array = np.array(onnx.numpy_helper.to_array(tensor))
        except Exception as error:  # of any kind: the message was made outside
            raise OnnxError(f"{name} cannot be read: {str(error)[:200]}") from None
        if array.shape != shape:
            raise OnnxError(f"{name} has the shape {list(shape)} and data of {array.size} elements")
        array.flags.writeable = False
        return array

    def _external(self, tensor: Any, name: str, size: int, dtype: Any) -> bytes:
        """The bytes of a tensor that lie in a file of their own."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        parts = PurePosixPath(location.replace("\\", "/")).parts
        if self._folder is None or not parts or ".." in parts or parts[0].endswith((":", "/")):
            raise OnnxError(
                f"{name} has its data in {location[:200]!r}, which is not in the model's folder",
                "import the model by its path, with its data files in the same folder",
            )
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", size))
        except ValueError:
            raise OnnxError(f"{name}: offset and length of its data are no numbers") from None
        path = self._folder
        for part in parts:
            path = path / part
            if path.is_symlink():
                raise OnnxError(f"{name} has its data behind a link, {location[:200]!r}")
        if path.exists() and not path.is_file():
            raise OnnxError(f"{name}: {location[:200]!r} is not a file")
        packed = dtype.itemsize == 1 and length <= size
        if offset < 0 or (length != size and not packed):
            raise OnnxError(f"{name} takes {size} bytes, and its data has {length}")
        try:
            with path.open("rb") as file:
                file.seek(offset)
                held = file.read(length)
        except OSError as error:
            raise OnnxError(
                f"{name}: {location[:200]!r} cannot be read: {error.strerror}"
            ) from None
        if len(held) != length:
            raise OnnxError(f"{name}: {location[:200]!r} ends before its data does")
        return held


#: Axes of a tensor: NumPy's own limit is 64.
_RANK_MAX = 32
