"""First weights from a file: .safetensors or .npz."""

from __future__ import annotations

from pathlib import Path

from ...common.errors import DelianError
from ...compiler.ir import Array
from ..data.data_files import npz_keys, read_npz, require_file


def read_weights(path: Path) -> dict[str, Array]:
    """The arrays of a file, by name. Raises DelianError."""
    require_file(path, "name a file with the first weights, by model.weights")
    if path.suffix == ".safetensors":
        from ..interchange.safetensors_file import read_safetensors

        return read_safetensors(path)[0]
    if path.suffix == ".npz":
        return read_npz(path, list(npz_keys(path)))
    raise DelianError(
        f"{path} is no file of weights that is read here",
        "write .safetensors or .npz; files of torch.save can run code when they are read",
    )
