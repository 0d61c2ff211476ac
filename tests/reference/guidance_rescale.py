"""Pictures with guidance rescale, by the pipelines that have it."""
import torch

import families
import unet_jobs
from common import Book, generator

ONE = dict(prompts=["a red circle"], negative_prompt="a tree", n=1, height=64, width=96, steps=4, seed=6, guidance=6.0)
CASES = [("hunyuan", dict(ONE, checkpoint="tiny-hunyuan", guidance_rescale=0.7, max_sequence_length=256)),
         ("hunyuan_all", dict(ONE, checkpoint="tiny-hunyuan", guidance_rescale=1.0, prompts=["a cat", "a tree"], max_sequence_length=256)),
         *((name, dict(ONE, checkpoint=f"tiny-{name}", guidance_rescale=0.7, max_sequence_length=77)) for name in ("sdxl", "sd15"))]


def draw(case, rescale):
    call = dict(prompt=case["prompts"], height=case["height"], width=case["width"], num_inference_steps=case["steps"], guidance_scale=case["guidance"],
                generator=generator(case["seed"]), output_type="latent", guidance_rescale=rescale)
    if case["checkpoint"] in unet_jobs.KINDS:
        pipe = unet_jobs.load(case["checkpoint"])
    else:
        pipe = families.load(case["checkpoint"])
        call["use_resolution_binning"] = False
    pipe.set_progress_bar_config(disable=True)
    return pipe(**call, negative_prompt=[case["negative_prompt"]] * len(case["prompts"])).images


def make():
    book = Book("guidance_rescale", "Final latents with guidance rescale; `plain` are those without.")
    for name, case in CASES:
        latents, plain = draw(case, case["guidance_rescale"]), draw(case, 0.0)
        assert torch.isfinite(latents).all()
        print(f"  {name}: changed by {(latents - plain).abs().max() / plain.abs().max():.2f} of the largest", flush=True)
        book.case(name, {**case, "image": False}, {"latents": latents, "plain": plain})
    book.save()
