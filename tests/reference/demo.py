"""Two pictures of the demo checkpoint; made again whenever the checkpoint is replaced."""
import hashlib

from diffusers import PixArtAlphaPipeline
from PIL import Image

from common import EXPECTED, PROMPT, ROOT, Book, generator
from pipeline import decode

CASES = [("small", 128, 6), ("native", 256, 20)]


def make():
    folder = ROOT / "examples" / "demo" / "model"
    digest = hashlib.sha256((folder / "transformer" / "diffusion_pytorch_model.safetensors").read_bytes()).hexdigest()
    book = Book("demo", "examples/demo/model with its own scheduler: final latents [1,4,h/8,w/8] (before the VAE's division); the picture is "
                "expected/demo_NAME.png. Valid for the transformer file with this sha256 only.", transformer_sha256=digest)
    pipe = PixArtAlphaPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    for name, size, steps in CASES:
        latents = pipe(PROMPT, height=size, width=size, num_inference_steps=steps, guidance_scale=4.5, generator=generator(0),
                       use_resolution_binning=False, clean_caption=False, output_type="latent").images
        Image.fromarray(decode(pipe, latents)[0].numpy()).save(EXPECTED / f"demo_{name}.png")
        book.case(name, {"prompts": [PROMPT], "negative_prompt": "", "height": size, "width": size, "steps": steps, "guidance": 4.5, "seed": 0, "n": 1,
                         "max_sequence_length": 120, "png": f"demo_{name}.png"}, {"latents": latents})
    book.save()
