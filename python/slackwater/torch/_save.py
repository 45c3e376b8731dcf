"""Saving and loading of state in safetensors files, which many programs read, such as ``slackwater
inspect``."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping

import torch

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
# The longest header in bytes, as in other readers of the format.
_LONGEST_HEADER = 100_000_000


def save(state: Any, path: str | os.PathLike[str]) -> None:
    """Writes a module, or its ``state_dict()``, as one safetensors file, whole or not at all.
    Raises ``TypeError`` for a value that is not a tensor, or a tensor of a type that the format
    does not have."""
    state = state.state_dict() if isinstance(state, torch.nn.Module) else state
    header: dict[str, Any] = {}
    parts, end = [], 0
    for name, tensor in _tensors("", state):
        tensor = tensor.detach().cpu().contiguous()
        if tensor.dtype not in _NAMES:
            raise TypeError(f"'{name}' is of type {tensor.dtype}, which safetensors has no name for")
        part = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + len(part)]}
        parts.append(part)
        end += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Write to a file of this process first: every rank may save to the same path.
    beside = f"{os.fspath(path)}.{os.getpid()}.part"
    with open(beside, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a file that :func:`save` wrote. Returns the state for ``load_state_dict()``. Raises
    ``ValueError`` if it is not a safetensors file, or has a type that PyTorch does not have."""
    with open(path, "rb") as file:
        content = file.read()
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _LONGEST_HEADER):
        raise ValueError(f"{os.fspath(path)} is not a safetensors file")
    header = json.loads(content[8 : 8 + length])
    data = bytearray(content[8 + length :])
    state: dict[str, Any] = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        if about["dtype"] not in _DTYPES:
            raise ValueError(f"{os.fspath(path)} has '{name}' of type {about['dtype']}, which PyTorch has no name for")
        dtype = _DTYPES[about["dtype"]]
        tensor = torch.frombuffer(data[begin:end], dtype=torch.uint8).view(dtype) if end > begin else torch.empty(0, dtype=dtype)
        name, _, inner = name.partition("//")
        tensor = tensor.reshape(about["shape"])
        if inner:
            state.setdefault(name, {})[inner] = tensor
        else:
            state[name] = tensor
    return state


def _tensors(prefix: str, state: Mapping[str, Any]) -> Any:
    """Yields the tensors of a state, with their names in the file."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            yield prefix + name, value
        elif isinstance(value, Mapping):
            # Rows of a table: a mapping within a module's state.
            yield from _tensors(f"{prefix}{name}//", value)
        else:
            raise TypeError(f"'{prefix}{name}' is a {type(value).__name__}, and safetensors holds tensors")
