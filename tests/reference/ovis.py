"""Ovis-Image: a small random checkpoint, single calls of its transformer, whole pictures by its pipeline, and by patches."""
import copy
import shutil

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, OvisImagePipeline, OvisImageTransformer2DModel
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.pipelines.ovis_image.pipeline_ovis_image import calculate_shift
from safetensors.torch import save_file
from transformers import Qwen3Model

from common import FIXTURES, PROMPT, Book, generator, randomise
from families import decode, flow_vae
from joint_patches import PICTURE, add_cases, attend, heads_of, joint_block
from lora import in_diffusers, pairs
from patches import PatchAttention, split
from qwen_text import make_encoder, make_tokenizer

NAME = "tiny-ovis"
# name, batch, latent height and width, timestep, text tokens
CALLS = [("ovis_square", 1, 8, 8, 981.0, 9), ("ovis_wide", 2, 6, 14, 333.25, 5), ("ovis_tall", 3, 14, 6, 40.5, 7)]
LAYERS = ["attn.to_q", "attn.to_out.0", "attn.add_k_proj", "ff.net.0.proj", "ff.net.2", "proj_mlp", "single_transformer_blocks.1.proj_out", "x_embedder", "context_embedder"]


def make_checkpoint():
    shutil.rmtree(FIXTURES / NAME, ignore_errors=True)
    tokenizer, _, _ = make_tokenizer()
    transformer = OvisImageTransformer2DModel(in_channels=16, out_channels=16, num_layers=2, num_single_layers=3, attention_head_dim=8, num_attention_heads=3,
                                              joint_attention_dim=24, axes_dims_rope=(2, 4, 2))
    randomise(transformer, 75, {"to_q": 1.5, "add_q": 1.5, "context_embedder.weight": 2.0, "norm.linear": 0.5, "norm1": 0.5, "proj_out.weight": 0.6})
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=16, max_image_seq_len=256)
    OvisImagePipeline(scheduler=scheduler, vae=flow_vae(4), text_encoder=make_encoder(tokenizer, Qwen3Model), tokenizer=tokenizer,
                      transformer=transformer).save_pretrained(FIXTURES / NAME)


def ids_of(tokens, rows, columns):
    places = torch.arange(tokens)[:, None] * torch.tensor([0, 1, 1])
    return places.float(), OvisImagePipeline._prepare_latent_image_ids(1, rows, columns, "cpu", torch.float32)


def call(model, batch, height, width, timestep, tokens, r):
    x, text = torch.randn(batch, 4, height, width, generator=r), torch.randn(batch, tokens, 24, generator=r)
    text_ids, ids = ids_of(tokens, height // 2, width // 2)
    out = model(OvisImagePipeline._pack_latents(x, batch, 4, height, width), text, torch.full((batch,), timestep) / 1000, ids, text_ids, return_dict=False)[0]
    return {"hidden": x, "states0": text, "lengths0": torch.full((batch,), tokens), "output": OvisImagePipeline._unpack_latents(out, height * 8, width * 8, 8)}


def calls():
    model = OvisImageTransformer2DModel.from_pretrained(FIXTURES / NAME / "transformer").eval()
    book = Book("ovis_transformer", f"Checkpoint {NAME}/transformer on latents `hidden` at `timestep`: states0 and lengths0 are what the text encoder gave; output [B,C,h,w].")
    for k, (name, batch, height, width, timestep, tokens) in enumerate(CALLS):
        book.case(name, {"checkpoint": NAME, "timestep": timestep, "guidance": 1.0}, call(model, batch, height, width, timestep, tokens, generator(700 + k)))
    book.save()


DEFAULTS = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=6, guidance=5.0, seed=0, n=1, max_sequence_length=120, image=False)
LONG = f"{PROMPT}, a green tree by the river, a white cat and a black dog, " * 6
CASES = {
    "plain": dict(image=True),
    "wide": dict(width=96, height=80, prompts=["a cat"], negative_prompt=PROMPT, guidance=3.0, seed=1, steps=4),
    "two": dict(prompts=["a red circle", PROMPT], n=2, width=48, seed=2, steps=3, image=True),
    "alone": dict(guidance=1.0, seed=3, image=True, steps=3),
    "one_step": dict(steps=1, seed=4),
    "no_negative": dict(negative_prompt=None, seed=5, steps=3),
    "default_length": dict(max_sequence_length=0, seed=6, steps=2),
    # No padding token is left, and the template's end is cut off.
    "cut": dict(prompts=[LONG], max_sequence_length=96, seed=7, steps=3),
    "lora": dict(lora="lora/ovis.safetensors", seed=8, steps=3),
    "given": dict(embeds=True, prompts=["a tree", PROMPT], negative_prompt=None, width=48, seed=9, steps=3, max_sequence_length=0),
}


def draw(pipe, case):
    """Final latents [n, C, h/8, w/8] as the pipeline has them before the VAE, and what was given instead of prompts."""
    call = dict(guidance_scale=case["guidance"], height=case["height"], width=case["width"], num_inference_steps=case["steps"], num_images_per_prompt=case["n"],
                generator=generator(case["seed"]), output_type="latent", max_sequence_length=case["max_sequence_length"] or 256)
    count, negative, given = len(case["prompts"]), case["negative_prompt"], {}
    if case.get("embeds"):
        made = pipe.encode_prompt(list(case["prompts"]), ["a cat"] * count, max_sequence_length=40)
        given = dict(zip(("prompt_embeds", "negative_prompt_embeds"), made[:2]))
        packed = pipe(negative_prompt=None, **given, **call).images
    else:
        packed = pipe(list(case["prompts"]), None if negative is None else [negative] * count, **call).images
    return pipe._unpack_latents(packed, case["height"], case["width"], 8), given


def pictures(pipe):
    (FIXTURES / "lora").mkdir(exist_ok=True)
    weights = in_diffusers("transformer", pairs(pipe.transformer, LAYERS, 3, 76))
    save_file(weights, FIXTURES / CASES["lora"]["lora"])
    book = Book("ovis", "Whole pictures by OvisImagePipeline: latents [n,C,h/8,w/8] are the final ones before the VAE, image (uint8 [n,h,w,3]) where `image` is true. "
                "`lora`: with this file. `embeds`: prompt embeds were given, of 40 tokens.")
    for name, changes in CASES.items():
        case = {**DEFAULTS, **changes}
        if "lora" in case:
            pipe.transformer.load_lora_adapter(dict(weights))
        latents, tensors = draw(pipe, case)
        if "lora" in case:
            pipe.transformer.unload_lora()
        assert torch.isfinite(latents).all()
        tensors = {"latents": latents, **tensors}
        if case["image"]:
            tensors["image"] = decode(pipe, latents)
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        book.case(f"ovis_{name}", case, tensors)
    book.save()


def single_block(block, kept, hidden, temb, rotary):
    normal, gate = block.norm(hidden, emb=temb)
    q, k, v = heads_of(block.attn, normal, *PICTURE)
    q, k = (apply_rotary_emb(x, rotary, sequence_dim=1) for x in (q, k))
    wide, by = block.proj_mlp(normal).chunk(2, dim=-1)
    out = torch.cat([attend(kept, block.attn.heads, q, k, v), block.act_mlp(by) * wide], dim=2)
    return hidden + gate[:, None] * block.proj_out(out)


class Picture:
    """The transformer over patches, both branches at once: `predict` gives the tokens of one micro-step."""

    def __init__(self, pipe, case):
        self.model, self.rows, self.columns = pipe.transformer, case["height"] // 16, case["width"] // 16
        count, length, n = len(case["prompts"]), case["max_sequence_length"], case["n"]
        states, negative, text_ids, _ = pipe.encode_prompt(list(case["prompts"]), [case["negative_prompt"]] * count, max_sequence_length=length, num_images_per_prompt=n)
        states = torch.cat([negative, states])
        self.count, self.tokens, self.scale = len(states) // 2, states.shape[1], case["guidance"]
        self.text = self.model.context_embedder(self.model.context_embedder_norm(states))
        self.rotary = self.model.pos_embed(torch.cat([text_ids, ids_of(0, self.rows, self.columns)[1]]))
        blocks = [*self.model.transformer_blocks, *self.model.single_transformer_blocks]
        self.kept = [PatchAttention(self.tokens + self.rows * self.columns, case["method"], case["kv"]) for _ in blocks]

    def predict(self, packed, step, t, rows):
        model, texts = self.model, self.tokens if rows[0] == 0 else 0
        own = torch.arange(rows[0] * self.columns, rows[1] * self.columns)
        everything = torch.cat([torch.arange(texts), self.tokens + own])
        text, picture = self.text[:, :texts], model.x_embedder(torch.cat([packed[:, own]] * 2))
        temb = model.timestep_embedder(model.time_proj((t[None] / 1000) * 1000)).expand(len(picture), -1)
        rotary = tuple(r[everything] for r in self.rotary)
        for kept in self.kept:
            kept.step, kept.now = step, everything
        kept = iter(self.kept)
        for block in model.transformer_blocks:
            text, picture = joint_block(block, next(kept), None, text, picture, temb, rotary)
        hidden = torch.cat([text, picture], dim=1)
        for block in model.single_transformer_blocks:
            hidden = single_block(block, next(kept), hidden, temb, rotary)
        negative, positive = model.proj_out(model.norm_out(hidden[:, texts:], temb)).chunk(2)
        return negative + self.scale * (positive - negative)


def denoise(pipe, case):
    picture, scheduler, config = Picture(pipe, case), copy.deepcopy(pipe.scheduler), pipe.scheduler.config
    height, width = case["height"] // 8, case["width"] // 8
    mu = calculate_shift(height // 2 * width // 2, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / case["steps"], case["steps"]), mu=mu)
    scheduler.set_begin_index(0)
    packed = pipe._pack_latents(torch.randn(picture.count, 4, height, width, generator=generator(case["seed"])), picture.count, 4, height, width)
    rows = split(picture.rows, case["patches"])
    steppers = [copy.deepcopy(scheduler) for _ in rows]
    for step, t in enumerate(scheduler.timesteps):
        for first, last in [(0, len(rows))] if step < case["warmup"] else [(m, m + 1) for m in range(len(rows))]:
            part = (rows[first][0], rows[last - 1][1])
            out = picture.predict(packed, step, t, part)
            for m in range(first, last):
                mine, offset = slice(rows[m][0] * picture.columns, rows[m][1] * picture.columns), part[0] * picture.columns
                packed[:, mine] = steppers[m].step(out[:, mine.start - offset:mine.stop - offset], t, packed[:, mine].clone(), return_dict=False)[0]
    return pipe._unpack_latents(packed, case["height"], case["width"], 8)


def make():
    make_checkpoint()
    calls()
    pipe = OvisImagePipeline.from_pretrained(FIXTURES / NAME)
    pipe.set_progress_bar_config(disable=True)
    pictures(pipe)
    book = Book("ovis_patches", "As `ovis`, by `method` with `patches` and `warmup` synchronous steps, K, V `kv`. The text's tokens are computed once a step with patch 0, "
                "from what patch 0 sees. `drift`: distance from the synchronous latents by range.")
    add_cases(book, "ovis", {**DEFAULTS, "steps": 6, "max_sequence_length": 60}, ["a cat", PROMPT], lambda case: denoise(pipe, case), lambda case: draw(pipe, case)[0])
    book.save()
