"""How much of the distance between Troupe's latents and diffusers' is float32's rounding: FLUX.1 with a mask.

    .deps/reference/bin/python benchmarks/inpaint_float64.py [--size 512]

The same picture, mask, noise and seed on tests/fixtures/tiny-flux: by Troupe, by diffusers in float32, by diffusers in float64, and by
diffusers with the picture's values changed by 1e-6. Prints the largest differences of the final latents, as parts of their range."""
import pathlib
import subprocess
import sys
import tempfile

from command_line import ROOT, Parser, add_number, add_troupe


def options():
    parser = Parser(__doc__)
    add_troupe(parser)
    add_number(parser, "--size", 512, 4096, "pixels of height and width, a multiple of 16")
    return parser.parse_args()


ARGS = options() if __name__ == "__main__" else None

import numpy as np  # noqa: E402
import torch  # noqa: E402
from diffusers import FluxInpaintPipeline  # noqa: E402
from diffusers.models.autoencoders import vae  # noqa: E402
from diffusers.pipelines.flux import pipeline_flux_inpaint  # noqa: E402
from diffusers.utils.torch_utils import randn_tensor  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "reference"))
import init_image  # noqa: E402
from common import FIXTURES, generator  # noqa: E402

PROMPT, SEED, STEPS, GUIDANCE, STRENGTH, TOKENS = "a red circle", 5, 4, 3.5, 0.7, 16


def picture_and_mask(size):
    """Waves over two ramps, and a disc."""
    y, x = np.mgrid[0:size, 0:size]
    picture = np.stack([(np.sin(x / 17) + np.cos(y / 13)) * 60 + 128, x * 255 / size, y * 255 / size], -1)
    disc = ((x - size * 0.4) ** 2 + (y - size * 0.5) ** 2) < (size * 0.3) ** 2
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8)), Image.fromarray((disc * 255).astype(np.uint8))


def float32_noise(shape, generator=None, device=None, dtype=None, layout=None):
    """diffusers' randn_tensor with float32's draws, whatever it computes in."""
    return randn_tensor(shape, generator=generator, device=device, dtype=torch.float32, layout=layout).to(dtype)


def by_diffusers(pipe, picture, mask, size):
    with torch.no_grad():
        packed = pipe(prompt=PROMPT, image=picture, mask_image=mask, height=size, width=size, strength=STRENGTH, num_inference_steps=STEPS,
                      guidance_scale=GUIDANCE, generator=generator(SEED), output_type="latent", max_sequence_length=TOKENS).images
    return pipe._unpack_latents(packed, size, size, 8)[0].double().numpy()


def by_troupe(picture, mask, size):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        picture.save(folder / "picture.png")
        mask.save(folder / "mask.png")
        subprocess.run([ARGS.troupe, "run", "--model", FIXTURES / "tiny-flux", "--steps", str(STEPS), "--guidance", str(GUIDANCE), "--seed", str(SEED),
                        "--strength", str(STRENGTH), "--init-image", folder / "picture.png", "--mask", folder / "mask.png", "--height", str(size),
                        "--width", str(size), "--max-sequence-length", str(TOKENS), "-o", folder / "latents.safetensors", PROMPT],
                       check=True, stderr=subprocess.DEVNULL)
        return next(iter(load_file(folder / "latents.safetensors").values()))[0].astype(np.float64)


def main():
    size = ARGS.size
    picture, mask = picture_and_mask(size)
    pipe = FluxInpaintPipeline(**init_image.load("tiny-flux").components)
    pipe.set_progress_bar_config(disable=True)
    reference = by_diffusers(pipe, picture, mask, size)
    values = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255
    change = 1e-6 * torch.randn(values.shape, generator=generator(1))
    changed = by_diffusers(pipe, (values + change).clamp(0, 1), mask, size)
    own = by_troupe(picture, mask, size)
    pipeline_flux_inpaint.randn_tensor = vae.randn_tensor = float32_noise
    exact = by_diffusers(pipe.to(torch.float64), picture, mask, size)
    part = lambda one, other: f"{np.abs(one - other).max() / np.abs(reference).max():.1e}"  # noqa: E731
    print("| size | Troupe, diffusers | diffusers, float64 | Troupe, float64 | diffusers, picture changed by 1e-6 |")
    print("|---|---|---|---|---|")
    print(f"| {size} | {part(own, reference)} | {part(reference, exact)} | {part(own, exact)} | {part(changed, reference)} |")


if __name__ == "__main__":
    sys.exit(main())
