"""Qwen-Image: a small random checkpoint, single calls of its transformer, whole pictures by its pipeline, and by patches."""
import copy
import json
import shutil

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImagePipeline, QwenImageTransformer2DModel
from diffusers.models.transformers.transformer_qwenimage import apply_rotary_emb_qwen
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift
from tokenizers import ByteLevelBPETokenizer
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from common import FIXTURES, PROMPT, Book, generator, randomise
from joint_patches import PICTURE, TEXT as TEXT_NAMES, add_cases, attend, heads_of
from patches import PatchAttention, split

NAME = "tiny-qwen-image"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
# name, batch, latent height and width, timestep, text tokens of each item
CALLS = [("qwen-image_square", 1, 8, 8, 981.0, [9]), ("qwen-image_wide", 2, 6, 14, 333.25, [9, 4]), ("qwen-image_tall", 3, 14, 6, 40.5, [2, 7, 7])]
TEXT = 9


def make_tokenizer(pipeline=QwenImagePipeline):
    """The template's words are pieces of their own, so that it takes as many tokens as in the published vocabulary: 34 before the prompt, or 64 where pictures are edited."""
    template = pipeline.__init__.__code__.co_consts
    text = max((c for c in template if isinstance(c, str) and "im_start" in c), key=len)
    learner = ByteLevelBPETokenizer()
    learner.train_from_iterator([text.format(PROMPT)] * 3 + ["a tree, a cat and a dog: é 猫"] * 2, vocab_size=256 + 400, min_frequency=2, show_progress=False)
    model = learner.to_str()
    made = json.loads(model)["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in made["merges"]]
    tokenizer = Qwen2Tokenizer(vocab=made["vocab"], merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL[1:]})
    return tokenizer


def make_text_encoder(tokenizer, **of_vision):
    text = dict(vocab_size=len(tokenizer), hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=4096, rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 1]}, bos_token_id=0, eos_token_id=0)
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=24, patch_size=4, spatial_merge_size=2, fullatt_block_indexes=[0])
    config = Qwen2_5_VLConfig(text_config=text, vision_config={**vision, **of_vision}, image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"), video_token_id=5,
                              vision_start_token_id=3, vision_end_token_id=4)
    return randomise(Qwen2_5_VLForConditionalGeneration(config), 61, {"embed_tokens": 3.0})


def make_vae(downsample=(False, True, True), base_dim=8):
    vae = AutoencoderKLQwenImage(base_dim=base_dim, z_dim=4, dim_mult=[1] + [2] * len(downsample), num_res_blocks=1, temperal_downsample=list(downsample),
                                 latents_mean=[-0.3, 0.2, 0.1, -0.1], latents_std=[1.4, 0.8, 1.1, 1.9])
    return randomise(vae, 62, {"decoder.conv_out": 1.0})


def make_transformer(**more):
    model = QwenImageTransformer2DModel(in_channels=16, out_channels=4, num_layers=4, attention_head_dim=8, num_attention_heads=3, joint_attention_dim=24,
                                        axes_dims_rope=(2, 4, 2), **more)
    return randomise(model, 63, {"to_q": 1.5, "add_q": 1.5, "txt_in": 2.0, "proj_out.weight": 0.6})


def make_scheduler():
    return FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, base_image_seq_len=16, max_image_seq_len=256, shift_terminal=0.02)


def make_checkpoint():
    folder = FIXTURES / NAME
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = make_tokenizer()
    QwenImagePipeline(scheduler=make_scheduler(), vae=make_vae(), text_encoder=make_text_encoder(tokenizer), tokenizer=tokenizer, transformer=make_transformer()).save_pretrained(folder)


def load():
    pipe = QwenImagePipeline.from_pretrained(FIXTURES / NAME)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def call(model, batch, height, width, timestep, lengths, r):
    x, text = torch.randn(batch, 4, height, width, generator=r), torch.randn(batch, TEXT, 24, generator=r)
    mask = torch.arange(TEXT)[None] < torch.tensor(lengths)[:, None]
    text = text * mask[..., None]
    packed = QwenImagePipeline._pack_latents(x[:, :, None], batch, 4, height, width)
    out = model(packed, text, mask, torch.full((batch,), timestep) / 1000, [[(1, height // 2, width // 2)]] * batch, return_dict=False)[0]
    out = QwenImagePipeline._unpack_latents(out, height * 8, width * 8, 8)[:, :, 0]
    return {"hidden": x, "states0": text, "lengths0": torch.tensor(lengths), "output": out}


def calls():
    model = QwenImageTransformer2DModel.from_pretrained(FIXTURES / NAME / "transformer").eval()
    book = Book("qwen_image_transformer", f"Checkpoint {NAME}/transformer on latents `hidden` at `timestep`: states0 and lengths0 are what the text encoder gave; output [B,C,h,w].")
    for k, (name, batch, height, width, timestep, lengths) in enumerate(CALLS):
        book.case(name, {"checkpoint": NAME, "timestep": timestep, "guidance": 1.0}, call(model, batch, height, width, timestep, lengths, generator(600 + k)))
    book.save()


DEFAULTS = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=6, guidance=4.5, seed=0, n=1, max_sequence_length=40, image=False)
CASES = [("qwen-image_plain", dict(image=True)), ("qwen-image_wide", dict(width=96, height=80, prompts=["a cat"], negative_prompt="a dog", guidance=3.0, seed=1, steps=4)),
         # One picture a prompt: with more, diffusers' pipeline lays masks and states out in different orders.
         ("qwen-image_three", dict(prompts=["a red circle", "a tree, a cat and a dog: é 猫", "a cat"], width=48, seed=2, steps=3, image=True)),
         ("qwen-image_two", dict(n=2, seed=7, steps=3)),
         ("qwen-image_alone", dict(guidance=1.0, seed=3, image=True, steps=3)), ("qwen-image_two_steps", dict(steps=2, seed=4)),
         ("qwen-image_no_negative", dict(negative_prompt=None, seed=5, steps=3)), ("qwen-image_cut", dict(max_sequence_length=7, seed=6, steps=3, negative_prompt="a house"))]


def draw(pipe, case):
    """Final latents [n, C, h/8, w/8] as the pipeline has them before the VAE."""
    negative = case["negative_prompt"]
    packed = pipe(case["prompts"], negative_prompt=None if negative is None else [negative] * len(case["prompts"]), true_cfg_scale=case["guidance"], height=case["height"],
                  width=case["width"], num_inference_steps=case["steps"], num_images_per_prompt=case["n"], generator=generator(case["seed"]), output_type="latent",
                  max_sequence_length=case["max_sequence_length"]).images
    return pipe._unpack_latents(packed, case["height"], case["width"], 8)[:, :, 0]


def decode(pipe, latents):
    config = pipe.vae.config
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (config.latents_mean, config.latents_std))
    pixels = pipe.vae.decode(latents[:, :, None] / (1.0 / std) + mean, return_dict=False)[0][:, :, 0]
    return pixels, torch.from_numpy(np.stack([np.asarray(i) for i in pipe.image_processor.postprocess(pixels, output_type="pil")]))


def pictures(pipe):
    book = Book("qwen_image", "Whole pictures by QwenImagePipeline: latents [n,C,h/8,w/8] are the final ones before the VAE, image (uint8 [n,h,w,3]) and pixels (float, before "
                "they are rounded) what it makes of them, where `image` is true.")
    for name, changes in CASES:
        case = {**DEFAULTS, **changes}
        latents = draw(pipe, case)
        assert torch.isfinite(latents).all()
        tensors = {"latents": latents}
        if case["image"]:
            tensors["pixels"], tensors["image"] = decode(pipe, latents)
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        book.case(name, case, tensors)
    book.save()


def block_of(block, kept, text, picture, temb, rotary, of_picture=None, index=None):
    """One block over patches; `text` may have no tokens. rotary: of the picture's tokens and of the text's. `of_picture`, `index`: what modulates the
    picture's tokens, and which of it each of them, where that is not `temb`."""
    count = text.shape[1]
    first, second = block.img_mod(temb if of_picture is None else of_picture).chunk(2, dim=-1)
    first_text, second_text = block.txt_mod(temb).chunk(2, dim=-1)
    turned = lambda qkv, by: [apply_rotary_emb_qwen(x, by, use_real=False) for x in qkv[:2]] + qkv[2:]
    normal, gate = block._modulate(block.img_norm1(picture), first, index)
    qkv = turned(heads_of(block.attn, normal, *PICTURE), rotary[0])
    if count:
        normal_text, gate_text = block._modulate(block.txt_norm1(text), first_text)
        qkv = [torch.cat(pair, dim=1) for pair in zip(turned(heads_of(block.attn, normal_text, *TEXT_NAMES), rotary[1]), qkv)]
    out = attend(kept, block.attn.heads, *qkv)
    picture = picture + gate * block.attn.to_out[0](out[:, count:])
    normal, gate = block._modulate(block.img_norm2(picture), second, index)
    picture = picture + gate * block.img_mlp(normal)
    if count:
        text = text + gate_text * block.attn.to_add_out(out[:, :count])
        normal, gate = block._modulate(block.txt_norm2(text), second_text)
        text = text + gate * block.txt_mlp(normal)
    return text, picture


class Branch:
    """The transformer over patches for one prompt alone, so without padding: `predict` gives the tokens of one micro-step."""

    def __init__(self, pipe, case, prompt):
        self.model, self.rows, self.columns = pipe.transformer, case["height"] // 16, case["width"] // 16
        states, _ = pipe.encode_prompt(prompt, max_sequence_length=case["max_sequence_length"])
        self.tokens, self.text = states.shape[1], self.model.txt_in(self.model.txt_norm(states))
        self.kept = [PatchAttention(self.tokens + self.rows * self.columns, case["method"], case["kv"]) for _ in self.model.transformer_blocks]
        self.rotary = self.model.pos_embed([[(1, self.rows, self.columns)]], max_txt_seq_len=self.tokens, device=torch.device("cpu"))

    def predict(self, packed, step, t, rows):
        model, texts = self.model, self.tokens if rows[0] == 0 else 0
        own = torch.arange(rows[0] * self.columns, rows[1] * self.columns)
        text, picture = self.text[:, :texts], model.img_in(packed)[:, own]
        temb = model.time_text_embed(t[None] / 1000, picture)
        for kept, block in zip(self.kept, model.transformer_blocks):
            kept.step, kept.now = step, torch.cat([torch.arange(texts), self.tokens + own])
            text, picture = block_of(block, kept, text, picture, temb, (self.rotary[0][own], self.rotary[1][:texts]))
        return model.proj_out(model.norm_out(picture, temb))


def denoise(pipe, case, Branch=Branch):
    scale = pipe.vae_scale_factor
    channels, height, width = pipe.transformer.config.in_channels // 4, case["height"] // scale, case["width"] // scale
    prompts = [prompt for prompt in case["prompts"] for _ in range(case["n"])]
    branches = [(Branch(pipe, case, case["negative_prompt"]), Branch(pipe, case, prompt)) for prompt in prompts]
    scheduler, config = copy.deepcopy(pipe.scheduler), pipe.scheduler.config
    mu = calculate_shift(height // 2 * width // 2, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / case["steps"], case["steps"]), mu=mu)
    scheduler.set_begin_index(0)
    packed = pipe._pack_latents(torch.randn(len(prompts), 1, channels, height, width, generator=generator(case["seed"])), len(prompts), channels, height, width)
    rows = split(height // 2, case["patches"])
    steppers = [copy.deepcopy(scheduler) for _ in rows]
    for step, t in enumerate(scheduler.timesteps):
        for first, last in [(0, len(rows))] if step < case["warmup"] else [(m, m + 1) for m in range(len(rows))]:
            part, made = (rows[first][0], rows[last - 1][1]), []
            for item, both in enumerate(branches):
                negative, text = (branch.predict(packed[item:item + 1], step, t, part) for branch in both)
                out = negative + case["guidance"] * (text - negative)
                made.append(out * (text.norm(dim=-1, keepdim=True) / out.norm(dim=-1, keepdim=True)))
            out = torch.cat(made)
            for m in range(first, last):
                mine, offset = slice(rows[m][0] * width // 2, rows[m][1] * width // 2), part[0] * width // 2
                packed[:, mine] = steppers[m].step(out[:, mine.start - offset:mine.stop - offset], t, packed[:, mine].clone(), return_dict=False)[0]
    return pipe._unpack_latents(packed, case["height"], case["width"], scale)[:, :, 0]


def patches(pipe):
    book = Book("qwen_image_patches", "As `qwen_image`, by `method` with `patches` and `warmup` synchronous steps, K, V `kv`: see `joint_patches`. Each prompt's text alone, without padding.")
    add_cases(book, "qwen-image", DEFAULTS, ["a cat", "a tree on a hill"], lambda case: denoise(pipe, case), lambda case: draw(pipe, case))
    book.save()


def make():
    make_checkpoint()
    calls()
    pipe = load()
    pictures(pipe)
    patches(pipe)
