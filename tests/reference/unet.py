"""U-Nets of Stable Diffusion's layouts: one call at several sizes, and DistriFusion on patches of rows."""
import shutil

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel

from common import FIXTURES, SCHEDULER, Book, generator, halve, randomise
from unet_patches import PatchedUNet

FOLDER = FIXTURES / "tiny-unet"
MODELS = {
    # two levels with attention, linear projections, pooled text and sizes
    "sdxl": dict(down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
                 block_out_channels=(8, 16, 24), layers_per_block=1, transformer_layers_per_block=[1, 1, 2], attention_head_dim=[2, 2, 3], norm_num_groups=4,
                 cross_attention_dim=20, use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=6,
                 projection_class_embeddings_input_dim=10 + 6 * 6, sample_size=16),
    # four levels, the last without attention, projections by convolution
    "sd15": dict(block_out_channels=(8, 8, 16, 16), layers_per_block=2, attention_head_dim=2, norm_num_groups=4, cross_attention_dim=12, sample_size=8),
}


def make_checkpoints():
    shutil.rmtree(FOLDER, ignore_errors=True)
    for seed, (name, config) in enumerate(MODELS.items(), 31):
        model = randomise(UNet2DConditionModel(**config), seed, {"conv_out": 0.7, "to_q": 1.5, "time_emb_proj": 0.7})
        model.save_pretrained(FOLDER / name)
    halve(FOLDER)


def inputs(name, model, seed, height, width, batch):
    g = generator(seed)
    tensors = {"latents": torch.randn(batch, 4, height, width, generator=g), "states": torch.randn(batch, 7, model.config.cross_attention_dim, generator=g)}
    arguments = {"encoder_hidden_states": tensors["states"]}
    if name == "sdxl":
        tensors["pooled"] = torch.randn(batch, 10, generator=g)
        tensors["time_ids"] = torch.tensor([[128.0, 96, 0, 8, 8.0 * height, 8.0 * width]] * batch)
        arguments["added_cond_kwargs"] = {"text_embeds": tensors["pooled"], "time_ids": tensors["time_ids"]}
    return tensors, arguments


def calls(models):
    book = Book("unet", "UNet2DConditionModel of tests/fixtures/tiny-unet/`model` on latents [B,4,h,w] at `timestep`; states [B,7,D] and, for sdxl, pooled "
                "[B,10] and time_ids [B,6] condition it. output: .sample.")
    for k, (name, height, width, batch, timestep) in enumerate((
            ("sdxl", 16, 16, 1, 801), ("sdxl", 9, 14, 2, 500.25), ("sdxl", 5, 3, 1, 0), ("sdxl", 3, 6, 2, 999), ("sd15", 16, 8, 2, 7), ("sd15", 13, 7, 1, 321), ("sd15", 3, 5, 1, 999))):
        tensors, arguments = inputs(name, models[name], 100 + k, height, width, batch)
        tensors["output"] = models[name](tensors["latents"], timestep, **arguments).sample
        print(f"  {name} {height}x{width}: range {tensors['output'].min():.2f} to {tensors['output'].max():.2f}")
        book.case(f"{name}{k}", {"model": name, "timestep": timestep}, tensors)
    book.save()


def trajectory(model, height, width, patches, norm, warmup, mode, latents, arguments, steps=6):
    scheduler = DDIMScheduler(**SCHEDULER, clip_sample=False)
    scheduler.set_timesteps(steps)
    patched = PatchedUNet(model, height, width, patches, norm)
    try:
        for i, t in enumerate(scheduler.timesteps):
            output = patched.run(latents, "sync" if i < warmup else mode, timestep=t, **arguments)
            latents = scheduler.step(output, t, latents).prev_sample
    finally:
        patched.undo()
    return latents


def check_naive(model, height, width, patches, latents, arguments):
    """The original's Naive Patch is the U-Net itself on each patch, where cuts fall on whole rows of every level."""
    if height % (patches << (len(model.config.block_out_channels) - 1)):
        return
    patched = PatchedUNet(model, height, width, patches, "separate")
    found = patched.run(latents, "naive", timestep=500, **arguments)
    patched.undo()
    original = torch.cat([model(part, 500, **arguments).sample for part in latents.chunk(patches, 2)], 2)
    assert (found - original).abs().max() < 1e-5 * (original.max() - original.min()), "naive patches are not the U-Net on each patch"
    print("  naive patches are the U-Net on each patch")


def distrifusion(models):
    book = Book("unet_distrifusion", "Final latents of six DDIM steps (clip_sample off) of tests/fixtures/tiny-unet/`model` in `patches` patches of rows: "
                "`warmup` synchronous steps, then `mode` (stale, frozen) with group norms in mode `norm`. exact: all steps synchronous. naive: all steps by patches "
                "that never see each other.", beta=SCHEDULER)
    for k, (name, height, width, patches, warmup) in enumerate((("sdxl", 12, 8, 3, 2), ("sdxl", 7, 6, 2, 1), ("sd15", 16, 8, 2, 2), ("sd15", 9, 5, 4, 1))):
        tensors, arguments = inputs(name, models[name], 200 + k, height, width, 2)
        plain = models[name](tensors["latents"], 500, **arguments).sample
        patched = PatchedUNet(models[name], height, width, patches, "corrected")
        again = patched.run(tensors["latents"], "sync", timestep=500, **arguments)
        patched.undo()
        assert (plain - again).abs().max() < 1e-5 * (plain.max() - plain.min()), "synchronous patches are not the whole"
        check_naive(models[name], height, width, patches, tensors["latents"], arguments)
        results = {"exact": trajectory(models[name], height, width, patches, "corrected", 99, "stale", tensors["latents"], arguments)}
        for mode in ("stale", "frozen"):
            for norm in ("corrected", "stale", "synchronous", "separate"):
                if mode == "stale" or norm == "corrected":
                    results[f"{mode}.{norm}"] = trajectory(models[name], height, width, patches, norm, warmup, mode, tensors["latents"], arguments)
        results["naive"] = trajectory(models[name], height, width, patches, "separate", 0, "naive", tensors["latents"], arguments)
        exact = results["exact"]
        span = exact.max() - exact.min()
        print(f"  {name} {height}x{width} in {patches}:", ", ".join(f"{key} {float((v - exact).abs().max() / span):.1e}" for key, v in results.items()), flush=True)
        book.case(f"{name}{k}", {"model": name, "patches": patches, "warmup": warmup, "modes": list(results)}, {**tensors, **results})
    book.save()


def make():
    make_checkpoints()
    models = {name: UNet2DConditionModel.from_pretrained(FOLDER / name).eval() for name in MODELS}
    calls(models)
    distrifusion(models)
