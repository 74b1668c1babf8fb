"""Models in ONNX as programs: `from_onnx` reads a file, `OnnxModel` is what it gives.

A graph becomes Python source with one call an operation (`..straight_line`). The functions that it
calls are rows of tables, one an operator of ONNX, in `rows/`.
"""

from .onnx_model import OnnxModel, from_onnx

__all__ = ["OnnxModel", "from_onnx"]
