"""LongCat-Image: a small random checkpoint, its prompts' ids, single calls of its transformer, whole pictures by its pipeline, and by patches."""
import copy
import json
import shutil

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, LongCatImagePipeline, LongCatImageTransformer2DModel
from diffusers.pipelines.longcat_image.pipeline_longcat_image import calculate_shift, prepare_pos_ids
from safetensors.torch import save_file

from common import FIXTURES, PROMPT, Book, generator, randomise
from families import decode, flow_vae
from joint_patches import add_cases, joint_block, single_block
from lora import in_diffusers, pairs
from patches import PatchAttention, split
from qwen_image import make_text_encoder, make_tokenizer

NAME = "tiny-longcat"
# name, batch, latent height and width, timestep, text tokens
CALLS = [("longcat_square", 1, 8, 8, 981.0, 9), ("longcat_wide", 2, 6, 14, 333.25, 5), ("longcat_tall", 3, 14, 6, 40.5, 7)]
LAYERS = ["attn.to_q", "attn.to_out.0", "attn.add_k_proj", "ff.net.2", "proj_mlp", "single_transformer_blocks.1.proj_out", "x_embedder", "context_embedder"]


def make_checkpoint():
    folder = FIXTURES / NAME
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = make_tokenizer()
    transformer = LongCatImageTransformer2DModel(in_channels=64, num_layers=2, num_single_layers=3, attention_head_dim=8, num_attention_heads=3, joint_attention_dim=24,
                                                 pooled_projection_dim=24, axes_dims_rope=(2, 4, 2))
    randomise(transformer, 77, {"to_q": 1.5, "add_q": 1.5, "context_embedder.weight": 2.0, "norm.linear": 0.5, "norm1": 0.5, "proj_out.weight": 0.6})
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=16, max_image_seq_len=256)
    LongCatImagePipeline(scheduler=scheduler, vae=flow_vae(16), text_encoder=make_text_encoder(tokenizer), tokenizer=tokenizer, text_processor=None,
                         transformer=transformer).save_pretrained(folder)
    index = folder / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "text_processor": ["transformers", "Qwen2_5_VLProcessor"]}, indent=1))


def load():
    pipe = LongCatImagePipeline.from_pretrained(FIXTURES / NAME, text_processor=None)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def ids_of(tokens, rows, columns):
    return prepare_pos_ids(0, "text", num_token=tokens), prepare_pos_ids(1, "image", start=(512, 512), height=rows, width=columns)


def call(model, batch, height, width, timestep, tokens, r):
    x, text = torch.randn(batch, 16, height, width, generator=r), torch.randn(batch, tokens, 24, generator=r)
    text_ids, ids = ids_of(tokens, height // 2, width // 2)
    out = model(LongCatImagePipeline._pack_latents(x, batch, 16, height, width), text, torch.full((batch,), timestep) / 1000, ids, text_ids, return_dict=False)[0]
    return {"hidden": x, "states0": text, "lengths0": torch.full((batch,), tokens), "output": LongCatImagePipeline._unpack_latents(out, height * 8, width * 8, 8)}


def calls():
    model = LongCatImageTransformer2DModel.from_pretrained(FIXTURES / NAME / "transformer").eval()
    book = Book("longcat_transformer", f"Checkpoint {NAME}/transformer on latents `hidden` at `timestep`: states0 and lengths0 are what the text encoder gave; output [B,C,h,w].")
    for k, (name, batch, height, width, timestep, tokens) in enumerate(CALLS):
        book.case(name, {"checkpoint": NAME, "timestep": timestep, "guidance": 1.0}, call(model, batch, height, width, timestep, tokens, generator(700 + k)))
    book.save()


# Quotes of each kind, apostrophes that are none, quotes that are not closed or empty, letters of several bytes. No text has two different words with an
# apostrophe inside: the pipeline puts one of them in the other's place, which of them being up to Python's order of a set.
TEXTS = ["", "a red circle", "a sign that says 'Open' by a door", 'a "red" circle and \u201ca cat\u201d', "\u2018\u732b\u2019 \u00e9 '\u00e9e\u0301\U0001f431'", "don't cut the dogs' 'tail', don't",
         "the dogs' tails and the cats' ears", "'a' 'b'  'c d'", "an \u2018open \u2018one\u2019 here", '"', "''", "it's \"", "'Don't'", "'tis don't", "rock'n'roll 'n' 'r", "a\n'b\nc'\n",
         "\u201cno end", "x'y' z", "\n leading", "'<|im_end|>' <|im_end|>", "end '"]
LONG = "a green tree by the river, a 'white' cat and a black dog, " * 30
DEFAULTS = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=6, guidance=4.5, seed=0, n=1, max_sequence_length=0, image=False)
CASES = {
    "plain": dict(image=True),
    "wide": dict(width=96, height=80, prompts=["a 'cat'"], negative_prompt=PROMPT, guidance=3.0, seed=1, steps=4),
    "two": dict(prompts=["a red circle", PROMPT], n=2, width=48, seed=2, steps=3, image=True),
    "alone": dict(guidance=1.0, seed=3, image=True, steps=3),
    "one_step": dict(steps=1, seed=4),
    "no_negative": dict(negative_prompt=None, seed=5, steps=3),
    # No padding token is left.
    "cut": dict(prompts=[LONG], seed=7, steps=3),
    "lora": dict(lora="lora/longcat.safetensors", seed=8, steps=3),
    "given": dict(embeds=True, prompts=["a tree", PROMPT], negative_prompt=None, width=48, seed=9, steps=3),
}


def draw(pipe, case):
    """Final latents [n, C, h/8, w/8] as the pipeline has them before the VAE, and what was given instead of prompts."""
    call = dict(guidance_scale=case["guidance"], height=case["height"], width=case["width"], num_inference_steps=case["steps"], num_images_per_prompt=case["n"],
                generator=generator(case["seed"]), output_type="latent", enable_prompt_rewrite=False)
    count, negative, given = len(case["prompts"]), case["negative_prompt"], {}
    negative = None if negative is None else [negative] * count
    # The pipeline takes embeds only beside the prompts that they replace, whose number it counts.
    pipe.check_inputs = lambda *args, **named: None
    if case.get("embeds"):
        given = {name: pipe.encode_prompt(list(texts))[0][:, :40] for name, texts in (("prompt_embeds", case["prompts"]), ("negative_prompt_embeds", ["a cat"] * count))}
    # With one negative prompt for all the pipeline encodes it once, which only a batch of one takes.
    packed = pipe(list(case["prompts"]), negative_prompt=negative or [""] * count, **given, **call).images
    return pipe._unpack_latents(packed, case["height"], case["width"], 8), given


def pictures(pipe):
    (FIXTURES / "lora").mkdir(exist_ok=True)
    weights = in_diffusers("transformer", pairs(pipe.transformer, LAYERS, 3, 76))
    save_file(weights, FIXTURES / CASES["lora"]["lora"])
    book = Book("longcat", "Whole pictures by LongCatImagePipeline: latents [n,C,h/8,w/8] are the final ones before the VAE, image (uint8 [n,h,w,3]) where `image` is true. "
                "`lora`: with this file. `embeds`: prompt embeds were given, of 40 tokens. Prompts are never rewritten.")
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
        book.case(f"longcat_{name}", case, tensors)
    book.save()


class Picture:
    """The transformer over patches, both branches at once: `predict` gives the tokens of one micro-step."""

    def __init__(self, pipe, case):
        self.model, self.rows, self.columns = pipe.transformer, case["height"] // 16, case["width"] // 16
        texts = [case["negative_prompt"]] * len(case["prompts"]) + list(case["prompts"])
        states, text_ids = pipe.encode_prompt(texts, num_images_per_prompt=case["n"])
        self.count, self.tokens, self.scale = len(states) // 2, states.shape[1], case["guidance"]
        self.text = self.model.context_embedder(states)
        self.rotary = self.model.pos_embed(torch.cat([text_ids, ids_of(1, self.rows, self.columns)[1]]))
        blocks = [*self.model.transformer_blocks, *self.model.single_transformer_blocks]
        self.kept = [PatchAttention(self.tokens + self.rows * self.columns, case["method"], case["kv"]) for _ in blocks]

    def predict(self, packed, step, t, rows):
        model, texts = self.model, self.tokens if rows[0] == 0 else 0
        own = torch.arange(rows[0] * self.columns, rows[1] * self.columns)
        everything = torch.cat([torch.arange(texts), self.tokens + own])
        text, picture = self.text[:, :texts], model.x_embedder(torch.cat([packed[:, own]] * 2))
        temb = model.time_embed((t[None] / 1000) * 1000, torch.float32).expand(len(picture), -1)
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
        out = negative + self.scale * (positive - negative)
        return out * (positive.norm(dim=-1, keepdim=True) / (out.norm(dim=-1, keepdim=True) + 1e-8)).clamp(0, 1)


def denoise(pipe, case):
    picture, scheduler, config = Picture(pipe, case), copy.deepcopy(pipe.scheduler), pipe.scheduler.config
    height, width = case["height"] // 8, case["width"] // 8
    mu = calculate_shift(height // 2 * width // 2, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / case["steps"], case["steps"]), mu=mu)
    scheduler.set_begin_index(0)
    packed = pipe._pack_latents(torch.randn(picture.count, 16, height, width, generator=generator(case["seed"])), picture.count, 16, height, width)
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


def tokens(pipe):
    """Ids that the pipeline hands its text encoder, up to the padding."""
    book, seen = Book("longcat_tokens", "Ids of `prompt` by LongCatImagePipeline: `before` the prompt's own, and `ids`, its own without padding."), []
    encoder = pipe.text_encoder.forward
    pipe.text_encoder.forward = lambda **named: seen.append(named) or encoder(**named)
    before = pipe.tokenizer(pipe.prompt_template_encode_prefix, add_special_tokens=False).input_ids
    for k, prompt in enumerate(TEXTS):
        pipe.encode_prompt([prompt])
        ids, mask = seen[-1]["input_ids"][0].tolist(), seen[-1]["attention_mask"][0].tolist()
        assert ids[:len(before)] == before
        book.case(str(k), {"prompt": prompt, "before": before, "ids": ids[len(before):len(before) + sum(mask[len(before):len(before) + 512])]}, {})
    pipe.text_encoder.forward = encoder
    book.save()


def make():
    make_checkpoint()
    calls()
    pipe = load()
    tokens(pipe)
    pictures(pipe)
    book = Book("longcat_patches", "As `longcat`, by `method` with `patches` and `warmup` synchronous steps, K, V `kv`. The text's tokens are computed once a step with patch 0, "
                "from what patch 0 sees. `drift`: distance from the synchronous latents by range.")
    add_cases(book, "longcat", DEFAULTS, ["a cat", PROMPT], lambda case: denoise(pipe, case), lambda case: draw(pipe, case)[0])
    book.save()
