"""Chroma: a small random checkpoint, single calls of its transformer, whole pictures by its pipeline, and by patches."""
import copy
import shutil

import numpy as np
import torch
from diffusers import ChromaImg2ImgPipeline, ChromaPipeline, ChromaTransformer2DModel, FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.chroma.pipeline_chroma import calculate_shift
from PIL import Image
from safetensors.torch import save_file

from common import FIXTURES, PROMPT, ROOT, Book, generator, randomise
from families import decode, flow_vae, t5
from joint_patches import add_cases, joint_block, single_block
from lora import in_diffusers, pairs
from patches import PatchAttention, split

NAME = "tiny-chroma"
TEXT = 9
# name, batch, latent height and width, timestep, text tokens of each item
CALLS = [("chroma_square", 1, 8, 8, 981.0, [9]), ("chroma_wide", 2, 6, 14, 333.25, [9, 4]), ("chroma_tall", 3, 14, 6, 40.5, [2, 7, 7])]


class Masked:
    """The pipelines with their masks as masks: in 0.42 they are numbers, which are added to the attention's logits, so that padding is attended to after all."""

    def _prepare_attention_mask(self, *args, **named):
        mask = super()._prepare_attention_mask(*args, **named)
        return None if mask is None else mask.bool()


class Pipeline(Masked, ChromaPipeline):
    pass


class FromPicture(Masked, ChromaImg2ImgPipeline):
    pass


def make_checkpoint():
    folder = FIXTURES / NAME
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer, encoder = t5(folder / "tokenizer")
    transformer = ChromaTransformer2DModel(in_channels=16, num_layers=2, num_single_layers=3, attention_head_dim=8, num_attention_heads=3, joint_attention_dim=24,
                                           axes_dims_rope=(2, 4, 2), approximator_num_channels=16, approximator_hidden_dim=20, approximator_layers=2)
    randomise(transformer, 71, {"to_q": 1.5, "add_q": 1.5, "context_embedder": 2.0, "distilled_guidance_layer.out_proj.weight": 0.3, "proj_out.weight": 0.6})
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=16, max_image_seq_len=256)
    ChromaPipeline(scheduler=scheduler, vae=flow_vae(4), text_encoder=encoder, tokenizer=tokenizer, transformer=transformer).save_pretrained(folder)


def call(model, batch, height, width, timestep, lengths, r):
    x, text = torch.randn(batch, 4, height, width, generator=r), torch.randn(batch, TEXT, 24, generator=r)
    seen = torch.arange(TEXT)[None] < torch.tensor(lengths)[:, None]
    ids = ChromaPipeline._prepare_latent_image_ids(batch, height // 2, width // 2, "cpu", torch.float32)
    out = model(ChromaPipeline._pack_latents(x, batch, 4, height, width), text, torch.full((batch,), timestep) / 1000, ids, torch.zeros(TEXT, 3),
                torch.cat([seen, torch.ones(batch, len(ids), dtype=torch.bool)], dim=1), return_dict=False)[0]
    return {"hidden": x, "states0": text, "lengths0": torch.tensor(lengths), "output": ChromaPipeline._unpack_latents(out, height * 8, width * 8, 8)}


def calls():
    model = ChromaTransformer2DModel.from_pretrained(FIXTURES / NAME / "transformer").eval()
    book = Book("chroma_transformer", f"Checkpoint {NAME}/transformer on latents `hidden` at `timestep`: states0 and lengths0 are what the text encoder gave; output [B,C,h,w].")
    for k, (name, batch, height, width, timestep, lengths) in enumerate(CALLS):
        book.case(name, {"checkpoint": NAME, "timestep": timestep, "guidance": 1.0}, call(model, batch, height, width, timestep, lengths, generator(700 + k)))
    book.save()


DEFAULTS = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=6, guidance=4.5, seed=0, n=1, max_sequence_length=40, image=False)
LONG = f"{PROMPT}, a green tree by the river, a white cat and a black dog, " * 4
CASES = [("chroma_plain", dict(image=True)), ("chroma_wide", dict(width=96, height=80, prompts=["a cat"], negative_prompt=PROMPT, guidance=3.0, seed=1, steps=4)),
         ("chroma_two", dict(prompts=["a red circle", PROMPT], n=2, width=48, seed=2, steps=3, image=True)), ("chroma_alone", dict(guidance=1.0, seed=3, image=True, steps=3)),
         ("chroma_one_step", dict(steps=1, seed=4)), ("chroma_no_negative", dict(negative_prompt=None, seed=5, steps=3)),
         # No padding token is left.
         ("chroma_cut", dict(max_sequence_length=7, seed=6, steps=3, negative_prompt="a house")), ("chroma_long", dict(prompts=[LONG], max_sequence_length=512, seed=7, steps=3)),
         ("chroma_picture", dict(init_image="init/picture.png", strength=0.7, width=96, seed=10, prompts=["a red circle", "a tree"], steps=5)),
         ("chroma_lora", dict(lora="lora/chroma.safetensors", seed=8, steps=3)),
         ("chroma_given", dict(embeds=True, prompts=["a tree", PROMPT], negative_prompt=None, width=48, seed=9, steps=3, max_sequence_length=0))]
LAYERS = ["attn.to_q", "attn.to_out.0", "attn.add_k_proj", "ff.net.2", "proj_mlp", "single_transformer_blocks.1.proj_out", "x_embedder", "layers.0.linear_1"]


def draw(pipe, case):
    """Final latents [n, C, h/8, w/8] as the pipeline has them before the VAE, and what was given instead of prompts."""
    call = dict(guidance_scale=case["guidance"], height=case["height"], width=case["width"], num_inference_steps=case["steps"], num_images_per_prompt=case["n"],
                generator=generator(case["seed"]), output_type="latent")
    given, negative, length = {}, case["negative_prompt"], case["max_sequence_length"] or 512
    if case.get("embeds"):
        made = pipe.encode_prompt(list(case["prompts"]), ["a cat"] * len(case["prompts"]), max_sequence_length=20)
        given = dict(zip(("prompt_embeds", "prompt_attention_mask", "negative_prompt_embeds", "negative_prompt_attention_mask"), (made[0], made[2], made[3], made[5])))
        packed = pipe(**given, **call).images
    else:
        if "init_image" in case:
            pipe = FromPicture(**pipe.components)
            pipe.set_progress_bar_config(disable=True)
            call |= dict(image=Image.open(ROOT / "tests" / "fixtures" / case["init_image"]).convert("RGB"), strength=case["strength"])
        packed = pipe(list(case["prompts"]), None if negative is None else [negative] * len(case["prompts"]), max_sequence_length=length, **call).images
    return pipe._unpack_latents(packed, case["height"], case["width"], 8), given


def pictures(pipe):
    (FIXTURES / "lora").mkdir(exist_ok=True)
    save_file(in_diffusers("transformer", pairs(pipe.transformer, LAYERS, 3, 73)), FIXTURES / "lora" / "chroma.safetensors")
    book = Book("chroma", "Whole pictures by ChromaPipeline, whose masks are masks: latents [n,C,h/8,w/8] are the final ones before the VAE, image (uint8 [n,h,w,3]) where `image` "
                "is true. `init_image`: from this picture, which is stored. `lora`: with this file. `embeds`: prompt embeds were given, of 20 tokens, with their masks.")
    for name, changes in CASES:
        case = {**DEFAULTS, **changes}
        if "lora" in case:
            pipe.load_lora_weights(FIXTURES / case["lora"])
        latents, tensors = draw(pipe, case)
        if "lora" in case:
            pipe.unload_lora_weights()
        assert torch.isfinite(latents).all()
        tensors = {"latents": latents, **tensors}
        if case["image"]:
            tensors["image"] = decode(pipe, latents)
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        book.case(name, case, tensors)
    book.save()


class Branch:
    """The transformer over patches for one prompt alone, so without padding that is masked out: `predict` gives the tokens of one micro-step."""

    def __init__(self, pipe, case, prompt):
        self.model, self.rows, self.columns = pipe.transformer, case["height"] // 16, case["width"] // 16
        states, mask = pipe._get_t5_prompt_embeds(prompt, max_sequence_length=case["max_sequence_length"])
        self.tokens = int(mask.sum())
        self.text = self.model.context_embedder(states[:, :self.tokens])
        ids = pipe._prepare_latent_image_ids(1, self.rows, self.columns, "cpu", torch.float32)
        self.rotary = self.model.pos_embed(torch.cat([torch.zeros(self.tokens, 3), ids]))
        self.blocks = [*self.model.transformer_blocks, *self.model.single_transformer_blocks]
        self.kept = [PatchAttention(self.tokens + self.rows * self.columns, case["method"], case["kv"]) for _ in self.blocks]

    def predict(self, packed, step, t, rows):
        model, texts = self.model, self.tokens if rows[0] == 0 else 0
        own = torch.arange(rows[0] * self.columns, rows[1] * self.columns)
        everything = torch.cat([torch.arange(texts), self.tokens + own])
        rotary = tuple(r[everything] for r in self.rotary)
        made = model.distilled_guidance_layer(model.time_text_embed(t[None] / 1000 * 1000))
        doubles, singles = len(model.transformer_blocks), 3 * len(model.single_transformer_blocks)
        text, picture, hidden = self.text[:, :texts], model.x_embedder(packed)[:, own], None
        for i, (kept, block) in enumerate(zip(self.kept, self.blocks)):
            kept.step, kept.now = step, everything
            if i < doubles:
                of = lambda first: made[:, singles + 6 * first:singles + 6 * first + 6]
                text, picture = joint_block(block, kept, None, text, picture, of(i), rotary, of(doubles + i))
                continue
            hidden = torch.cat([text, picture], dim=1) if hidden is None else hidden
            hidden = single_block(block, kept, hidden, made[:, 3 * (i - doubles):3 * (i - doubles) + 3], rotary)
        return model.proj_out(model.norm_out(hidden[:, texts:], made[:, -2:]))


def denoise(pipe, case):
    channels, height, width = pipe.transformer.config.in_channels // 4, case["height"] // 8, case["width"] // 8
    prompts = [prompt for prompt in case["prompts"] for _ in range(case["n"])]
    branches = [(Branch(pipe, case, case["negative_prompt"]), Branch(pipe, case, prompt)) for prompt in prompts]
    scheduler, config = copy.deepcopy(pipe.scheduler), pipe.scheduler.config
    mu = calculate_shift(height // 2 * width // 2, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / case["steps"], case["steps"]), mu=mu)
    scheduler.set_begin_index(0)
    packed = pipe._pack_latents(torch.randn(len(prompts), channels, height, width, generator=generator(case["seed"])), len(prompts), channels, height, width)
    rows = split(height // 2, case["patches"])
    steppers = [copy.deepcopy(scheduler) for _ in rows]
    for step, t in enumerate(scheduler.timesteps):
        for first, last in [(0, len(rows))] if step < case["warmup"] else [(m, m + 1) for m in range(len(rows))]:
            part, made = (rows[first][0], rows[last - 1][1]), []
            for item, both in enumerate(branches):
                negative, text = (branch.predict(packed[item:item + 1], step, t, part) for branch in both)
                made.append(negative + case["guidance"] * (text - negative))
            out = torch.cat(made)
            for m in range(first, last):
                mine, offset = slice(rows[m][0] * width // 2, rows[m][1] * width // 2), part[0] * width // 2
                packed[:, mine] = steppers[m].step(out[:, mine.start - offset:mine.stop - offset], t, packed[:, mine].clone(), return_dict=False)[0]
    return pipe._unpack_latents(packed, case["height"], case["width"], 8)


def patches(pipe):
    book = Book("chroma_patches", "As `chroma`, by `method` with `patches` and `warmup` synchronous steps, K, V `kv`: see `joint_patches`. Each prompt's text alone, without padding.")
    add_cases(book, "chroma", DEFAULTS, ["a cat", "a tree on a hill"], lambda case: denoise(pipe, case), lambda case: draw(pipe, case)[0])
    book.save()


def make():
    make_checkpoint()
    calls()
    pipe = Pipeline.from_pretrained(FIXTURES / NAME)
    pipe.set_progress_bar_config(disable=True)
    pictures(pipe)
    patches(pipe)
