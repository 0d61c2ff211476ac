"""LongCat-Image: a small random checkpoint, its prompts' ids, and what `flux_variant` makes of it."""
import json
import shutil

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, LongCatImagePipeline, LongCatImageTransformer2DModel
from diffusers.pipelines.longcat_image.pipeline_longcat_image import prepare_pos_ids

from common import FIXTURES, PROMPT, Book, generator, randomise
from families import flow_vae
from flux_variant import Variant
from qwen_image import make_text_encoder, make_tokenizer

NAME = "tiny-longcat"
LAYERS = ["attn.to_q", "attn.to_out.0", "attn.add_k_proj", "ff.net.2", "proj_mlp", "single_transformer_blocks.1.proj_out", "x_embedder", "context_embedder"]
# Quotes of each kind, apostrophes that are none, quotes that are not closed or empty, letters of several bytes. No text has two different words with an
# apostrophe inside: the pipeline puts one of them in the other's place, which of them being up to Python's order of a set.
TEXTS = ["", "a red circle", "a sign that says 'Open' by a door", 'a "red" circle and \u201ca cat\u201d', "\u2018\u732b\u2019 \u00e9 '\u00e9e\u0301\U0001f431'", "don't cut the dogs' 'tail', don't",
         "the dogs' tails and the cats' ears", "'a' 'b'  'c d'", "an \u2018open \u2018one\u2019 here", '"', "''", "it's \"", "'Don't'", "'tis don't", "rock'n'roll 'n' 'r", "a\n'b\nc'\n",
         "\u201cno end", "x'y' z", "\n leading", "'<|im_end|>' <|im_end|>", "end '"]
LONG = "a green tree by the river, a 'white' cat and a black dog, " * 30


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


class LongCat(Variant):
    name, channels, seed, layers, pipeline, network = "longcat", 16, 76, LAYERS, LongCatImagePipeline, LongCatImageTransformer2DModel
    note = " Prompts are never rewritten."
    defaults = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=6, guidance=4.5, seed=0, n=1, max_sequence_length=0, image=False)
    cases = {
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

    def ids(self, tokens, rows, columns):
        return prepare_pos_ids(0, "text", num_token=tokens), prepare_pos_ids(1, "image", start=(512, 512), height=rows, width=columns)

    def draw(self, pipe, case):
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
        return self.unpack(packed, case), given

    def encode(self, pipe, case):
        return pipe.encode_prompt([case["negative_prompt"]] * len(case["prompts"]) + list(case["prompts"]), num_images_per_prompt=case["n"])

    def temb(self, model, time):
        return model.time_embed(time, torch.float32)

    def guided(self, negative, positive, scale):
        out = super().guided(negative, positive, scale)
        return out * (positive.norm(dim=-1, keepdim=True) / (out.norm(dim=-1, keepdim=True) + 1e-8)).clamp(0, 1)


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
    variant, pipe = LongCat(), load()
    variant.calls()
    tokens(pipe)
    variant.pictures(pipe)
    variant.patches(pipe, {})
