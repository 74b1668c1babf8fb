"""The torch back end: a program run by PyTorch on a CPU, a CUDA GPU or an Ascend NPU.

    options     what follows "torch:" in a back end's name: the device and switches
    tensors     arrays to tensors and back
    elementwise, moves, sums, products, lists
                what each primitive is in torch's operations
    lower       a block becomes a `torch.fx` graph; regions become loops around graphs
    program     a function ready to be called

Nothing here is imported before a back end "torch:..." is asked for: the core runs without torch.
"""
