"""Models of other frameworks: in from PyTorch and ONNX, out to ONNX and safetensors."""
