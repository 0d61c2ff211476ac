"""ControlNets of Stable Diffusion 1.5 and XL: small random ones, in folders of their own and in pipelines' folders, and whole pictures by
diffusers' pipelines of them."""
import io
import shutil

import numpy as np
import torch
from diffusers import (ControlNetModel, StableDiffusionControlNetImg2ImgPipeline, StableDiffusionControlNetPipeline, StableDiffusionPipeline,
                       StableDiffusionXLControlNetImg2ImgPipeline, StableDiffusionXLControlNetPipeline, StableDiffusionXLPipeline)
from PIL import Image

from common import FIXTURES, PROMPT, ROOT, Book, generator, randomise
from unet_jobs import decode

STORED = ROOT / "tests" / "fixtures"
BASES = {"tiny-sd15": (StableDiffusionPipeline, StableDiffusionControlNetPipeline, StableDiffusionControlNetImg2ImgPipeline),
         "tiny-sdxl-deep": (StableDiffusionXLPipeline, StableDiffusionXLControlNetPipeline, StableDiffusionXLControlNetImg2ImgPipeline)}
# name: the model that it is for, seed, and what differs from that model's own settings
NETS = {
    "tiny-control-edges": ("tiny-sd15", 81, {}),
    "tiny-control-depth": ("tiny-sd15", 82, dict(controlnet_conditioning_channel_order="bgr", conditioning_embedding_out_channels=(4, 4, 8, 8))),
    "tiny-control-xl": ("tiny-sdxl-deep", 83, {}),
    # As the published small ones of SDXL: the text is not seen, and the middle is one block.
    "tiny-control-xl-small": ("tiny-sdxl-deep", 84, dict(down_block_types=("DownBlock2D",) * 3, mid_block_type="UNetMidBlock2D")),
}
# Folders of whole pipelines: their base and their ControlNets.
FOLDERS = {"tiny-sd15-control": ("tiny-sd15", ["tiny-control-edges"]), "tiny-sdxl-controls": ("tiny-sdxl-deep", ["tiny-control-xl", "tiny-control-xl-small"])}
DEFAULTS = dict(prompts=[PROMPT], negative_prompt=None, height=64, width=48, steps=4, guidance=4.0, seed=0, n=1, max_sequence_length=77, image=False,
                controlnets=[], controls=[(48, 64)], scale=None, start=None, end=None)
CASES = {
    "sd15_folder": dict(checkpoint="tiny-sd15-control", image=True),
    "sd15_beside": dict(checkpoint="tiny-sd15", controlnets=["tiny-control-edges"], controls=[(70, 81)], width=80, seed=1, scale=[0.7]),
    "sd15_alone": dict(checkpoint="tiny-sd15-control", guidance=1.0, seed=2, end=[0.5]),
    "sd15_late": dict(checkpoint="tiny-sd15-control", seed=3, start=[0.3], end=[0.8], steps=6),
    "sd15_two": dict(checkpoint="tiny-sd15-control", controlnets=["tiny-control-depth"], controls=[(48, 64), (100, 30)], scale=[0.5, 1.25], start=[0.0, 0.5],
                     end=[0.75, 1.0], seed=4, negative_prompt="a black dog!"),
    "sd15_batch": dict(checkpoint="tiny-sd15", controlnets=["tiny-control-depth"], prompts=["a red circle", "A Tree"], n=2, seed=5, steps=3, image=True),
    "sd15_sized": dict(checkpoint="tiny-sd15-control", height=0, width=0, controls=[(53, 70)], seed=6, steps=2),
    "sd15_begun": dict(checkpoint="tiny-sd15-control", init=(48, 64), strength=0.75, seed=7, scale=[0.8]),
    "sdxl_folder": dict(checkpoint="tiny-sdxl-controls", controls=[(48, 64), (64, 64)], image=True, seed=10),
    "sdxl_beside": dict(checkpoint="tiny-sdxl-deep", controlnets=["tiny-control-xl"], controls=[(60, 60)], seed=11, scale=[0.6], prompts=["a red circle", "A Tree"],
                        negative_prompt="dull"),
    "sdxl_small": dict(checkpoint="tiny-sdxl-deep", controlnets=["tiny-control-xl-small"], width=64, seed=12, start=[0.25], guidance=1.0),
    "sdxl_uneven": dict(checkpoint="tiny-sdxl-controls", controls=[(40, 72), (33, 91)], height=72, width=40, seed=13, scale=[1.0, 0.4], end=[0.5, 1.0]),
    "sdxl_begun": dict(checkpoint="tiny-sdxl-controls", controls=[(48, 64), (48, 64)], init=(48, 64), strength=0.6, seed=14, steps=5),
}


def make_nets():
    for name, (base, seed, changes) in NETS.items():
        unet = BASES[base][0].from_pretrained(STORED / base).unet
        own = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(4, 8, 8, 16), load_weights_from_unet=False)
        config = {key: value for key, value in own.config.items() if not key.startswith("_")}
        net = ControlNetModel(**{**config, **changes})
        randomise(net, seed, {"controlnet_down_blocks": 0.4, "controlnet_mid_block": 0.4, "to_q": 1.5, "time_emb_proj": 0.7})
        shutil.rmtree(FIXTURES / name, ignore_errors=True)
        net.save_pretrained(FIXTURES / name)


def nets_of(names):
    return [ControlNetModel.from_pretrained(FIXTURES / name) for name in names]


def with_nets(base, names, kind=1):
    plain = BASES[base][0].from_pretrained(STORED / base)
    parts = {key: part for key, part in plain.components.items() if key not in ("image_encoder", "feature_extractor", "safety_checker")}
    nets = nets_of(names)
    more = dict(safety_checker=None, feature_extractor=None, requires_safety_checker=False) if base == "tiny-sd15" else \
        dict(force_zeros_for_empty_prompt=plain.config.force_zeros_for_empty_prompt, add_watermarker=False)
    pipe = BASES[base][kind](**parts, controlnet=nets if len(nets) > 1 else nets[0], **more)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def picture(size, seed):
    """A PNG of smooth colours, [height, width]."""
    width, height = size
    small = torch.rand(5, 5, 3, generator=generator(seed)).mul(255).byte().numpy()
    file = io.BytesIO()
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


def draw(pipe, case, controls, begin):
    one = len(controls) == 1
    words = {}
    if case["scale"]:
        words["controlnet_conditioning_scale"] = case["scale"][0] if one else case["scale"]
    for key, name in (("start", "control_guidance_start"), ("end", "control_guidance_end")):
        if case[key]:
            words[name] = case[key][0] if one else case[key]
    pictures = [Image.open(io.BytesIO(control)) for control in controls]
    pictures = pictures[0] if one else pictures
    if begin is None:
        words["image"] = pictures
    else:
        words.update(image=Image.open(io.BytesIO(begin)), control_image=pictures, strength=case["strength"])
    negative = None if case["negative_prompt"] is None else [case["negative_prompt"]] * len(case["prompts"])
    return pipe(case["prompts"], negative_prompt=negative, height=case["height"] or None, width=case["width"] or None, num_inference_steps=case["steps"],
                guidance_scale=case["guidance"], num_images_per_prompt=case["n"], generator=generator(case["seed"]), output_type="latent", **words).images


def make():
    make_nets()
    for folder, (base, names) in FOLDERS.items():
        shutil.rmtree(FIXTURES / folder, ignore_errors=True)
        with_nets(base, names).save_pretrained(FIXTURES / folder)
    book = Book("controlnet", "Whole pictures by diffusers' ControlNet pipelines: latents are the final ones, before the VAE. The ControlNets are those of the folder "
                "`checkpoint`, then `controlnets`; control0, … are the files that they follow, init that of a picture to begin with.")
    for name, changes in CASES.items():
        case = {**DEFAULTS, **changes}
        base, own = FOLDERS.get(case["checkpoint"], (case["checkpoint"], []))
        controls = [picture(size, case["seed"] * 10 + k) for k, size in enumerate(case["controls"])]
        begin = picture(case["init"], case["seed"] * 10 + 9) if "init" in case else None
        pipe = with_nets(base, own + case["controlnets"], 1 if begin is None else 2)
        latents = draw(pipe, case, controls, begin)
        assert torch.isfinite(latents).all()
        plain = case | dict(scale=[0.0] * len(controls))
        moved = (draw(pipe, plain, controls, begin) - latents).abs().max() / latents.std()
        assert moved > 0.05, (name, moved)
        print(f"  {name}: latents {latents.abs().max():.2f}, {moved:.2f} deviations from those without", flush=True)
        files = {f"control{k}": torch.frombuffer(bytearray(file), dtype=torch.uint8) for k, file in enumerate(controls)}
        if begin is not None:
            files["init"] = torch.frombuffer(bytearray(begin), dtype=torch.uint8)
        book.case(name, case, {"latents": latents, **files, **({"image": decode(pipe, latents)} if case["image"] else {})})
    book.save()
