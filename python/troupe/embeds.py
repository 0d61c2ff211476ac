"""What stands for prompts, as the bytes of a safetensors file. Needs neither numpy nor torch: whoever has an array has them."""
from __future__ import annotations

import array
import json
import re
import sys
from typing import Any, Dict, List, Tuple

# By the names of diffusers' pipelines; HunyuanDiT has two of each.
_NAME = re.compile(r"(negative_)?((pooled_)?prompt_embeds|prompt_embeds_mask|prompt_attention_mask)(_2)?")


def take_embeds(given: Dict[str, Any]) -> Dict[str, Any]:
    """Takes the arguments that are prompt embeds, or go with them, out of a call's."""
    return {name: given.pop(name) for name in list(given) if _NAME.fullmatch(name)}


def _floats(name: str, tensor: Any) -> Tuple[List[int], bytes]:
    """The shape and the values, float32, little-endian, row by row."""
    if hasattr(tensor, "detach"):
        values = array.array("f", tensor.detach().float().cpu().flatten().tolist())
        if sys.byteorder == "big":
            values.byteswap()
        return [int(size) for size in tensor.shape], values.tobytes()
    if hasattr(tensor, "astype") and hasattr(tensor, "shape"):
        if tensor.dtype.kind not in "biuf":
            raise TypeError(f"{name}: an array of {tensor.dtype} has no numbers")
        return [int(size) for size in tensor.shape], tensor.astype("<f4").tobytes()
    raise TypeError(f"{name}: {type(tensor).__name__} is neither a numpy array nor a torch.Tensor")


def to_safetensors(tensors: Dict[str, Any]) -> bytes:
    """Arrays of numpy's or tensors of torch's by their names, as a safetensors file's bytes in float32: what
    `troupe submit --prompt-embeds` reads, too."""
    header: Dict[str, Any] = {}
    data = b""
    parts = {name: _floats(name, tensor) for name, tensor in tensors.items()}
    for name, (shape, values) in parts.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data
