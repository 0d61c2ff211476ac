"""PipeFusion on one process, on diffusers' own PixArt blocks: patches with keys and values of two steps."""
import copy

import numpy as np
import torch
import torch.nn.functional as F

from checkpoints import load
from common import PROMPT, SCHEDULER, Book, generator
from pipeline import DEFAULTS, SCHEDULERS, draw


class StaleAttention:
    """Self-attention of one block for the tokens `now`, over the newest K, V of every token computed so far."""

    def __init__(self, tokens):
        self.tokens, self.now, self.key, self.value = tokens, slice(0, tokens), None, None
        self.present = torch.zeros(tokens, dtype=torch.bool)

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, **unused):
        batch, length, width = hidden_states.shape
        query, key, value = attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)
        if self.key is None:
            self.key, self.value = (torch.full((batch, self.tokens, width), float("nan")) for _ in range(2))
        self.key[:, self.now], self.value[:, self.now], self.present[self.now] = key, value, True
        heads = [x.view(batch, -1, attn.heads, width // attn.heads).transpose(1, 2)
                 for x in (query, self.key[:, self.present], self.value[:, self.present])]
        out = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(batch, length, width)
        return attn.to_out[1](attn.to_out[0](out))


def forward(model, attentions, latents, rows, caption, mask, timestep, added):
    """The model's prediction [b, 8, 2 * rows, w] for the token rows `rows`, by the model's own submodules."""
    columns, p = latents.shape[-1] // model.config.patch_size, model.config.patch_size
    now = slice(rows[0] * columns, rows[1] * columns)
    hidden = model.pos_embed(latents)[:, now]
    modulation, embedded = model.adaln_single(timestep, added, batch_size=hidden.shape[0], hidden_dtype=hidden.dtype)
    caption = model.caption_projection(caption)
    bias = ((1 - mask.to(hidden.dtype)) * -10000.0)[:, None]
    for block, attention in zip(model.transformer_blocks, attentions):
        attention.now = now
        hidden = block(hidden, encoder_hidden_states=caption, encoder_attention_mask=bias, timestep=modulation)
    shift, scale = (model.scale_shift_table[None] + embedded[:, None]).chunk(2, dim=1)
    hidden = model.proj_out(model.norm_out(hidden) * (1 + scale) + shift)
    hidden = hidden.reshape(-1, rows[1] - rows[0], columns, p, p, model.config.out_channels)
    return torch.einsum("nhwpqc->nchpwq", hidden).reshape(hidden.shape[0], model.config.out_channels, (rows[1] - rows[0]) * p, columns * p)


def split(rows, patches):
    """Runs of token rows, the first ones longer where they do not divide."""
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(rows), patches)])
    return [(int(e - len(part)), int(e)) for e, part in zip(ends, np.array_split(np.arange(rows), patches))]


def denoise(pipe, case, patches, warmup):
    model, guided = pipe.transformer, case["guidance"] > 1
    caption, mask, negative, negative_mask = pipe.encode_prompt(
        case["prompts"], guided, negative_prompt=case["negative_prompt"], num_images_per_prompt=case["n"], max_sequence_length=case["max_sequence_length"])
    if guided:
        caption, mask = torch.cat([negative, caption]), torch.cat([negative_mask, mask])
    height, width, count = case["height"] // 8, case["width"] // 8, len(case["prompts"]) * case["n"]
    rows = split(height // 2, patches)
    scheduler = SCHEDULERS[case["scheduler"]](**SCHEDULER, **case["config"])
    scheduler.set_timesteps(case["steps"])
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)
    steppers = [copy.deepcopy(scheduler) for _ in rows]
    latents = torch.randn(count, 4, height, width, generator=generator(case["seed"])) * scheduler.init_noise_sigma
    added = {"resolution": None, "aspect_ratio": None}
    if model.use_additional_conditions:
        double = count * (2 if guided else 1)
        added = {"resolution": torch.tensor([[float(case["height"]), float(case["width"])]] * double),
                 "aspect_ratio": torch.tensor([[case["height"] / case["width"]]] * double)}
    attentions = [StaleAttention(height // 2 * width // 2) for _ in model.transformer_blocks]
    before = [block.attn1.processor for block in model.transformer_blocks]
    for block, attention in zip(model.transformer_blocks, attentions):
        block.attn1.set_processor(attention)
    try:
        for step, t in enumerate(scheduler.timesteps):
            # a synchronous step computes all rows in one call; the sampler steps each patch by itself all the same
            for first, last in [(0, len(rows))] if step < warmup else [(m, m + 1) for m in range(len(rows))]:
                part = (rows[first][0], rows[last - 1][1])
                x = torch.cat([latents] * 2) if guided else latents
                out = forward(model, attentions, steppers[first].scale_model_input(x, t), part, caption, mask, t[None].expand(x.shape[0]), added)
                if guided:
                    uncond, text = out.chunk(2)
                    out = uncond + case["guidance"] * (text - uncond)
                out = out[:, :4]
                for m in range(first, last):
                    mine, offset = slice(2 * rows[m][0], 2 * rows[m][1]), 2 * part[0]
                    eps = out[:, :, mine.start - offset:mine.stop - offset]
                    latents[:, :, mine] = steppers[m].step(eps, t, latents[:, :, mine].clone(), return_dict=False)[0]
    finally:
        for block, processor in zip(model.transformer_blocks, before):
            block.attn1.set_processor(processor)
    return latents


def cases():
    for patches in (1, 2, 3, 4):
        for warmup in (0, 1, 2):
            yield f"m{patches}_k{warmup}", dict(), patches, warmup
    for patches, warmup in ((2, 0), (3, 1), (4, 2)):
        yield f"unguided_m{patches}_k{warmup}", dict(guidance=1.0, seed=1), patches, warmup
        yield f"five_rows_m{patches}_k{warmup}", dict(height=80, width=48, seed=2, prompts=["a blue tree"]), patches, warmup
    for patches, warmup in ((2, 1), (3, 0), (4, 1), (7, 2)):
        yield f"seven_rows_m{patches}_k{warmup}", dict(height=112, width=48, seed=3, negative_prompt="a dog"), patches, warmup
    yield "two_prompts_m3_k1", dict(prompts=["a red circle", "a tree"], n=2, width=48, seed=4), 3, 1
    yield "all_warm_m3_k8", dict(seed=5), 3, 8
    yield "third_order_m2_k1", dict(seed=6, config=dict(solver_order=3, algorithm_type="dpmsolver++")), 2, 1
    yield "ddim_m2_k1", dict(seed=7, scheduler="DDIMScheduler", config=dict(clip_sample=False, set_alpha_to_one=False, steps_offset=1)), 2, 1
    yield "euler_m3_k1", dict(seed=8, scheduler="EulerDiscreteScheduler", config={}), 3, 1
    yield "ms_m3_k1", dict(seed=9, checkpoint="tiny-pixart-1024", height=112, width=80), 3, 1


def make():
    book = Book("pipefusion", "As `pipeline`, by PipeFusion with `patches` and `warmup` synchronous steps: latents [n,4,h/8,w/8] are the final ones. "
                "`rows`: token rows [from, to) of each patch. Patch m sees this step's K, V of patches up to m and the previous step's of the others; "
                "with warmup 0, in step 0, patches after m are absent. `drift`: the largest distance from the synchronous pipeline's latents, as a "
                "fraction of their range.", beta=SCHEDULER)
    pipes = {}
    for name, changes, patches, warmup in cases():
        case = {**DEFAULTS, **changes}
        pipe = pipes.setdefault(case["checkpoint"], load(case["checkpoint"]))
        latents, whole = denoise(pipe, case, patches, warmup), draw(pipe, case)
        drift = float((latents - whole).abs().max() / (whole.max() - whole.min()))
        assert torch.isfinite(latents).all()
        assert (drift < 1e-5) == (patches == 1 or warmup >= case["steps"]), (name, drift)
        print(f"  {name}: drift {drift:.2e}", flush=True)
        book.case(name, {**case, "patches": patches, "warmup": warmup, "rows": split(case["height"] // 16, patches), "drift": drift}, {"latents": latents})
    book.save()
