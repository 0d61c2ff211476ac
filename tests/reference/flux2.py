"""FLUX.2-klein: a small random checkpoint, single calls of its transformer, whole pictures by its pipeline, and by patches."""
import copy
import io
import json
import shutil

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Transformer2DModel
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.modeling_outputs import AutoencoderKLOutput
from diffusers.models.transformers.transformer_flux2 import Flux2Modulation
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from PIL import Image
from safetensors.torch import save_file

from common import FIXTURES, PROMPT, Book, generator, randomise
from families import scheduled
from joint_patches import PICTURE, TEXT, add_cases, attend, heads_of
from lora import in_diffusers, pairs
from patches import PatchAttention, split
from qwen_text import make_encoder, make_tokenizer

NAME, DISTILLED = "tiny-flux2", "tiny-flux2-distilled"
LONG = f"{PROMPT}, a green tree by the river, a white cat and a black dog, " * 4
# name, batch, latent height and width, timestep, text tokens
CALLS = [("flux2_square", 1, 4, 4, 981.0, 9), ("flux2_wide", 2, 3, 7, 333.25, 6), ("flux2_tall", 3, 7, 3, 40.5, 11)]
DEFAULTS = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=6, guidance=3.5, seed=0, n=1, max_sequence_length=64, image=False)
CASES = {
    "plain": dict(image=True),
    "wide": dict(width=96, height=80, prompts=["a cat"], guidance=2.0, seed=1, steps=4),
    "two": dict(prompts=["a red circle", LONG], n=2, width=48, seed=2, steps=3, max_sequence_length=100, image=True),
    "alone": dict(guidance=1.0, seed=3, image=True, steps=3),
    "negative": dict(negative_prompt="a dog by the river", seed=11, steps=3),
    "one_step": dict(steps=1, seed=4),
    "cut": dict(prompts=[LONG], max_sequence_length=33, seed=5, steps=3),
    "long": dict(prompts=[LONG * 2], max_sequence_length=512, seed=6, steps=3),
    "static": dict(scheduler="FlowMatchEulerDiscreteScheduler", seed=7, steps=4, config=dict(shift=3.0)),
    "distilled": dict(checkpoint=DISTILLED, seed=8, steps=4, image=True),
    "given": dict(embeds=True, prompts=["a tree", "a cat"], guidance=2.0, width=48, seed=9, steps=3, max_sequence_length=40),
    "tiled": dict(tiled=True, width=96, height=80, seed=12, steps=2, image=True),
    "lora": dict(lora="lora/flux2.safetensors", seed=10, steps=3),
    "edit": dict(references=[(80, 70)], prompts=["a blue cat"], seed=13, steps=4, image=True),
    "edit_two": dict(references=[(64, 101), (96, 64)], prompts=["a red circle", "a cat"], n=2, width=48, seed=14, steps=3),
    "edit_sized": dict(references=[(100, 67), (64, 64)], height=0, width=0, guidance=1.0, seed=15, steps=3, image=True),
    "edit_distilled": dict(checkpoint=DISTILLED, references=[(64, 64)], width=80, seed=16, steps=4, image=True),
    "edit_large": dict(references=[(1000, 1200)], guidance=1.0, seed=17, steps=1),
    "edit_tiled": dict(tiled=True, references=[(96, 112)], seed=18, steps=2),
}
LAYERS = ["attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.add_q_proj", "attn.to_add_out", "ff.linear_in", "ff.linear_out", "ff_context.linear_in",
          "attn.to_qkv_mlp_proj", "attn.to_out", "x_embedder", "context_embedder", "double_stream_modulation_img.linear"]


def make_vae():
    vae = AutoencoderKLFlux2(block_out_channels=(8, 8, 16, 16), layers_per_block=1, latent_channels=4, norm_num_groups=4, sample_size=64)
    randomise(vae, 71, {"decoder.conv_out": 1.0})
    r = generator(72)
    vae.bn.running_mean.copy_(0.3 * torch.randn(16, generator=r))
    vae.bn.running_var.copy_(0.5 + torch.rand(16, generator=r))
    return vae


def make_transformer():
    model = Flux2Transformer2DModel(in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=8, num_attention_heads=3, joint_attention_dim=72,
                                    axes_dims_rope=(2, 2, 2, 2), guidance_embeds=False)
    return randomise(model, 73, {"to_q": 1.5, "add_q": 1.5, "proj_out.weight": 0.6})


def make_checkpoint():
    for name in (NAME, DISTILLED):
        shutil.rmtree(FIXTURES / name, ignore_errors=True)
    tokenizer, _, _ = make_tokenizer()
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True)
    Flux2KleinPipeline(scheduler=scheduler, vae=make_vae(), text_encoder=make_encoder(tokenizer, layers=29), tokenizer=tokenizer,
                       transformer=make_transformer()).save_pretrained(FIXTURES / NAME)
    shutil.copytree(FIXTURES / NAME, FIXTURES / DISTILLED)
    index = FIXTURES / DISTILLED / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "is_distilled": True}, indent=1))


def load(name):
    pipe = Flux2KleinPipeline.from_pretrained(FIXTURES / name)
    pipe.set_progress_bar_config(disable=True)
    encode_exactly(pipe)
    return pipe


def call(model, batch, height, width, timestep, tokens, r):
    x, text = torch.randn(batch, 16, height, width, generator=r), torch.randn(batch, tokens, 72, generator=r)
    ids, text_ids = Flux2KleinPipeline._prepare_latent_ids(x), Flux2KleinPipeline._prepare_text_ids(text)
    out = model(Flux2KleinPipeline._pack_latents(x), text, torch.full((batch,), timestep) / 1000, ids, text_ids, return_dict=False)[0]
    return {"hidden": x, "states0": text, "lengths0": torch.full((batch,), tokens), "output": out.mT.unflatten(2, (height, width))}


def calls():
    model = Flux2Transformer2DModel.from_pretrained(FIXTURES / NAME / "transformer").eval()
    book = Book("flux2_transformer", f"Checkpoint {NAME}/transformer on latents `hidden` at `timestep`: states0 and lengths0 are what the text encoder gave; output [B,C,h,w].")
    for k, (name, batch, height, width, timestep, tokens) in enumerate(CALLS):
        book.case(name, {"checkpoint": NAME, "timestep": timestep, "guidance": 1.0, "patch": 1}, call(model, batch, height, width, timestep, tokens, generator(700 + k)))
    book.save()


def references(case):
    """The pictures that a case edits, each a file's bytes: blots and noise, in no size of whole tokens."""
    files = []
    for k, (height, width) in enumerate(case.get("references", [])):
        r = generator(100 * case["seed"] + k)
        blots = F.interpolate(torch.rand(1, 3, 5, 7, generator=r), (height, width), mode="bicubic") + 0.05 * torch.randn(1, 3, height, width, generator=r)
        file = io.BytesIO()
        Image.fromarray((255 * blots.clamp(0, 1)).byte()[0].permute(1, 2, 0).numpy()).save(file, "PNG")
        files.append(file.getvalue())
    return files


def encode_exactly(pipe):
    """Lets the pipeline encode pictures in float64: of a megapixel its own rounding in float32 is up to 7e-5 of the final latents' range."""
    exact = copy.deepcopy(pipe.vae).double()

    def encode(pixels):
        exact.use_tiling = pipe.vae.use_tiling
        return AutoencoderKLOutput(DiagonalGaussianDistribution(exact.encode(pixels.double()).latent_dist.parameters.float()))

    pipe.vae.encode = encode


def draw(pipe, case):
    """Final latents [n, C, h/16, w/16] as the pipeline has them before the VAE, what was given instead of prompts, and the picture."""
    last, given, length = {}, {}, case["max_sequence_length"]
    states = lambda texts: pipe.encode_prompt(texts, max_sequence_length=length)[0]
    count = len(case["prompts"])
    words = {"prompt": list(case["prompts"])}
    if case["negative_prompt"] or case.get("embeds"):
        words["negative_prompt_embeds"] = states([case["negative_prompt"]] * count)
    if case.get("embeds"):
        words = {**words, "prompt": None, "prompt_embeds": states(list(case["prompts"]))}
        given = {name: tensor for name, tensor in words.items() if name != "prompt"}
    if "references" in case:
        words["image"] = [Image.open(io.BytesIO(file)) for file in references(case)]
    images = pipe(**words, guidance_scale=case["guidance"], height=case["height"] or None, width=case["width"] or None, num_inference_steps=case["steps"],
                  num_images_per_prompt=case["n"], generator=generator(case["seed"]), max_sequence_length=length,
                  callback_on_step_end=lambda pipe, i, t, kept: last.update(kept) or {}).images
    latents = last["latents"].mT.unflatten(2, (images[0].height // 16, images[0].width // 16))
    return latents, given, torch.from_numpy(np.stack([np.asarray(image) for image in images]))


def pictures(pipes):
    book = Book("flux2", "Whole pictures by Flux2KleinPipeline, with the folder's scheduler or `scheduler`(**config): latents [n,C,h/16,w/16] are the final ones before the VAE, "
                "image (uint8 [n,h,w,3]) where `image` is true. `lora`: with this file. `tiled`: decoded in tiles. `embeds`: prompt embeds were given. `references`: pictures to edit, "
                "the files reference0, ….", beta={})
    (FIXTURES / "lora").mkdir(exist_ok=True)
    save_file(in_diffusers("transformer", pairs(pipes[NAME].transformer, LAYERS, 3, 74)), FIXTURES / CASES["lora"]["lora"])
    own = pipes[NAME].scheduler
    for name, changes in CASES.items():
        case = {**DEFAULTS, **changes}
        pipe = pipes[case["checkpoint"]]
        pipe.scheduler = scheduled(case, own)
        if "lora" in case:
            pipe.load_lora_weights(FIXTURES / case["lora"])
        pipe.vae.use_tiling = case.get("tiled", False)
        latents, given, image = draw(pipe, case)
        if "lora" in case:
            pipe.unload_lora_weights()
        pipe.scheduler, pipe.vae.use_tiling = own, False
        assert torch.isfinite(latents).all()
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        files = {f"reference{k}": torch.frombuffer(bytearray(file), dtype=torch.uint8) for k, file in enumerate(references(case))}
        book.case(f"flux2_{name}", case, {"latents": latents, **given, **files, **({"image": image} if case["image"] else {})})
    book.save()


def double_block(block, kept, text, picture, modulations, rotary):
    """One block of two streams over patches; `text` may have no tokens."""
    count = text.shape[1]
    ((shift, scale, gate), forward), ((text_shift, text_scale, text_gate), text_forward) = (Flux2Modulation.split(m, 2) for m in modulations)
    qkv = heads_of(block.attn, block.norm1(picture) * (1 + scale) + shift, *PICTURE)
    if count:
        qkv = [torch.cat(pair, dim=1) for pair in zip(heads_of(block.attn, block.norm1_context(text) * (1 + text_scale) + text_shift, *TEXT), qkv)]
    qkv[:2] = (apply_rotary_emb(x, rotary, sequence_dim=1) for x in qkv[:2])
    out = attend(kept, block.attn.heads, *qkv)
    picture = picture + gate * block.attn.to_out[0](out[:, count:])
    shift, scale, gate = forward
    picture = picture + gate * block.ff(block.norm2(picture) * (1 + scale) + shift)
    if count:
        text = text + text_gate * block.attn.to_add_out(out[:, :count])
        shift, scale, gate = text_forward
        text = text + gate * block.ff_context(block.norm2_context(text) * (1 + scale) + shift)
    return text, picture


def single_block(block, kept, hidden, modulation, rotary):
    (shift, scale, gate), attn = Flux2Modulation.split(modulation, 1)[0], block.attn
    qkv, wide = attn.to_qkv_mlp_proj(block.norm(hidden) * (1 + scale) + shift).split([3 * attn.inner_dim, 2 * attn.mlp_hidden_dim], dim=2)
    q, k, v = (x.unflatten(2, (attn.heads, -1)) for x in qkv.chunk(3, dim=2))
    q, k = (apply_rotary_emb(x, rotary, sequence_dim=1) for x in (attn.norm_q(q), attn.norm_k(k)))
    return hidden + gate * attn.to_out(torch.cat([attend(kept, attn.heads, q, k, v), attn.mlp_act_fn(wide)], dim=2))


class Picture:
    """The transformer over patches, both branches at once: `predict` gives the tokens of one micro-step."""

    def __init__(self, pipe, case):
        self.model, self.rows, self.columns = pipe.transformer, case["height"] // 16, case["width"] // 16
        encode = lambda texts: pipe.encode_prompt(texts, num_images_per_prompt=case["n"], max_sequence_length=case["max_sequence_length"])
        states, text_ids = encode([case["negative_prompt"]] * len(case["prompts"]) + list(case["prompts"]))
        self.count, self.tokens, self.text = len(states) // 2, states.shape[1], self.model.context_embedder(states)
        ids = pipe._prepare_latent_ids(torch.zeros(1, 1, self.rows, self.columns))
        self.edited, edited_ids = torch.zeros(1, 0, 16), ids[:, :0]
        if "references" in case:
            process = lambda image: pipe.image_processor.preprocess(image, height=image.height // 16 * 16, width=image.width // 16 * 16, resize_mode="crop")
            pictures = [process(Image.open(io.BytesIO(file))) for file in references(case)]
            self.edited, edited_ids = pipe.prepare_image_latents(pictures, 1, None, "cpu", torch.float32)
        self.before = self.tokens + self.edited.shape[1]
        self.rotary = self.model.pos_embed(torch.cat([text_ids[0], edited_ids[0], ids[0]]))
        blocks = [*self.model.transformer_blocks, *self.model.single_transformer_blocks]
        self.kept = [PatchAttention(self.before + self.rows * self.columns, case["method"], case["kv"]) for _ in blocks]
        self.scale = case["guidance"]

    def predict(self, packed, step, t, rows):
        # Pictures to edit are computed with the text, once a step with patch 0.
        model, texts, edited = self.model, *((self.tokens, self.edited.shape[1]) if rows[0] == 0 else (0, 0))
        own = torch.arange(rows[0] * self.columns, rows[1] * self.columns)
        everything = torch.cat([torch.arange(texts + edited), self.before + own])
        with_edited = torch.cat([self.edited[:, :edited].expand(len(packed), -1, -1), packed[:, own]], dim=1)
        text, picture = self.text[:, :texts], model.x_embedder(torch.cat([with_edited] * 2))
        temb, rotary = model.time_guidance_embed((t[None] / 1000) * 1000, None), tuple(r[everything] for r in self.rotary)
        doubles, single = [of(temb) for of in (model.double_stream_modulation_img, model.double_stream_modulation_txt)], model.single_stream_modulation(temb)
        for kept in self.kept:
            kept.step, kept.now = step, everything
        kept = iter(self.kept)
        for block in model.transformer_blocks:
            text, picture = double_block(block, next(kept), text, picture, doubles, rotary)
        hidden = torch.cat([text, picture], dim=1)
        for block in model.single_transformer_blocks:
            hidden = single_block(block, next(kept), hidden, single, rotary)
        negative, positive = model.proj_out(model.norm_out(hidden[:, texts + edited:], temb)).chunk(2)
        return negative + self.scale * (positive - negative)


def denoise(pipe, case):
    picture, scheduler = Picture(pipe, case), copy.deepcopy(pipe.scheduler)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / case["steps"], case["steps"]), mu=compute_empirical_mu(picture.rows * picture.columns, case["steps"]))
    scheduler.set_begin_index(0)
    packed = pipe._pack_latents(torch.randn(picture.count, 16, picture.rows, picture.columns, generator=generator(case["seed"])))
    rows = split(picture.rows, case["patches"])
    steppers = [copy.deepcopy(scheduler) for _ in rows]
    for step, t in enumerate(scheduler.timesteps):
        for first, last in [(0, len(rows))] if step < case["warmup"] else [(m, m + 1) for m in range(len(rows))]:
            part = (rows[first][0], rows[last - 1][1])
            out, offset = picture.predict(packed, step, t, part), part[0] * picture.columns
            for m in range(first, last):
                mine = slice(rows[m][0] * picture.columns, rows[m][1] * picture.columns)
                packed[:, mine] = steppers[m].step(out[:, mine.start - offset:mine.stop - offset], t, packed[:, mine].clone(), return_dict=False)[0]
    return packed.mT.unflatten(2, (picture.rows, picture.columns))


def patches(pipe):
    book = Book("flux2_patches", "As `flux2`, by `method` with `patches` and `warmup` synchronous steps, K, V `kv`: see `joint_patches`.")
    add_cases(book, "flux2", DEFAULTS, ["a cat", "a tree"], lambda case: denoise(pipe, case), lambda case: draw(pipe, case)[0])
    for method in ("pipefusion", "distrifusion"):
        for kv in ("stale", "predict"):
            case = {**DEFAULTS, "references": [(80, 70), (64, 64)], "seed": 19, "steps": 4, "method": method, "kv": kv, "patches": 4, "warmup": 1}
            files = {f"reference{k}": torch.frombuffer(bytearray(file), dtype=torch.uint8) for k, file in enumerate(references(case))}
            book.case(f"flux2_edit_{method}_{kv}", case, {"latents": denoise(pipe, case), **files})
    whole = {**DEFAULTS, "references": [(80, 70)], "seed": 19, "steps": 3, "method": "pipefusion", "kv": "stale", "patches": 1, "warmup": 0}
    assert torch.allclose(denoise(pipe, whole), draw(pipe, whole)[0], atol=1e-5)
    book.save()


def make():
    make_checkpoint()
    calls()
    pipes = {name: load(name) for name in (NAME, DISTILLED)}
    pictures(pipes)
    patches(pipes[NAME])
