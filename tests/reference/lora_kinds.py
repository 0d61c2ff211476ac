"""LoRA files of every kind and naming, and the weights that diffusers and PEFT make of them.

Where neither reads a kind, the weights are its published formula's: W + diff, and LyCORIS's of kernels between two halves and of lengths of inputs."""
import inspect
import json
import re
import shutil

import torch
from diffusers import DiffusionPipeline
from diffusers.loaders import lora_conversion_utils, lora_pipeline
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file

import families
from common import FIXTURES, ROOT, Book, generator
from lora import FLUX, for_any_width

OUT = FIXTURES / "lora-kinds"
ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")


def folder(checkpoint):
    return next(place / checkpoint for place in (ROOT / "tests/fixtures", FIXTURES) if (place / checkpoint).is_dir())


def load(checkpoint):
    pipe = DiffusionPipeline.from_pretrained(folder(checkpoint))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def components(pipe):
    """{name of the folder: module} of what LoRAs are for."""
    return {name: part for name in ("unet", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3") if (part := getattr(pipe, name, None)) is not None}


def weights(pipe, checkpoint):
    """{component: {name: weight}}, without what PEFT wraps around; CLIP's with their model's name."""
    found = {}
    for component, module in components(pipe).items():
        of = found[component] = {}
        for name, value in module.state_dict().items():
            plain = name.replace(".base_layer", "")
            of["text_model." + plain if plain.startswith("encoder.layers.") else plain] = value.detach().clone()
    return found


class Kinds:
    def __init__(self):
        self.cases = []
        self.book = Book("lora_kinds", "Final latents with files of lora-kinds.")

    def draw(self, name, pipe, case):
        """Latents with the file whose weights `pipe` has."""
        of = self.cases[-1]
        assert of["name"] == name
        case = {"negative_prompt": "", "n": 1, **case}
        latents = families.draw(pipe, case)
        assert torch.isfinite(latents).all()
        self.book.case(name, {**case, "image": False, "loras": [{"file": f"lora-kinds/{name}/{of['file']}", "scale": of["scale"]}]}, {"latents": latents})

    def save(self, name, tensors, metadata=None, file=None):
        (OUT / name).mkdir(parents=True, exist_ok=True)
        path = OUT / name / (file or "lora.safetensors")
        save_file({key: value.contiguous() for key, value in tensors.items()}, path, metadata)
        return path

    def expect(self, name, checkpoint, path, before, after, scale, unused=0):
        changed = {f"{'transformer' if component == 'unet' else component}/{tensor}": value for component, of in after.items() for tensor, value in of.items()
                   if tensor in before[component] and not torch.equal(value, before[component][tensor])}
        assert changed, name
        save_file(changed, OUT / name / "expected.safetensors")
        print(f"  {name}: {len(changed)} weights", flush=True)
        self.cases.append({"name": name, "folder": str(folder(checkpoint).resolve()), "file": path.name, "scale": scale, "unused": unused})

    def loaded(self, name, checkpoint, tensors, scale=0.8, metadata=None, unused=0, pipe=None):
        """A file that diffusers loads."""
        pipe = pipe or load(checkpoint)
        path = self.save(name, tensors, metadata)
        before = weights(pipe, checkpoint)
        pipe.load_lora_weights(str(path.parent), weight_name=path.name, adapter_name="x")
        parts = [part for part in components(pipe) if hasattr(getattr(pipe, part), "peft_config")]
        pipe.fuse_lora(components=parts, lora_scale=scale)
        self.expect(name, checkpoint, path, before, weights(pipe, checkpoint), scale, unused)
        return pipe

    def merged(self, name, checkpoint, component, config, keep=lambda key: key):
        """A file that PEFT writes, and merges."""
        pipe = load(checkpoint)
        before = weights(pipe, checkpoint)
        model = get_peft_model(getattr(pipe, component), config)
        randomise(model, 71)
        path = self.save(name, {keep(key): value.clone() for key, value in get_peft_model_state_dict(model).items()}, file="adapter_model.safetensors")
        config.save_pretrained(path.parent)
        setattr(pipe, component, model.merge_and_unload())
        self.expect(name, checkpoint, path, before, weights(pipe, checkpoint), 1.0)
        return pipe

    def by_formula(self, name, checkpoint, component, tensors, changed, scale=1.0, unused=0):
        pipe = load(checkpoint)
        path = self.save(name, tensors)
        before = weights(pipe, checkpoint)
        after = {part: dict(of) for part, of in before.items()}
        after[component].update(changed)
        self.expect(name, checkpoint, path, before, after, scale, unused)


def randomise(model, seed):
    g = generator(seed)
    for key, value in sorted(model.named_parameters()):
        if "lora_magnitude" in key:
            value.data.mul_(1 + 0.2 * torch.rand(value.shape, generator=g))
        elif any(word in key for word in ("lora_", "hada_", "lokr_")):
            value.data.copy_(torch.randn(value.shape, generator=g) * 0.4)


def products(module, wanted, sides=(2, 4)):
    return {name: layer.weight for name, layer in sorted(module.named_modules())
            if name.endswith(tuple(wanted)) and getattr(layer, "weight", None) is not None and layer.weight.ndim in sides}


def pair(shape, rank, g):
    out, inputs = shape[0], shape[1]
    down = torch.randn(rank, *shape[1:], generator=g) * 0.3
    up = torch.randn(out, rank, *(1 for _ in shape[2:]), generator=g) * 0.3
    return down, up


def halves(names, style, rank=3, seed=1, alpha=None, one_alpha=False):
    """Pairs for {name in the file: shape of the product}. Of a U-Net's layers diffusers takes one alpha for all alone."""
    g, tensors = generator(seed), {}
    down_end, up_end = {"ab": ("lora_A.weight", "lora_B.weight"), "default": ("lora_A.default.weight", "lora_B.default.weight"), "kohya": ("lora_down.weight", "lora_up.weight"),
                        "dots": ("lora.down.weight", "lora.up.weight"), "bare": ("down.weight", "up.weight")}[style]
    for number, (name, shape) in enumerate(names.items()):
        down, up = pair(shape, rank, g)
        tensors |= {f"{name}.{down_end}": down, f"{name}.{up_end}": up}
        if alpha is not None:
            tensors[f"{name}.alpha"] = torch.tensor(float(alpha if one_alpha else alpha + number % 2))
    return tensors


def flat(prefix, shapes):
    return {f"{prefix}_{name.replace('.', '_')}": shape for name, shape in shapes.items()}


def dotted(prefix, shapes):
    return {prefix + name: shape for name, shape in shapes.items()}


def shapes(module, wanted):
    return {name: tuple(weight.shape) for name, weight in products(module, wanted).items()}


def clip_layers(encoder, wanted):
    return {"text_model." + name.removeprefix("text_model."): shape for name, shape in shapes(encoder, wanted).items()}


def lengths(tensors, module_weights, seed):
    """dora_scale beside each pair of kohya's."""
    g = generator(seed)
    for name, weight in module_weights.items():
        norm = weight.flatten(1).norm(dim=1)
        tensors[f"{name}.dora_scale"] = (norm * (1 + 0.3 * torch.rand(norm.shape, generator=g))).reshape(-1, *(1 for _ in weight.shape[1:]))
    return tensors


def stable_diffusion(kinds):
    pipe = load("tiny-sd15")
    unet, clip = shapes(pipe.unet, ATTENTION + ("ff.net.0.proj", "ff.net.2")), clip_layers(pipe.text_encoder, ("fc1", "fc2"))
    kinds.loaded("sd15_kohya", "tiny-sd15", halves(flat("lora_unet", unet) | flat("lora_te", clip), "kohya", alpha=2, one_alpha=True))
    convolutions = shapes(pipe.unet, ("conv1", "conv2", "conv_shortcut", "downsamplers.0.conv", "upsamplers.0.conv", "proj_in", "proj_out", "time_emb_proj"))
    kinds.loaded("sd15_kohya_convolutions", "tiny-sd15", halves(flat("lora_unet", convolutions), "kohya", alpha=1, seed=2, one_alpha=True))
    # From kohya's files diffusers 0.42 drops the lengths without a word; the formula is PEFT's.
    attention = {"lora_unet_" + name.replace(".", "_"): (name, weight) for name, weight in products(pipe.unet, ATTENTION).items()}
    dora = lengths(halves({base: tuple(weight.shape) for base, (_, weight) in attention.items()}, "kohya", alpha=2, seed=3), {base: weight for base, (_, weight) in attention.items()}, 4)
    changed = {}
    for base, (name, weight) in attention.items():
        sum_ = weight + 0.8 * dora[f"{base}.alpha"] / 3 * dora[f"{base}.lora_up.weight"] @ dora[f"{base}.lora_down.weight"]
        changed[name + ".weight"] = sum_ * dora[f"{base}.dora_scale"] / sum_.norm(dim=1, keepdim=True)
    kinds.by_formula("sd15_kohya_dora", "tiny-sd15", "unet", dora, changed, scale=0.8)
    old = {}
    for name, shape in shapes(pipe.unet, ATTENTION).items():
        place, product = re.fullmatch(r"(.*attn\d)\.(to_\w+)(?:\.0)?", name).groups()
        down, up = pair(shape, 2, generator(len(old)))
        old |= {f"unet.{place}.processor.{product}_lora.down.weight": down, f"unet.{place}.processor.{product}_lora.up.weight": up}
    kinds.loaded("sd15_processors", "tiny-sd15", old)
    layers = dotted("unet.", shapes(pipe.unet, ATTENTION))
    one = next(iter(layers)).removeprefix("unet.")
    about = {"unet.lora_alpha": 5, "unet.r": 3, "unet.alpha_pattern": {one: 9}, "unet.target_modules": sorted(n.removeprefix("unet.") for n in layers)}
    kinds.loaded("sd15_metadata", "tiny-sd15", halves(layers, "ab", seed=5), metadata={"format": "pt", "lora_adapter_metadata": json.dumps(about)})

    g = generator(6)
    kernels = {name: weight for name, weight in products(pipe.unet, ("conv1", "conv2")).items()}
    tensors, changed = {}, {}
    for name, weight in kernels.items():
        out, inputs, *places = weight.shape
        down, mid, up = (torch.randn(shape, generator=g) * 0.4 for shape in ((3, inputs, 1, 1), (3, 3, *places), (out, 3, 1, 1)))
        base = "lora_unet_" + name.replace(".", "_")
        tensors |= {f"{base}.lora_down.weight": down, f"{base}.lora_mid.weight": mid, f"{base}.lora_up.weight": up, f"{base}.alpha": torch.tensor(2.0)}
        changed[name + ".weight"] = weight + 2 / 3 * torch.einsum("oi,ijhw,jc->ochw", up[:, :, 0, 0], mid, down[:, :, 0, 0])
    kinds.by_formula("sd15_tucker", "tiny-sd15", "unet", tensors, changed)

    tensors, changed = {}, {}
    state = pipe.unet.state_dict()
    for name in ("down_blocks.0.resnets.0.conv1", "down_blocks.0.resnets.0.norm1", "mid_block.attentions.0.transformer_blocks.0.attn1.to_q", "conv_in"):
        base = "lora_unet_" + name.replace(".", "_")
        normal = "norm" in name
        for part, end in (("weight", "w_norm" if normal else "diff"), ("bias", "b_norm" if normal else "diff_b")):
            if f"{name}.{part}" in state:
                tensors[f"{base}.{end}"] = torch.randn(state[f"{name}.{part}"].shape, generator=g) * 0.3
                changed[f"{name}.{part}"] = state[f"{name}.{part}"] + 0.5 * tensors[f"{base}.{end}"]
    kinds.by_formula("sd15_differences", "tiny-sd15", "unet", tensors, changed, scale=0.5)

    tensors, changed = {}, {}
    for name, weight in list(products(pipe.unet, ("conv1", "to_q")).items())[:6]:
        matrix = weight.flatten(1)
        w1a, w1b, w2a, w2b = (torch.randn(shape, generator=g) * 0.4 for shape in ((matrix.shape[0], 2), (2, matrix.shape[1])) * 2)
        base = "lycoris_" + name.replace(".", "_")
        sum_ = weight + 0.5 * ((w1a @ w1b) * (w2a @ w2b)).reshape(weight.shape)
        inputs = sum_.transpose(0, 1).flatten(1).norm(dim=1)
        scale = (inputs * (1 + 0.3 * torch.rand(inputs.shape, generator=g))).reshape(1, -1, *(1 for _ in weight.shape[2:]))
        tensors |= {f"{base}.hada_w1_a": w1a, f"{base}.hada_w1_b": w1b, f"{base}.hada_w2_a": w2a, f"{base}.hada_w2_b": w2b, f"{base}.alpha": torch.tensor(1.0), f"{base}.dora_scale": scale}
        changed[name + ".weight"] = sum_ * scale / inputs.reshape(scale.shape)
    kinds.by_formula("sd15_loha_dora_inputs", "tiny-sd15", "unet", tensors, changed)

    targets = ["to_q", "to_k", "to_v", "conv1", "conv2", "proj_in"]
    kinds.merged("sd15_peft_loha", "tiny-sd15", "unet", LoHaConfig(r=4, alpha=3, target_modules=targets, use_effective_conv2d=True, rank_pattern={"conv2": 2}, init_weights=False))
    kinds.merged("sd15_peft_lokr", "tiny-sd15", "unet", LoKrConfig(r=2, alpha=3, target_modules=targets, use_effective_conv2d=True, decompose_both=True, decompose_factor=4, init_weights=False))
    kinds.merged("sd15_peft_lokr_whole", "tiny-sd15", "unet", LoKrConfig(r=64, alpha=32, target_modules=targets, init_weights=False))
    kinds.merged("sd15_peft_rslora_dora", "tiny-sd15", "unet", LoraConfig(r=4, lora_alpha=3, target_modules=["to_q", "to_k", "ff.net.2", "conv1"], use_rslora=True, use_dora=True,
                                                                      rank_pattern={"to_k": 2}, alpha_pattern={"to_q": 5}))


def sdxl(kinds):
    pipe = load("tiny-sdxl")
    theirs = {"down_blocks.1.attentions.0": "input_blocks.3.1", "mid_block.attentions.0": "middle_block.1", "up_blocks.0.attentions.0": "output_blocks.0.1", "up_blocks.0.attentions.1": "output_blocks.1.1"}
    names = {}
    for name, shape in shapes(pipe.unet, ATTENTION + ("ff.net.0.proj", "proj_in")).items():
        ours = next(o for o in theirs if name.startswith(o + "."))
        names[theirs[ours] + name.removeprefix(ours)] = shape
    text = flat("lora_te1", clip_layers(pipe.text_encoder, ("fc1",))) | flat("lora_te2", clip_layers(pipe.text_encoder_2, ("fc1", "fc2")))
    kinds.loaded("sdxl_kohya", "tiny-sdxl", halves(flat("lora_unet", names) | text, "kohya", alpha=1, seed=11, one_alpha=True))
    unet = dotted("unet.", shapes(pipe.unet, ATTENTION))
    encoders = dotted("text_encoder.", clip_layers(pipe.text_encoder, ("q_proj", "out_proj"))) | dotted("text_encoder_2.", clip_layers(pipe.text_encoder_2, ("v_proj", "fc2")))
    kinds.loaded("sdxl_diffusers", "tiny-sdxl", halves(unet | encoders, "ab", seed=12))


def sd3(kinds):
    pipe = load("tiny-sd3")
    layers = dotted("transformer.", shapes(pipe.transformer, ATTENTION + ("add_q_proj", "to_add_out", "ff.net.2", "norm1.linear")))
    kinds.loaded("sd3_diffusers", "tiny-sd3", halves(layers | dotted("text_encoder.", clip_layers(pipe.text_encoder, ("k_proj",))), "ab", seed=21))


def flux_names(transformer, wanted=lambda name: True):
    width = transformer.inner_dim
    names = {}
    for i in range(len(transformer.transformer_blocks)):
        for stream in ("img", "txt"):
            names |= {f"double_blocks.{i}.{stream}_attn.qkv": (3 * width, width), f"double_blocks.{i}.{stream}_attn.proj": (width, width), f"double_blocks.{i}.{stream}_mlp.0": (4 * width, width),
                      f"double_blocks.{i}.{stream}_mlp.2": (width, 4 * width), f"double_blocks.{i}.{stream}_mod.lin": (6 * width, width)}
    for i in range(len(transformer.single_transformer_blocks)):
        names |= {f"single_blocks.{i}.linear1": (7 * width, width), f"single_blocks.{i}.linear2": (width, 5 * width), f"single_blocks.{i}.modulation.lin": (3 * width, width)}
    return {name: shape for name, shape in names.items() if wanted(name)}


def fal_of_any_size(transformer):
    source = inspect.getsource(lora_conversion_utils._convert_fal_kontext_lora_to_diffusers)
    for name, published, own in (("num_layers", 19, len(transformer.transformer_blocks)), ("num_single_layers", 38, len(transformer.single_transformer_blocks)), ("inner_dim", 3072, transformer.inner_dim)):
        assert f"{name} = {published}" in source
        source = source.replace(f"{name} = {published}", f"{name} = {own}")
    space = dict(vars(lora_conversion_utils))
    exec(source, space)
    lora_pipeline._convert_fal_kontext_lora_to_diffusers = space["_convert_fal_kontext_lora_to_diffusers"]


def flux(kinds):
    pipe = load("tiny-flux")
    for_any_width(pipe.transformer)
    fal_of_any_size(pipe.transformer)
    names = flux_names(pipe.transformer)
    clip = clip_layers(pipe.text_encoder, ("fc1", "fc2"))
    kinds.loaded("flux_kohya", "tiny-flux", halves(flat("lora_unet", names) | flat("lora_te1", clip), "kohya", alpha=2, seed=31))
    kinds.loaded("flux_comfy", "tiny-flux", halves(dotted("diffusion_model.", names) | dotted("text_encoders.clip_l.transformer.", clip), "kohya", alpha=2, seed=32))
    final = {"final_layer.linear": tuple(pipe.transformer.proj_out.weight.shape)}
    kinds.loaded("flux_fal", "tiny-flux", halves(dotted("base_model.model.", names | final), "ab", seed=33))
    layers = shapes(pipe.transformer, ATTENTION + ("add_q_proj", "to_add_out"))
    kinds.loaded("flux_mixture", "tiny-flux", halves(flat("lora_transformer", layers), "kohya", alpha=2, seed=34))
    width = pipe.transformer.inner_dim
    xlabs = {}
    for i in range(len(pipe.transformer.transformer_blocks)):
        xlabs |= {f"double_blocks.{i}.processor.{kind}_lora{stream}": (rows * width, width) for kind, rows in (("qkv", 3), ("proj", 1)) for stream in (1, 2)}
    for i in range(len(pipe.transformer.single_transformer_blocks)):
        xlabs |= {f"single_blocks.{i}.processor.qkv_lora": (3 * width, width), f"single_blocks.{i}.processor.proj_lora": (width, 5 * width)}
    kinds.loaded("flux_xlabs", "tiny-flux", halves(xlabs, "bare", seed=35))
    ours = dotted("transformer.", shapes(pipe.transformer, ATTENTION + ("proj_mlp", "norm.linear")))
    biased = halves(ours, "ab", seed=36)
    g = generator(37)
    biased |= {f"{name}.lora_B.bias": torch.randn(shape[0], generator=g) * 0.3 for name, shape in ours.items()}
    kinds.draw("flux_biases", kinds.loaded("flux_biases", "tiny-flux", biased), FLUX)
    config = LoraConfig(r=3, lora_alpha=2, target_modules=["to_q", "to_out.0", "proj_mlp", "proj_out", "norm.linear"], use_dora=True)
    kinds.draw("flux_dora", kinds.merged("flux_dora", "tiny-flux", "transformer", config), FLUX)
    config = LoKrConfig(r=2, alpha=1, target_modules=["to_q", "to_v", "net.2", "proj_mlp"], decompose_factor=4, init_weights=False)
    kinds.draw("flux_lokr", kinds.merged("flux_lokr", "tiny-flux", "transformer", config), FLUX)


def chroma(kinds):
    pipe = load("tiny-chroma")
    for_any_width(pipe.transformer)
    kinds.loaded("chroma_kohya", "tiny-chroma", halves(flat("lora_unet", flux_names(pipe.transformer, lambda name: "mod" not in name)), "kohya", alpha=2, seed=41))


def wan(kinds):
    pipe = load("tiny-wan")
    words = (("attn1.", "self_attn."), ("attn2.", "cross_attn."), ("to_out.0", "o"), ("to_", ""), ("ffn.net.0.proj", "ffn.0"), ("ffn.net.2", "ffn.2"))
    names = {}
    for name, shape in shapes(pipe.transformer, ATTENTION + ("ffn.net.0.proj", "ffn.net.2")).items():
        if not name.startswith("blocks."):
            continue
        for ours, theirs in words:
            name = name.replace(ours, theirs)
        names[name] = shape
    g = generator(51)
    comfy = halves(dotted("diffusion_model.", names), "kohya", alpha=2, seed=52)
    comfy |= {f"diffusion_model.{name}.diff_b": torch.randn(shape[0], generator=g) * 0.3 for name, shape in names.items()}
    kinds.loaded("wan_comfy", "tiny-wan", comfy)
    kinds.loaded("wan_musubi", "tiny-wan", halves(flat("lora_unet", names), "kohya", alpha=2, seed=53))
    state, tensors, changed = pipe.transformer.state_dict(), {}, {}
    for theirs, ours in (("blocks.0.norm3", "blocks.0.norm2"), ("blocks.1.self_attn.norm_q", "blocks.1.attn1.norm_q"), ("head.head", "proj_out"), ("patch_embedding", "patch_embedding")):
        for part, end in (("weight", "diff"), ("bias", "diff_b")):
            if f"{ours}.{part}" in state:
                tensors[f"diffusion_model.{theirs}.{end}"] = torch.randn(state[f"{ours}.{part}"].shape, generator=g) * 0.3
                changed[f"{ours}.{part}"] = state[f"{ours}.{part}"] + tensors[f"diffusion_model.{theirs}.{end}"]
    tensors["diffusion_model.blocks.0.diff_m"] = torch.zeros(3)
    kinds.by_formula("wan_differences", "tiny-wan", "transformer", tensors, changed, unused=1)


def qwen_image(kinds):
    pipe = load("tiny-qwen-image")
    layers = shapes(pipe.transformer, ATTENTION + ("add_q_proj", "to_add_out", "img_mlp.net.2", "img_mod.1"))
    kinds.loaded("qwen_musubi", "tiny-qwen-image", halves(flat("lora_unet", layers), "kohya", alpha=2, seed=61))
    kinds.loaded("qwen_default", "tiny-qwen-image", halves(layers, "default", seed=62))
    kinds.loaded("qwen_comfy", "tiny-qwen-image", halves(dotted("diffusion_model.", layers), "kohya", alpha=2, seed=63))


def kronecker(names, seed, prefix, alpha=2):
    g, tensors = generator(seed), {}
    for number, (name, (out, inputs)) in enumerate(names.items()):
        w1 = torch.randn(4, 4, generator=g) * 0.4
        tensors[f"{prefix}{name}.lokr_w1"] = w1
        if number % 2:
            tensors[f"{prefix}{name}.lokr_w2"] = torch.randn(out // 4, inputs // 4, generator=g) * 0.4
        else:
            tensors |= {f"{prefix}{name}.lokr_w2_a": torch.randn(out // 4, 2, generator=g) * 0.4, f"{prefix}{name}.lokr_w2_b": torch.randn(2, inputs // 4, generator=g) * 0.4}
        tensors[f"{prefix}{name}.alpha"] = torch.tensor(float(alpha))
    return tensors


def zimage(kinds):
    pipe = load("tiny-zimage")
    layers = {name: shape for name, shape in shapes(pipe.transformer, ATTENTION + ("feed_forward.w1", "adaLN_modulation.0")).items() if "refiner" not in name}
    kinds.loaded("zimage_comfy", "tiny-zimage", halves(dotted("diffusion_model.", layers), "ab", alpha=2, seed=64))
    fused = {}
    for name, shape in layers.items():
        if name.endswith("to_q"):
            fused[name.replace("to_q", "qkv")] = (3 * shape[0], shape[1])
    dots = {name.replace("to_q", "to.q").replace("to_k", "to.k").replace("to_v", "to.v"): shape for name, shape in layers.items() if "to_out" not in name}
    kinds.loaded("zimage_dots", "tiny-zimage", halves(dotted("diffusion_model.", dots), "dots", seed=65) | halves(dotted("diffusion_model.", fused), "dots", seed=66), unused=2 * len(fused))
    kinds.loaded("zimage_fused", "tiny-zimage", halves(dotted("diffusion_model.", fused), "dots", seed=74))
    kinds.loaded("zimage_lokr", "tiny-zimage", kronecker({n: s for n, s in layers.items() if s[0] % 4 == 0 and s[1] % 4 == 0}, 67, "diffusion_model."))


def flux2(kinds):
    pipe = load("tiny-flux2")
    transformer = pipe.transformer
    size = lambda name: tuple(transformer.get_submodule(name).weight.shape)
    names = {}
    for i in range(len(transformer.transformer_blocks)):
        ours, theirs = f"transformer_blocks.{i}.", f"double_blocks.{i}."
        q = size(ours + "attn.to_q")
        names |= {f"{theirs}{stream}_attn.qkv": (3 * q[0], q[1]) for stream in ("img", "txt")}
        names |= {theirs + "img_attn.proj": size(ours + "attn.to_out.0"), theirs + "txt_attn.proj": size(ours + "attn.to_add_out"), theirs + "img_mlp.0": size(ours + "ff.linear_in"),
                  theirs + "txt_mlp.2": size(ours + "ff_context.linear_out")}
    for i in range(len(transformer.single_transformer_blocks)):
        names |= {f"single_blocks.{i}.linear1": size(f"single_transformer_blocks.{i}.attn.to_qkv_mlp_proj"), f"single_blocks.{i}.linear2": size(f"single_transformer_blocks.{i}.attn.to_out")}
    kinds.loaded("flux2_comfy", "tiny-flux2", halves(dotted("diffusion_model.", names), "ab", seed=68))
    kinds.loaded("flux2_kohya", "tiny-flux2", halves(flat("lora_unet", names), "kohya", alpha=2, seed=69))
    ours = {n: s for n, s in shapes(transformer, ("attn.to_q", "ff.linear_in", "attn.to_qkv_mlp_proj")).items() if s[0] % 4 == 0 and s[1] % 4 == 0}
    assert ours
    kinds.loaded("flux2_lycoris", "tiny-flux2", kronecker({n.replace(".", "_"): s for n, s in ours.items()}, 70, "lycoris_"))
    divided = {n: s for n, s in names.items() if s[0] % 4 == 0 and s[1] % 4 == 0 and "qkv" not in n}
    tensors = kronecker(divided, 72, "diffusion_model.")
    kinds.loaded("flux2_lokr", "tiny-flux2", tensors)
    # diffusers joins to_q, to_k and to_v for a Kronecker product over all three; the formula is the same.
    fused = {n: s for n, s in names.items() if "qkv" in n and s[0] % 4 == 0 and s[1] % 4 == 0}
    tensors, changed = kronecker(fused, 73, "diffusion_model."), {}
    state = transformer.state_dict()
    for name in fused:
        key = "diffusion_model." + name
        whole = f"{key}.lokr_w2" in tensors
        second = tensors[f"{key}.lokr_w2"] if whole else tensors[f"{key}.lokr_w2_a"] @ tensors[f"{key}.lokr_w2_b"]
        delta = torch.kron(tensors[f"{key}.lokr_w1"], second)
        block = name.split(".")[1]
        for product, rows in zip(("to_q", "to_k", "to_v") if "img" in name else ("add_q_proj", "add_k_proj", "add_v_proj"), delta.chunk(3)):
            tensor = f"transformer_blocks.{block}.attn.{product}.weight"
            changed[tensor] = state[tensor] + (1 if whole else 2 / 2) * rows
    kinds.by_formula("flux2_lokr_fused", "tiny-flux2", "transformer", tensors, changed)


def make():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    kinds = Kinds()
    for family in (stable_diffusion, sdxl, sd3, flux, chroma, wan, qwen_image, zimage, flux2):
        family(kinds)
    kinds.book.save()
    (OUT / "cases.json").write_text(json.dumps(kinds.cases, indent=1))
