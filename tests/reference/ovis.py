"""Ovis-Image: a small random checkpoint, and what `flux_variant` makes of it."""
import shutil

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, OvisImagePipeline, OvisImageTransformer2DModel
from diffusers.models.embeddings import apply_rotary_emb
from transformers import Qwen3Model

from common import FIXTURES, PROMPT, generator, randomise
from families import flow_vae
from flux_variant import Variant
from joint_patches import PICTURE, attend, heads_of
from qwen_text import make_encoder, make_tokenizer

NAME = "tiny-ovis"
LAYERS = ["attn.to_q", "attn.to_out.0", "attn.add_k_proj", "ff.net.0.proj", "ff.net.2", "proj_mlp", "single_transformer_blocks.1.proj_out", "x_embedder", "context_embedder"]
LONG = f"{PROMPT}, a green tree by the river, a white cat and a black dog, " * 6


def make_checkpoint():
    shutil.rmtree(FIXTURES / NAME, ignore_errors=True)
    tokenizer, _, _ = make_tokenizer()
    transformer = OvisImageTransformer2DModel(in_channels=16, out_channels=16, num_layers=2, num_single_layers=3, attention_head_dim=8, num_attention_heads=3,
                                              joint_attention_dim=24, axes_dims_rope=(2, 4, 2))
    randomise(transformer, 75, {"to_q": 1.5, "add_q": 1.5, "context_embedder.weight": 2.0, "norm.linear": 0.5, "norm1": 0.5, "proj_out.weight": 0.6})
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=16, max_image_seq_len=256)
    OvisImagePipeline(scheduler=scheduler, vae=flow_vae(4), text_encoder=make_encoder(tokenizer, Qwen3Model), tokenizer=tokenizer,
                      transformer=transformer).save_pretrained(FIXTURES / NAME)


def single_block(block, kept, hidden, temb, rotary):
    normal, gate = block.norm(hidden, emb=temb)
    q, k, v = heads_of(block.attn, normal, *PICTURE)
    q, k = (apply_rotary_emb(x, rotary, sequence_dim=1) for x in (q, k))
    wide, by = block.proj_mlp(normal).chunk(2, dim=-1)
    out = torch.cat([attend(kept, block.attn.heads, q, k, v), block.act_mlp(by) * wide], dim=2)
    return hidden + gate[:, None] * block.proj_out(out)


class Ovis(Variant):
    name, seed, layers, pipeline, network = "ovis", 76, LAYERS, OvisImagePipeline, OvisImageTransformer2DModel
    single_block = staticmethod(single_block)
    defaults = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=6, guidance=5.0, seed=0, n=1, max_sequence_length=120, image=False)
    cases = {
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

    def ids(self, tokens, rows, columns):
        places = torch.arange(tokens)[:, None] * torch.tensor([0, 1, 1])
        return places.float(), OvisImagePipeline._prepare_latent_image_ids(1, rows, columns, "cpu", torch.float32)

    def draw(self, pipe, case):
        call = dict(guidance_scale=case["guidance"], height=case["height"], width=case["width"], num_inference_steps=case["steps"], num_images_per_prompt=case["n"],
                    generator=generator(case["seed"]), output_type="latent", max_sequence_length=case["max_sequence_length"] or 256)
        count, negative, given = len(case["prompts"]), case["negative_prompt"], {}
        if case.get("embeds"):
            made = pipe.encode_prompt(list(case["prompts"]), ["a cat"] * count, max_sequence_length=40)
            given = dict(zip(("prompt_embeds", "negative_prompt_embeds"), made[:2]))
            packed = pipe(negative_prompt=None, **given, **call).images
        else:
            packed = pipe(list(case["prompts"]), None if negative is None else [negative] * count, **call).images
        return self.unpack(packed, case), given

    def encode(self, pipe, case):
        count = len(case["prompts"])
        states, negative, text_ids, _ = pipe.encode_prompt(list(case["prompts"]), [case["negative_prompt"]] * count, max_sequence_length=case["max_sequence_length"],
                                                           num_images_per_prompt=case["n"])
        return torch.cat([negative, states]), text_ids

    def text(self, model, states):
        return model.context_embedder(model.context_embedder_norm(states))

    def temb(self, model, time):
        return model.timestep_embedder(model.time_proj(time))


def make():
    make_checkpoint()
    variant, pipe = Ovis(), OvisImagePipeline.from_pretrained(FIXTURES / NAME)
    pipe.set_progress_bar_config(disable=True)
    variant.calls()
    variant.pictures(pipe)
    variant.patches(pipe, {"max_sequence_length": 60})
