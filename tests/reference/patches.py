"""PipeFusion and DistriFusion on one process, on diffusers' own PixArt blocks: patches over keys and values of several steps."""
import copy

import numpy as np
import torch
import torch.nn.functional as F

from checkpoints import load
from common import SCHEDULER, generator
from pipeline import DEFAULTS, SCHEDULERS, draw


def fit(x, one, two):
    """α of x ≈ one + α (one − two) by least squares for each of K, V and each batch item, over the rows that all three have."""
    moved, before = (x - one).double(), (one - two).double()
    before = torch.where(moved.isnan(), float("nan"), before)
    top, bottom = (moved * before).nansum(dim=(-2, -1), keepdim=True), (before * before).nansum(dim=(-2, -1), keepdim=True)
    return torch.where(bottom > 0, (top / bottom).clamp(0, 1), 0.0).float()


class PatchAttention:
    """Self-attention of one block for the tokens `now` of step `step`. It keeps K, V of every step: [2, batch, tokens, width], NaN = not computed.
    The first `given` tokens do not count for what is fitted."""
    given = 0

    def __init__(self, tokens, method, kv):
        self.tokens, self.method, self.kv, self.step, self.now, self.steps, self.alphas = tokens, method, kv, 0, slice(0, tokens), {}, []

    def keys_and_values(self, fresh):
        """What the queries see of every token, NaN for those they do not see."""
        absent = torch.full((2, fresh.shape[1], self.tokens, fresh.shape[-1]), float("nan"))
        current = self.steps.setdefault(self.step, absent.clone())
        current[:, :, self.now] = fresh
        own = absent.clone()
        own[:, :, self.now] = fresh
        if self.method == "naive":
            return own
        x = current if self.method == "pipefusion" else own  # pipefusion: patches up to this one; distrifusion: this one
        one, two = self.steps.get(self.step - 1, absent), self.steps.get(self.step - 2, absent)
        old = one
        if self.kv == "predict":
            alpha = fit(*(of[:, :, self.given:] for of in (x, one, two)))
            self.alphas.append(alpha)
            old = torch.where(two.isnan(), one, one + alpha * (one - two))
        return torch.where(x.isnan(), old, x)

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, **unused):
        batch, length, width = hidden_states.shape
        query, fresh = attn.to_q(hidden_states), torch.stack([attn.to_k(hidden_states), attn.to_v(hidden_states)])
        seen = self.keys_and_values(fresh)
        seen = seen[:, :, ~seen[0, 0, :, 0].isnan()]
        heads = [x.view(batch, -1, attn.heads, width // attn.heads).transpose(1, 2) for x in (query, seen[0], seen[1])]
        out = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(batch, length, width)
        return attn.to_out[1](attn.to_out[0](out))


def forward(model, attentions, latents, step, rows, caption, mask, timestep, added):
    """The model's prediction [b, 8, 2 * rows, w] for the token rows `rows`, by the model's own submodules."""
    columns, p = latents.shape[-1] // model.config.patch_size, model.config.patch_size
    now = slice(rows[0] * columns, rows[1] * columns)
    hidden = model.pos_embed(latents)[:, now]
    modulation, embedded = model.adaln_single(timestep, added, batch_size=hidden.shape[0], hidden_dtype=hidden.dtype)
    caption = model.caption_projection(caption)
    bias = ((1 - mask.to(hidden.dtype)) * -10000.0)[:, None]
    for block, attention in zip(model.transformer_blocks, attentions):
        attention.step, attention.now = step, now
        hidden = block(hidden, encoder_hidden_states=caption, encoder_attention_mask=bias, timestep=modulation)
    shift, scale = (model.scale_shift_table[None] + embedded[:, None]).chunk(2, dim=1)
    hidden = model.proj_out(model.norm_out(hidden) * (1 + scale) + shift)
    hidden = hidden.reshape(-1, rows[1] - rows[0], columns, p, p, model.config.out_channels)
    return torch.einsum("nhwpqc->nchpwq", hidden).reshape(hidden.shape[0], model.config.out_channels, (rows[1] - rows[0]) * p, columns * p)


def split(rows, patches):
    """Runs of token rows, the first ones longer where they do not divide."""
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(rows), patches)])
    return [(int(e - len(part)), int(e)) for e, part in zip(ends, np.array_split(np.arange(rows), patches))]


def denoise(pipe, case, attention=PatchAttention):
    """Final latents of `case`, which has `method`, `patches`, `warmup` and `kv` beside what `pipeline` takes, and maybe `exchange` naive;
    and the blocks' attentions."""
    model, guided, warmup = pipe.transformer, case["guidance"] > 1, case["warmup"]
    method = "naive" if case.get("exchange") == "naive" else case["method"]
    caption, mask, negative, negative_mask = pipe.encode_prompt(
        case["prompts"], guided, negative_prompt=case["negative_prompt"], num_images_per_prompt=case["n"], max_sequence_length=case["max_sequence_length"])
    if guided:
        caption, mask = torch.cat([negative, caption]), torch.cat([negative_mask, mask])
    height, width, count = case["height"] // 8, case["width"] // 8, len(case["prompts"]) * case["n"]
    rows = split(height // 2, case["patches"])
    scheduler = SCHEDULERS[case["scheduler"]](**{**SCHEDULER, **case["config"]})
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
    attentions = [attention(height // 2 * width // 2, method, case["kv"]) for _ in model.transformer_blocks]
    before = [block.attn1.processor for block in model.transformer_blocks]
    for block, processor in zip(model.transformer_blocks, attentions):
        block.attn1.set_processor(processor)
    try:
        for step, t in enumerate(scheduler.timesteps):
            # a synchronous step computes all rows in one call; the sampler steps each patch by itself all the same
            for first, last in [(0, len(rows))] if step < warmup else [(m, m + 1) for m in range(len(rows))]:
                part = (rows[first][0], rows[last - 1][1])
                x = torch.cat([latents] * 2) if guided else latents
                out = forward(model, attentions, steppers[first].scale_model_input(x, t), step, part, caption, mask, t[None].expand(x.shape[0]), added)
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
    return latents, attentions


def make_book(book, cases):
    """Adds every (name, changes) of `cases`; checks that a case is synchronous exactly where it must be."""
    pipes, wholes = {}, {}
    for name, changes in cases:
        case = {**DEFAULTS, "method": book.name, "kv": "stale", **changes}
        pipe = pipes.setdefault(case["checkpoint"], load(case["checkpoint"]))
        latents, attentions = denoise(pipe, case)
        key = str({k: v for k, v in case.items() if k not in ("patches", "warmup", "kv")})
        whole = wholes[key] if key in wholes else wholes.setdefault(key, draw(pipe, case))
        drift = float((latents - whole).abs().max() / (whole.max() - whole.min()))
        assert torch.isfinite(latents).all()
        assert (drift < 1e-5) == (case["patches"] == 1 or case["warmup"] >= case["steps"]), (name, drift)
        alphas = [float(a) for attention in attentions for fitted in attention.alphas for a in fitted.flatten()]
        inside = f", {sum(0 < a < 1 for a in alphas)} of {len(alphas)} α inside (0, 1)" if alphas else ""
        print(f"  {name}: drift {drift:.2e}{inside}", flush=True)
        book.case(name, {**case, "rows": split(case["height"] // 16, case["patches"]), "drift": drift}, {"latents": latents})
    book.save()
