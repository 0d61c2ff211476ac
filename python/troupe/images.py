"""From and to PNG bytes, PIL images, arrays of numpy and tensors of torch. These are imported where they are needed."""
from __future__ import annotations

import base64
import binascii
import importlib
import io
import os
import warnings
from typing import Any, List, Sequence

from .errors import outside


def _needs(module: str, package: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}: pip install {package}") from error


def to_pil(png: bytes, what: str = 'output_type="pil"') -> Any:
    """The PIL image, in RGB, of a PNG file's bytes."""
    image = _needs("PIL.Image", "pillow", what).open(io.BytesIO(png))
    return image if image.mode == "RGB" else image.convert("RGB")


def frames(pngs: Sequence[bytes], what: str = 'output_type="pil"') -> List[Any]:
    """PIL images, in RGB: of each file all frames, one after another; a picture is its only frame."""
    pil = _needs("PIL.Image", "pillow", what)
    found = []
    for png in pngs:
        image = pil.open(io.BytesIO(png))
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            found.append(image.convert("RGB"))
    return found


def to_numpy(pngs: Sequence[bytes], what: str = 'output_type="np"') -> Any:
    """float32 [frames, height, width, 3] from 0 to 1, as diffusers' output_type="np"."""
    numpy = _needs("numpy", "numpy", what)
    return numpy.stack([numpy.asarray(image, dtype=numpy.float32) / 255 for image in frames(pngs, what)])


def torch() -> Any:
    """The module, which output_type="pt" needs."""
    return _needs("torch", "torch", 'output_type="pt"')


def to_torch(pngs: Sequence[bytes]) -> Any:
    """float32 [frames, 3, height, width] from 0 to 1, on the CPU, as diffusers' output_type="pt"."""
    return torch().from_numpy(to_numpy(pngs, 'output_type="pt"').transpose(0, 3, 1, 2).copy())


def to_png(image: Any, what: str = "image", mask: bool = False) -> bytes:
    """A picture to begin with, or a mask, as a file's bytes; `what` names the argument in errors.

    Takes a file's path or bytes or a data URI, which travel as they are, a PIL image, an array of numpy's [height, width, 3] or
    [height, width], a tensor of torch's [3, height, width], or a list or batch of one of these. Arrays have floats from
    0 to 1 or uint8 from 0 to 255; a mask's values may also be of any type that has 0 and 1, or 0 and 255, alone.
    """
    if isinstance(image, (list, tuple)):
        if len(image) != 1:
            raise ValueError(f"{what}: a list of {len(image)}; a job begins with one picture, so each takes a call of its own")
        image = image[0]
    if isinstance(image, (bytes, bytearray, memoryview, str, os.PathLike)):
        return file_bytes(image, what)
    if hasattr(image, "getextrema"):
        _check_range(image, what)
    elif hasattr(image, "shape") and hasattr(image, "dtype"):
        pixels = _levels(_plane(image, what, mask), what, mask)
        image = _needs("PIL.Image", "pillow", f"an array as {what}").fromarray(pixels)
    else:
        raise TypeError(f"{what}: {type(image).__name__} is no picture: a file's path or bytes, a PIL image, an array "
                        "[height, width, 3] or a tensor [3, height, width] is one")
    try:
        image = image.convert("L" if mask else "RGB")
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
    image.info = {}  # a colour that stands for transparency would travel along
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def to_pngs(images: Any, what: str = "image") -> List[bytes]:
    """Pictures as their files' bytes: of one picture, as `to_png` takes it, of a list of them, or of a batch."""
    if isinstance(images, (list, tuple)):
        if not images:
            raise ValueError(f"{what}: the list is empty")
        return [to_png(image, what) for image in images]
    if len(getattr(images, "shape", ())) == 4:
        return [to_png(image, what) for image in images]
    return [to_png(images, what)]


def file_bytes(file: Any, what: str) -> bytes:
    """The bytes of a file that is given by them, by its path, or as a data URI."""
    if isinstance(file, (bytes, bytearray, memoryview)):
        return bytes(file)
    if str(file).startswith("data:"):
        head, _, data = str(file).partition(",")
        try:
            if not head.endswith(";base64"):
                raise binascii.Error("no base64 is announced")
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{what}: the data URI cannot be read: {error}") from error
    if str(file).startswith(("http://", "https://")):
        raise ValueError(f"{what}: an address is not fetched; a file's path or bytes, or a PIL image, is taken")
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError as error:
        raise ValueError(f"{what}: {file}: {error.strerror}") from error


def _check_range(image: Any, what: str) -> None:
    """A PIL image of more than 8 bits becomes one of 8 by clipping: right for values from 0 to 255 only."""
    if image.mode != "F" and not image.mode.startswith("I"):
        return
    least, most = image.getextrema()
    if not 0 <= least <= most <= 255 or 0 < most <= 1:
        raise ValueError(f'{what}: a PIL image of mode "{image.mode}" with values from {least:g} to {most:g} can mean several '
                         "pictures; modes of 8 bits (L, RGB), or an array of floats from 0 to 1, are taken")


def _plane(image: Any, what: str, mask: bool) -> Any:
    """The array [height, width] or [height, width, 3] of an array or a tensor, whose channels come first."""
    numpy = _needs("numpy", "numpy", f"an array as {what}")
    is_tensor = hasattr(image, "detach")
    if is_tensor:
        image = image.detach().cpu()
        image = image.float() if image.is_floating_point() else image
    pixels = numpy.asarray(image)
    shape = list(pixels.shape)
    if pixels.ndim == 4 and len(pixels) > 1:
        raise ValueError(f"{what}: {len(pixels)} pictures, {shape}; a job begins with one, so each takes a call of its own")
    if pixels.ndim == 4 or pixels.ndim == 3 and mask and not is_tensor and len(pixels) == 1 and shape[2] != 1:
        pixels = pixels[0]
    if pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0) if is_tensor else pixels
        pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    if pixels.ndim not in (2, 3) or pixels.ndim == 3 and pixels.shape[2] != 3 or pixels.size == 0:
        wanted = "[3, height, width], as tensors are" if is_tensor else "[height, width, 3]"
        raise ValueError(f"{what}: an array of shape {shape} is not {wanted}, or gray, [height, width]")
    return pixels


def _levels(pixels: Any, what: str, mask: bool) -> Any:
    """As uint8 from 0 to 255. Values that can mean several pictures are refused."""
    numpy = _needs("numpy", "numpy", f"an array as {what}")
    if pixels.dtype.kind not in "buif":
        raise TypeError(f"{what}: an array of {pixels.dtype} has no pixels")
    least, most = float(pixels.min()), float(pixels.max())
    given = f"{what}: an array of {pixels.dtype} with values from {least:g} to {most:g}"
    half = 0.5 / 255  # what rounding leaves
    if pixels.dtype.kind == "b" or mask and bool(numpy.isin(pixels, (0, 1)).all()):
        return pixels.astype(numpy.uint8) * numpy.uint8(255)
    if mask and bool(numpy.isin(pixels, (0, 255)).all()):
        return pixels.astype(numpy.uint8)
    if pixels.dtype == numpy.uint8 and not mask and (most > 1 or most == 0):
        return pixels
    if pixels.dtype.kind != "f":
        raise ValueError(f"{given} can mean several pictures; " + (
            "a mask has bools, 0 and 1, 0 and 255, or floats from 0 to 1" if mask
            else "uint8 from 0 to 255, or floats from 0 to 1, are taken"))
    if not mask and -1 - half <= least < 0 and most <= 1 + half:
        warnings.warn(f"{given} is taken as one from -1 to 1, as diffusers does; 0 to 1 is what is expected", FutureWarning,
                      stacklevel=outside())
        pixels = (pixels.astype(numpy.float64) + 1) / 2
    elif not -half <= least <= most <= 1 + half:  # NaN is neither
        raise ValueError(f"{given}; floats go from 0 to 1")
    return (pixels.clip(0, 1).astype(numpy.float64) * 255).round().astype(numpy.uint8)


def latents_to_npy(latents: Any, what: str = "latents") -> bytes:
    """Latents, a numpy array or a tensor of torch's, as a .npy file's bytes in float32."""
    numpy = _needs("numpy", "numpy", what)
    if not hasattr(latents, "shape"):
        raise TypeError(f"{what}: {type(latents).__name__} is neither a numpy array nor a torch.Tensor")
    values = numpy.asarray(latents.detach().float().cpu() if hasattr(latents, "detach") else latents)
    if values.dtype.kind not in "iuf":
        raise TypeError(f"{what}: an array of {values.dtype} has no latents")
    file = io.BytesIO()
    numpy.save(file, numpy.ascontiguousarray(values, dtype=numpy.float32), allow_pickle=False)
    return file.getvalue()


def latents_from_npy(npy: bytes) -> Any:
    """The numpy array, float32, of a .npy file's bytes."""
    return _needs("numpy", "numpy", 'output_type="latent"').load(io.BytesIO(npy), allow_pickle=False)


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def html(pngs: Sequence[bytes]) -> str:
    """The pictures side by side, for notebooks."""
    images: List[str] = [f'<img src="data:image/png;base64,{base64_text(png)}" style="max-width: 100%"/>' for png in pngs]
    return f'<div style="display: flex; flex-wrap: wrap; gap: 4px">{"".join(images)}</div>'
