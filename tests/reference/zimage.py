"""Z-Image: a small random folder, and whole pictures by ZImagePipeline."""
import shutil

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from safetensors.torch import save_file

from common import FIXTURES, PROMPT, Book, generator, randomise
from families import decode, flow_vae, scheduled
from lora import in_diffusers, pairs
from qwen_text import make_encoder, make_tokenizer

LONG = f"{PROMPT}, a green tree by the river, a white cat and a black dog, " * 4
DEFAULTS = dict(checkpoint="tiny-zimage", prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=6, guidance=3.5, seed=0, n=1, max_sequence_length=128)
CASES = {
    "plain": dict(image=True),
    "wide": dict(width=96, height=80, prompts=["a cat"], negative_prompt=LONG, guidance=2.0, seed=1, steps=4),
    "two": dict(prompts=["a red circle", LONG], n=2, width=48, seed=2, steps=3),
    "alone": dict(guidance=0.0, seed=3, image=True, steps=3),
    "little_guidance": dict(guidance=0.5, seed=8, steps=3),
    "one_step": dict(steps=1, seed=4),
    "cut": dict(prompts=[LONG], max_sequence_length=33, seed=5, steps=3),
    "long": dict(prompts=[LONG * 4], max_sequence_length=512, seed=6, steps=3),
    "shifted": dict(scheduler="FlowMatchEulerDiscreteScheduler", seed=7, steps=4,
                    config=dict(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=16, max_image_seq_len=256)),
    "lora": dict(lora="lora/zimage.safetensors", seed=10, steps=3),
    "given": dict(embeds=True, prompts=["a tree", "a cat"], negative_prompt="", guidance=2.0, width=48, seed=9, steps=3, max_sequence_length=0),
}


def build():
    tokenizer, _, _ = make_tokenizer()
    transformer = ZImageTransformer2DModel(in_channels=4, dim=24, n_layers=4, n_refiner_layers=2, n_heads=3, n_kv_heads=3, cap_feat_dim=24, axes_dims=[4, 2, 2],
                                           axes_lens=[1024, 64, 64])
    randomise(transformer, 52, {"to_q": 1.5, "cap_embedder.1": 2.0, "adaLN_modulation": 0.5, "all_final_layer.2-1.linear": 0.6})
    return ZImagePipeline(scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), vae=flow_vae(4), text_encoder=make_encoder(tokenizer), tokenizer=tokenizer, transformer=transformer)


def draw(pipe, case):
    """Final latents [n, C, h/8, w/8], and what was given instead of prompts."""
    call = dict(height=case["height"], width=case["width"], num_inference_steps=case["steps"], guidance_scale=case["guidance"], num_images_per_prompt=case["n"],
                generator=generator(case["seed"]), output_type="latent")
    count, length = len(case["prompts"]), case["max_sequence_length"] or 512
    if not case.get("embeds"):
        return pipe(prompt=list(case["prompts"]), negative_prompt=[case["negative_prompt"]] * count, max_sequence_length=length, **call).images, {}
    prompts, negatives = ([states[:8] for states in pipe.encode_prompt(list(of), do_classifier_free_guidance=False, max_sequence_length=length)[0]]
                          for of in (case["prompts"], [case["negative_prompt"]] * count))
    given = {"prompt_embeds": torch.stack(prompts), "negative_prompt_embeds": torch.stack(negatives)}
    return pipe(prompt_embeds=prompts, negative_prompt_embeds=negatives, **call).images, given


LAYERS = ["attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0", "feed_forward.w1", "feed_forward.w2", "feed_forward.w3", "adaLN_modulation.0",
          "cap_embedder.1", "all_x_embedder.2-1"]


def make():
    folder = FIXTURES / "tiny-zimage"
    shutil.rmtree(folder, ignore_errors=True)
    build().save_pretrained(folder)
    pipe = ZImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    own = pipe.scheduler
    (FIXTURES / "lora").mkdir(exist_ok=True)
    save_file(in_diffusers("transformer", pairs(pipe.transformer, LAYERS, 3, 53)), FIXTURES / CASES["lora"]["lora"])
    book = Book("zimage", "Whole pictures by ZImagePipeline, with the folder's scheduler or `scheduler`(**config): latents [n,C,h/8,w/8] are the final ones before the VAE, "
                "image (uint8 [n,h,w,3]) where `image` is true. `lora`: with this file. `embeds`: prompt embeds were given, of 8 tokens.", beta={})
    for name, changes in CASES.items():
        case = {**DEFAULTS, "image": False, **changes}
        pipe.scheduler = scheduled(case, own)
        if "lora" in case:
            pipe.load_lora_weights(FIXTURES / case["lora"])
        latents, given = draw(pipe, case)
        if "lora" in case:
            pipe.unload_lora_weights()
        assert torch.isfinite(latents).all()
        tensors = {"latents": latents, **given}
        if case["image"]:
            tensors["image"] = decode(pipe, latents)
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        book.case(f"zimage_{name}", case, tensors)
    book.save()
