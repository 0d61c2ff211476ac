"""LoRA files in diffusers' and in kohya's naming, and the pictures that they make.

PEFT and diffusers' own loaders read the files of SD3 and FLUX; PixArt and HunyuanDiT have none there, so their weights are
fused here."""
import inspect
import json

import torch
from diffusers import StableDiffusionXLPipeline
from diffusers.loaders import lora_conversion_utils, lora_pipeline
from safetensors.torch import save_file

import checkpoints
import families
from common import FIXTURES, Book, generator

FOLDER = FIXTURES / "lora"


def network(pipe):
    return pipe.unet if hasattr(pipe, "unet") else pipe.transformer


def pair(weight, rank, g):
    """Down and up halves whose product is about a third of the weight."""
    out, inputs = weight.shape[0], weight[0].numel()
    down = torch.randn(rank, inputs, generator=g) / inputs ** 0.5
    up = 0.35 * torch.randn(out, rank, generator=g) / rank ** 0.5
    if weight.ndim == 4:
        return down.reshape(rank, *weight.shape[1:]), up.reshape(out, rank, 1, 1)
    return down, up


def pairs(module, wanted, rank, seed):
    """{name: (down, up)} of the products whose names end in one of `wanted`."""
    g = generator(seed)
    return {name: pair(layer.weight, rank + i % 2, g) for i, (name, layer) in enumerate(sorted(module.named_modules()))
            if name.endswith(tuple(wanted)) and getattr(layer, "weight", None) is not None and layer.weight.ndim in (2, 4)}


def in_diffusers(component, layers):
    return {f"{component}.{name}.lora_{half}.weight": t for name, both in layers.items() for half, t in zip("AB", both)}


def in_old_names(component, layers):
    return {f"{component}.{name}.lora.{half}.weight": t for name, both in layers.items() for half, t in zip(("down", "up"), both)}


def in_kohya(prefix, layers, alpha):
    tensors = {}
    for name, both in layers.items():
        base = f"{prefix}_{name.replace('.', '_')}"
        tensors.update({f"{base}.lora_{half}.weight": t for half, t in zip(("down", "up"), both)})
        if alpha is not None:
            tensors[f"{base}.alpha"] = torch.tensor(float(alpha))
    return tensors


def flux_kohya(transformer, rank, alpha, seed):
    """By the authors' names: products of one input are one."""
    g = generator(seed)
    width = transformer.inner_dim
    sizes = {}
    for i in range(len(transformer.transformer_blocks)):
        for stream in ("img", "txt"):
            sizes |= {f"double_blocks_{i}_{stream}_attn_qkv": (width, 3 * width), f"double_blocks_{i}_{stream}_attn_proj": (width, width),
                      f"double_blocks_{i}_{stream}_mlp_0": (width, 4 * width), f"double_blocks_{i}_{stream}_mlp_2": (4 * width, width),
                      f"double_blocks_{i}_{stream}_mod_lin": (width, 6 * width)}
    for i in range(len(transformer.single_transformer_blocks)):
        sizes |= {f"single_blocks_{i}_linear1": (width, 7 * width), f"single_blocks_{i}_linear2": (5 * width, width),
                  f"single_blocks_{i}_modulation_lin": (width, 3 * width)}
    tensors = {}
    for name, (inputs, outputs) in sizes.items():
        down, up = pair(torch.empty(outputs, inputs), rank, g)
        tensors |= {f"lora_unet_{name}.lora_down.weight": down, f"lora_unet_{name}.lora_up.weight": up, f"lora_unet_{name}.alpha": torch.tensor(float(alpha))}
    return tensors


def fuse(module, layers, factor_of):
    for name, (down, up) in layers.items():
        weight = module.get_submodule(name).weight
        weight += factor_of(down.shape[0]) * (up.flatten(1) @ down.flatten(1)).reshape(weight.shape)


ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]
EVERYTHING = ATTENTION + ["net.0.proj", "net.2", "proj_out", "linear", "linear_1", "linear_2", "pos_embed.proj"]


def save(name, tensors, metadata=None):
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_file({k: t.contiguous() for k, t in tensors.items()}, FOLDER / f"{name}.safetensors", metadata)


def load(checkpoint):
    if checkpoint == "tiny-sdxl":
        return StableDiffusionXLPipeline.from_pretrained(FIXTURES / checkpoint, add_watermarker=False)
    return checkpoints.load(checkpoint) if checkpoint.startswith("tiny-pixart") else families.load(checkpoint)


def make_files():
    """The files, and for those that no loader of diffusers takes a function that fuses one at a scale."""
    fusers = {}

    def fused(name, checkpoint, wanted, rank, seed, alpha=None, naming=None):
        layers = pairs(network(load(checkpoint)), wanted, rank, seed)
        save(name, (naming or (lambda l: in_diffusers("transformer", l)))(layers))
        fusers[name] = lambda pipe, scale: fuse(network(pipe), layers, lambda rank: scale * (alpha or rank) / rank)

    fused("pixart", "tiny-pixart", EVERYTHING, 4, 1)
    fused("pixart_kohya", "tiny-pixart", ATTENTION + ["net.0.proj", "net.2"], 3, 2, alpha=2, naming=lambda l: in_kohya("lora_transformer", l, 2))
    fused("hunyuan_old", "tiny-hunyuan", EVERYTHING, 4, 3, naming=lambda l: in_old_names("unet", l))
    sd3 = load("tiny-sd3")
    layers = pairs(sd3.transformer, ATTENTION + ["add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "net.0.proj", "net.2"], 4, 4)
    clip = {f"text_encoder{s}.text_model.{name.removeprefix('text_model.')}": both for s, encoder, seed in (("", sd3.text_encoder, 5), ("_2", sd3.text_encoder_2, 6))
            for name, both in pairs(encoder, ["q_proj", "k_proj", "v_proj", "out_proj"], 2, seed).items()}
    text = {f"{name}.lora_{half}.weight": t for name, both in clip.items() for half, t in zip("AB", both)}
    save("sd3", in_diffusers("transformer", layers) | text)
    flux = load("tiny-flux")
    layers = pairs(flux.transformer, ATTENTION + ["add_k_proj", "net.0.proj", "proj_mlp", ".proj_out", "norm.linear"], 4, 7)
    about = {"transformer.lora_alpha": 6, "transformer.r": 4, "transformer.alpha_pattern": {"single_transformer_blocks.1.proj_mlp": 9},
             "transformer.rank_pattern": {n: d.shape[0] for n, (d, _) in layers.items() if d.shape[0] != 4}, "transformer.target_modules": sorted(layers)}
    save("flux", in_diffusers("transformer", layers), {"format": "pt", "lora_adapter_metadata": json.dumps(about)})
    save("flux_kohya", flux_kohya(flux.transformer, 3, 2.0, 8))
    sdxl = load("tiny-sdxl")
    layers = pairs(sdxl.unet, ATTENTION + ["net.0.proj", "net.2", "proj_in"], 2, 9)
    theirs = {"down_blocks.1.attentions.0": "input_blocks.3.1", "mid_block.attentions.0": "middle_block.1", "up_blocks.0.attentions.0": "output_blocks.0.1", "up_blocks.0.attentions.1": "output_blocks.1.1"}
    tensors = {}
    for name, both in layers.items():
        ours = next(o for o in theirs if name.startswith(o + "."))
        tensors |= in_kohya("lora_unet", {theirs[ours] + name.removeprefix(ours): both}, 1.5)
    # Of kohya's text encoders this version of diffusers drops what belongs to attention, without a word.
    for which, encoder, seed in (("1", sdxl.text_encoder, 10), ("2", sdxl.text_encoder_2, 11)):
        clip = {f"text_model.{n.removeprefix('text_model.')}": both for n, both in pairs(encoder, ["fc1", "fc2"], 2, seed).items()}
        tensors |= in_kohya(f"lora_te{which}", clip, 3)
    save("sdxl_kohya", tensors)
    return fusers


PIXART = dict(checkpoint="tiny-pixart", prompts=["a red circle"], height=64, width=96, steps=4, guidance=4.5, seed=3, max_sequence_length=12)
SD3 = dict(checkpoint="tiny-sd3", prompts=["a red circle"], height=96, width=64, steps=4, guidance=4.5, seed=3, max_sequence_length=12)
FLUX = dict(checkpoint="tiny-flux", prompts=["a red circle"], height=64, width=96, steps=4, guidance=3.5, seed=3, max_sequence_length=12)
HUNYUAN = dict(checkpoint="tiny-hunyuan", prompts=["a red circle"], height=64, width=96, steps=4, guidance=4.5, seed=3, max_sequence_length=256)
CASES = [("pixart", PIXART, [("pixart", 0.8)]), ("pixart_kohya", PIXART, [("pixart_kohya", 1.0)]), ("pixart_both", PIXART, [("pixart", 0.5), ("pixart_kohya", -0.7)]),
         ("hunyuan", HUNYUAN, [("hunyuan_old", 0.6)]), ("sd3", SD3, [("sd3", 0.9)]), ("flux", FLUX, [("flux", 0.7)]), ("flux_kohya", FLUX, [("flux_kohya", 1.0)]),
         ("sdxl_kohya", dict(PIXART, checkpoint="tiny-sdxl", negative_prompt="a tree", max_sequence_length=77), [("sdxl_kohya", 0.9)]),
         ("flux_both", FLUX, [("flux", 0.4), ("flux_kohya", -0.5)])]


def for_any_width(transformer):
    """diffusers converts kohya's FLUX files for the published width alone."""
    width = transformer.inner_dim
    source = inspect.getsource(lora_conversion_utils._convert_kohya_flux_lora_to_diffusers)
    assert "[3072, 3072, 3072, 12288]" in source
    space = dict(vars(lora_conversion_utils))
    exec(source.replace("[3072, 3072, 3072, 12288]", str([width, width, width, 4 * width])), space)
    lora_pipeline._convert_kohya_flux_lora_to_diffusers = space["_convert_kohya_flux_lora_to_diffusers"]


def adapt(pipe, loras, fusers):
    if all(name in fusers for name, _ in loras):
        for name, scale in loras:
            fusers[name](pipe, scale)
        return
    if hasattr(network(pipe), "single_transformer_blocks"):
        for_any_width(pipe.transformer)
    for name, _ in loras:
        pipe.load_lora_weights(str(FOLDER), weight_name=f"{name}.safetensors", adapter_name=name)
    pipe.set_adapters([name for name, _ in loras], [scale for _, scale in loras])


def draw(pipe, case):
    if case["checkpoint"] == "tiny-sdxl":
        return pipe(prompt=case["prompts"], negative_prompt=case["negative_prompt"], height=case["height"], width=case["width"], num_inference_steps=case["steps"],
                    guidance_scale=case["guidance"], generator=generator(case["seed"]), output_type="latent").images
    if case["checkpoint"].startswith("tiny-pixart"):
        return pipe(prompt=case["prompts"], negative_prompt=case["negative_prompt"], height=case["height"], width=case["width"], num_inference_steps=case["steps"],
                    guidance_scale=case["guidance"], generator=generator(case["seed"]), max_sequence_length=case["max_sequence_length"], output_type="latent",
                    use_resolution_binning=False, clean_caption=False).images
    return families.draw(pipe, case)


def make():
    fusers = make_files()
    book = Book("lora", "Final latents with LoRAs of tests/fixtures/lora; `plain` are those without.", fixtures="tests/fixtures/lora")
    for name, fields, loras in CASES:
        case = {"negative_prompt": "", "n": 1, **fields}
        plain = draw(load(case["checkpoint"]), case)
        pipe = load(case["checkpoint"])
        adapt(pipe, loras, fusers)
        latents = draw(pipe, case)
        assert torch.isfinite(latents).all()
        print(f"  {name}: std {latents.std():.2f}, changed by {(latents - plain).abs().max() / plain.abs().max():.2f} of the largest", flush=True)
        book.case(name, {**case, "image": False, "loras": [{"file": f"{n}.safetensors", "scale": s} for n, s in loras]}, {"latents": latents, "plain": plain})
    book.save()
