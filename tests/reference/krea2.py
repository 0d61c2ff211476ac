"""Krea 2: small random checkpoints, single calls of its transformer, whole pictures by its pipeline, and by patches."""
import copy
import json
import shutil

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import FlowMatchEulerDiscreteScheduler, Krea2Pipeline, Krea2Transformer2DModel
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.pipelines.krea2.pipeline_krea2 import calculate_shift
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLConfig, Qwen3VLModel

from common import FIXTURES, PROMPT, Book, generator, randomise
from joint_patches import add_cases, attend
from lora import in_diffusers, pairs
from patches import PatchAttention, split
from qwen_image import decode, make_tokenizer, make_vae

NAME, DISTILLED, SINGLE = "tiny-krea2", "tiny-krea2-distilled", "tiny-krea2-single"
LAYERS, TEXT = (0, 2, 3), 9
# name, batch, latent height and width, timestep, text tokens of each item
CALLS = [("krea2_square", 1, 8, 8, 981.0, [9]), ("krea2_wide", 2, 6, 14, 333.25, [9, 4]), ("krea2_tall", 3, 14, 6, 40.5, [2, 7, 7])]
DEFAULTS = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=6, guidance=3.5, seed=0, n=1, max_sequence_length=40, image=False)
CASES = {
    "plain": dict(image=True),
    "wide": dict(width=96, height=80, prompts=["a cat"], negative_prompt="a dog", guidance=2.0, seed=1, steps=4),
    "three": dict(prompts=["a red circle", "a tree, a cat and a dog: é 猫", "a cat"], n=2, width=48, seed=2, steps=3, image=True),
    "alone": dict(guidance=0.0, seed=3, steps=3, image=True),
    "one_step": dict(steps=1, seed=4),
    "cut": dict(max_sequence_length=9, seed=5, steps=3, negative_prompt="a house"),
    "all_cut": dict(max_sequence_length=3, seed=6, steps=2),
    "distilled": dict(checkpoint=DISTILLED, guidance=0.0, seed=7, steps=4, image=True),
    "lora": dict(lora="lora/krea2.safetensors", seed=8, steps=3),
    "single": dict(checkpoint=SINGLE, seed=10, steps=2),
    "given": dict(embeds=True, prompts=["a tree", "a red cat"], guidance=2.0, width=48, seed=9, steps=3),
}
LORA = ["transformer_blocks.0.attn.to_q", "transformer_blocks.1.attn.to_k", "transformer_blocks.1.attn.to_gate", "transformer_blocks.2.attn.to_out.0", "transformer_blocks.3.ff.gate",
        "transformer_blocks.0.ff.down", "text_fusion.layerwise_blocks.0.attn.to_v", "text_fusion.refiner_blocks.1.ff.up", "img_in", "txt_in.linear_1", "time_mod_proj",
        "final_layer.linear"]


def make_text_encoder(tokenizer):
    text = dict(vocab_size=len(tokenizer), hidden_size=24, intermediate_size=40, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                max_position_embeddings=4096, rope_parameters={"rope_type": "default", "rope_theta": 5e6, "mrope_section": [2, 1, 1], "mrope_interleaved": True})
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=24, patch_size=4, spatial_merge_size=2, num_position_embeddings=16,
                  deepstack_visual_indexes=[0])
    config = Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"), video_token_id=5)
    return randomise(Qwen3VLModel(config), 81, {"embed_tokens": 3.0, "q_proj": 1.5})


def make_transformer():
    model = Krea2Transformer2DModel(in_channels=16, num_layers=4, attention_head_dim=8, num_attention_heads=6, num_key_value_heads=2, intermediate_size=80, timestep_embed_dim=32,
                                    text_hidden_dim=24, num_text_layers=len(LAYERS), text_num_attention_heads=4, text_num_key_value_heads=2, text_intermediate_size=40,
                                    axes_dims_rope=(2, 4, 2))
    randomise(model, 83, {"to_q": 1.5, "txt_in": 2.0, "final_layer.linear": 0.6})
    for name, weight in model.named_parameters():  # the files have norms' weights without their 1
        if "norm" in name:
            weight -= 1
    return model


def make_checkpoint():
    for name in (NAME, DISTILLED, SINGLE):
        shutil.rmtree(FIXTURES / name, ignore_errors=True)
    tokenizer = make_tokenizer()
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=16, max_image_seq_len=256)
    pipe = Krea2Pipeline(scheduler=scheduler, vae=make_vae(), text_encoder=make_text_encoder(tokenizer), tokenizer=tokenizer, transformer=make_transformer(),
                         text_encoder_select_layers=LAYERS)
    pipe.save_pretrained(FIXTURES / NAME)
    shutil.copytree(FIXTURES / NAME, FIXTURES / DISTILLED)
    index = FIXTURES / DISTILLED / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "is_distilled": True}, indent=1))
    shutil.copytree(FIXTURES / NAME, FIXTURES / SINGLE)
    rename_single(FIXTURES / SINGLE)


def rename_single(folder):
    """The folder's transformer in a file with its authors' names, and its text encoder's tensors as those of the model with its head are named."""
    words = [("final_layer.scale_shift_table", "last.modulation.lin"), ("final_layer.norm.weight", "last.norm.scale"), ("final_layer.", "last."), ("text_fusion.", "txtfusion."),
             ("transformer_blocks.", "blocks."), ("img_in.", "first."), ("time_embed.linear_1", "tmlp.0"), ("time_embed.linear_2", "tmlp.2"), ("time_mod_proj", "tproj.1"),
             ("txt_in.norm.weight", "txtmlp.0.scale"), ("txt_in.linear_1", "txtmlp.1"), ("txt_in.linear_2", "txtmlp.3"), (".norm_q.weight", ".qknorm.qnorm.scale"),
             (".norm_k.weight", ".qknorm.knorm.scale"), (".to_q.", ".wq."), (".to_k.", ".wk."), (".to_v.", ".wv."), (".to_out.0.", ".wo."), (".to_gate.", ".gate."), (".ff.", ".mlp."),
             (".norm1.weight", ".prenorm.scale"), (".norm2.weight", ".postnorm.scale"), (".scale_shift_table", ".mod.lin")]
    tensors = {}
    ours = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    for name, tensor in load_file(ours).items():
        for diffusers, authors in words:
            name = name.replace(diffusers, authors)
        tensors["model.diffusion_model." + name] = tensor.flatten() if name.endswith(".mod.lin") else tensor
    ours.unlink()
    save_file(tensors, folder / "transformer" / "krea2.safetensors")
    encoder = folder / "text_encoder" / "model.safetensors"
    renamed = {"model." + name: tensor for name, tensor in load_file(encoder).items()}
    save_file({**renamed, "lm_head.weight": renamed["model.language_model.embed_tokens.weight"].clone()}, encoder)


def load(name):
    pipe = Krea2Pipeline.from_pretrained(FIXTURES / name)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def call(model, batch, height, width, timestep, lengths, r):
    x, text = torch.randn(batch, 4, height, width, generator=r), torch.randn(batch, TEXT, len(LAYERS), 24, generator=r)
    mask = torch.arange(TEXT)[None] < torch.tensor(lengths)[:, None]
    places = Krea2Pipeline.prepare_position_ids(TEXT, height // 2, width // 2, "cpu")
    packed = x.view(batch, 4, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, 16)
    out = model(packed, text, torch.full((batch,), timestep) / 1000, places, mask, return_dict=False)[0]
    out = out.view(batch, height // 2, width // 2, 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(batch, 4, height, width)
    return {"hidden": x, "states0": text.flatten(2), "lengths0": torch.tensor(lengths), "output": out}


def calls():
    model = Krea2Transformer2DModel.from_pretrained(FIXTURES / NAME / "transformer").eval()
    book = Book("krea2_transformer", f"Checkpoint {NAME}/transformer on latents `hidden` at `timestep`: states0 and lengths0 are what the text encoder gave; output [B,C,h,w].")
    for k, (name, batch, height, width, timestep, lengths) in enumerate(CALLS):
        book.case(name, {"checkpoint": NAME, "timestep": timestep, "guidance": 1.0}, call(model, batch, height, width, timestep, lengths, generator(800 + k)))
    book.save()


def draw(pipe, case):
    """Final latents [n, C, h/8, w/8] as the pipeline has them before the VAE, and what was given instead of prompts."""
    words, given = {"prompt": list(case["prompts"]), "negative_prompt": [case["negative_prompt"]] * len(case["prompts"])}, {}
    if case.get("embeds"):
        for name in ("prompt", "negative_prompt"):
            states, mask = pipe.encode_prompt(words[name], max_sequence_length=case["max_sequence_length"])
            given |= {f"{name}_embeds": states, f"{name}_embeds_mask": mask}
        words = {}
    packed = pipe(**words, **given, guidance_scale=case["guidance"], height=case["height"], width=case["width"], num_inference_steps=case["steps"], num_images_per_prompt=case["n"],
                  generator=generator(case["seed"]), output_type="latent", max_sequence_length=case["max_sequence_length"]).images
    return pipe._unpack_latents(packed, case["height"], case["width"])[:, :, 0], given


def pictures(pipes):
    book = Book("krea2", "Whole pictures by Krea2Pipeline: latents [n,C,h/8,w/8] are the final ones before the VAE, image (uint8 [n,h,w,3]) what it makes of them, where `image` is true. "
                "`lora`: with this file. `embeds`: prompt embeds were given.")
    (FIXTURES / "lora").mkdir(exist_ok=True)
    save_file(in_diffusers("transformer", pairs(pipes[NAME].transformer, LORA, 3, 84)), FIXTURES / CASES["lora"]["lora"])
    for name, changes in CASES.items():
        case = {**DEFAULTS, **changes}
        pipe = pipes.get(case["checkpoint"], pipes[NAME])  # the single file has the same weights
        if "lora" in case:
            pipe.load_lora_weights(FIXTURES / case["lora"])
        latents, given = draw(pipe, case)
        if "lora" in case:
            pipe.unload_lora_weights()
        assert torch.isfinite(latents).all()
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        book.case(f"krea2_{name}", case, {"latents": latents, **{key: value.float() for key, value in given.items()}, **({"image": decode(pipe, latents)[1]} if case["image"] else {})})
    book.save()


def block_of(block, kept, hidden, temb, rotary):
    """One block over patches, of the text's tokens and the picture's."""
    scale, shift, gate, scale_forward, shift_forward, gate_forward = (temb.unflatten(-1, (6, -1)) + block.scale_shift_table).unbind(-2)
    attn, normal = block.attn, (1 + scale) * block.norm1(hidden) + shift
    q, k, v = (product(normal).unflatten(-1, (-1, attn.head_dim)) for product in (attn.to_q, attn.to_k, attn.to_v))
    q, k = (apply_rotary_emb(x, rotary, sequence_dim=1) for x in (attn.norm_q(q), attn.norm_k(k)))
    k, v = (x.repeat_interleave(attn.num_heads // attn.num_kv_heads, dim=2) for x in (k, v))
    hidden = hidden + gate * attn.to_out[0](attend(kept, attn.num_heads, q, k, v) * torch.sigmoid(attn.to_gate(normal)))
    return hidden + gate_forward * block.ff((1 + scale_forward) * block.norm2(hidden) + shift_forward)


class Branch:
    """The transformer over patches for one prompt alone, so without padding: `predict` gives the tokens of one micro-step."""

    def __init__(self, pipe, case, prompt):
        self.model, self.rows, self.columns = pipe.transformer, case["height"] // 16, case["width"] // 16
        states, mask = pipe.encode_prompt(prompt, max_sequence_length=case["max_sequence_length"])
        self.text = self.model.txt_in(self.model.text_fusion(states[:, mask[0]]))
        self.tokens = self.text.shape[1]
        self.kept = [PatchAttention(self.tokens + self.rows * self.columns, case["method"], case["kv"]) for _ in self.model.transformer_blocks]
        self.rotary = self.model.rotary_emb(pipe.prepare_position_ids(self.tokens, self.rows, self.columns, "cpu"))

    def predict(self, packed, step, t, rows):
        model, texts = self.model, self.tokens if rows[0] == 0 else 0
        own = torch.arange(rows[0] * self.columns, rows[1] * self.columns)
        everything = torch.cat([torch.arange(texts), self.tokens + own])
        hidden = torch.cat([self.text[:, :texts], model.img_in(packed)[:, own]], dim=1)
        temb = model.time_embed(t[None] / 1000, dtype=hidden.dtype)
        shared = model.time_mod_proj(F.gelu(temb, approximate="tanh"))
        for kept, block in zip(self.kept, model.transformer_blocks):
            kept.step, kept.now = step, everything
            hidden = block_of(block, kept, hidden, shared, tuple(r[everything] for r in self.rotary))
        return model.final_layer(hidden[:, texts:], temb)


def denoise(pipe, case):
    height, width = case["height"] // 8, case["width"] // 8
    prompts = [prompt for prompt in case["prompts"] for _ in range(case["n"])]
    branches = [(Branch(pipe, case, case["negative_prompt"]), Branch(pipe, case, prompt)) for prompt in prompts]
    scheduler, config = copy.deepcopy(pipe.scheduler), pipe.scheduler.config
    mu = calculate_shift(height // 2 * width // 2, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / case["steps"], case["steps"]), mu=mu)
    scheduler.set_begin_index(0)
    packed = pipe._pack_latents(torch.randn(len(prompts), 4, height, width, generator=generator(case["seed"])), len(prompts), 4, height, width)
    rows = split(height // 2, case["patches"])
    steppers = [copy.deepcopy(scheduler) for _ in rows]
    for step, t in enumerate(scheduler.timesteps):
        for first, last in [(0, len(rows))] if step < case["warmup"] else [(m, m + 1) for m in range(len(rows))]:
            part, made = (rows[first][0], rows[last - 1][1]), []
            for item, both in enumerate(branches):
                negative, text = (branch.predict(packed[item:item + 1], step, t, part) for branch in both)
                made.append(text + case["guidance"] * (text - negative))
            out = torch.cat(made)
            for m in range(first, last):
                mine, offset = slice(rows[m][0] * width // 2, rows[m][1] * width // 2), part[0] * width // 2
                packed[:, mine] = steppers[m].step(out[:, mine.start - offset:mine.stop - offset], t, packed[:, mine].clone(), return_dict=False)[0]
    return pipe._unpack_latents(packed, case["height"], case["width"])[:, :, 0]


def patches(pipe):
    book = Book("krea2_patches", "As `krea2`, by `method` with `patches` and `warmup` synchronous steps, K, V `kv`: see `joint_patches`. Each prompt's text alone, without padding.")
    add_cases(book, "krea2", DEFAULTS, ["a cat", "a tree on a hill"], lambda case: denoise(pipe, case), lambda case: draw(pipe, case)[0])
    book.save()


def make():
    make_checkpoint()
    calls()
    pipes = {name: load(name) for name in (NAME, DISTILLED)}
    pictures(pipes)
    patches(pipes[NAME])
