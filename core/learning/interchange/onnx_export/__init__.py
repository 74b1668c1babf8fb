"""Programs as models in ONNX: `to_onnx` traces a function, and writes each primitive as operators.

The table of primitives is `export_table`; `graph_maker` puts nodes into graphs.
"""

from .export_model import to_onnx

__all__ = ["to_onnx"]
