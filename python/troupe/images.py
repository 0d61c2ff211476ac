"""From and to PNG bytes, PIL images, arrays of numpy and tensors of torch. These are imported where they are needed."""
from __future__ import annotations

import base64
import importlib
import io
from typing import Any, List, Sequence


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


def to_png(image: Any, what: str = "image") -> bytes:
    """A picture to begin with, or a mask, as a PNG file's bytes.

    Takes such bytes, a PIL image, or an array [height, width, 3], or [height, width], of uint8, or of floats from 0 to 1.
    """
    if isinstance(image, (bytes, bytearray)):
        return bytes(image)
    if not hasattr(image, "save"):
        numpy = _needs("numpy", "numpy", f"{what} that is neither PIL's nor a PNG file's bytes")
        pixels = numpy.asarray(image)
        if pixels.ndim == 4 and len(pixels) == 1:
            pixels = pixels[0]
        if pixels.ndim == 2:
            pixels = numpy.stack([pixels] * 3, -1)
        if pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ValueError(f"{what}: an array of shape {list(pixels.shape)} is not [height, width, 3]")
        if pixels.dtype != numpy.uint8:
            pixels = (pixels.clip(0, 1) * 255).round().astype(numpy.uint8)
        image = _needs("PIL.Image", "pillow", f"an array as {what}").fromarray(pixels)
    file = io.BytesIO()
    image.convert("RGB").save(file, "PNG")
    return file.getvalue()


def latents_to_npy(latents: Any) -> bytes:
    """Latents, a numpy array or a tensor of torch's on the CPU, as a .npy file's bytes in float32."""
    numpy = _needs("numpy", "numpy", "latents")
    if hasattr(latents, "detach"):
        latents = latents.detach().float().cpu().numpy()
    file = io.BytesIO()
    numpy.save(file, numpy.ascontiguousarray(latents, dtype=numpy.float32), allow_pickle=False)
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
