"""PyTorch modules as programs: `torch.export` to core ATen, one row an operator."""
