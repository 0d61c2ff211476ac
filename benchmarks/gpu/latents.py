"""Latents of two runs beside each other, with Python alone."""
import array
import json
import math
import pathlib
import struct


def read(path):
    """Shape and values of the tensor `latents`, float32."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    entry = json.loads(data[8:8 + length])["latents"]
    if entry["dtype"] != "F32":
        raise ValueError(f"{path}: latents are {entry['dtype']}, not F32")
    begin, end = entry["data_offsets"]
    return entry["shape"], array.array("f", data[8 + length + begin:8 + length + end])


def difference(path, reference):
    """‖a − b‖ ÷ ‖b‖ ; infinite where shapes or finiteness differ."""
    (_, a), (_, b) = read(path), read(reference)
    if len(a) != len(b):
        return math.inf
    apart = math.fsum((x - y) ** 2 for x, y in zip(a, b))
    size = math.fsum(y * y for y in b)
    result = math.sqrt(apart / size) if size > 0 else math.inf
    return result if math.isfinite(result) else math.inf
