"""PipeFusion and DistriFusion of videos on one process, on diffusers' own Wan blocks: patches are runs of token rows, frame after frame."""
import copy

import torch
import torch.nn.functional as F

import wan
from common import Book, generator
from patches import PatchAttention, split


class WanPatchAttention(PatchAttention):
    rotary = None  # of the rows at hand

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None, **unused):
        batch, length, width = hidden_states.shape

        def turned(x):
            x1, x2 = x.view(batch, length, attn.heads, -1, 2).unbind(-1)
            cos, sin = rotary_emb[0][..., 0::2], rotary_emb[1][..., 1::2]
            return torch.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], -1).reshape(batch, length, width)

        query, key = turned(attn.norm_q(attn.to_q(hidden_states))), turned(attn.norm_k(attn.to_k(hidden_states)))
        seen = self.keys_and_values(torch.stack([key, attn.to_v(hidden_states)]))
        seen = seen[:, :, ~seen[0, 0, :, 0].isnan()]
        heads = [x.view(batch, -1, attn.heads, width // attn.heads).transpose(1, 2) for x in (query, seen[0], seen[1])]
        return attn.to_out[0](F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(batch, length, width))


def forward(model, attentions, latents, step, rows, text, timestep, image=None):
    """The prediction [b, C, 2 * rows, w] for the token rows `rows` of the tall picture, by the model's own submodules; timestep [b], or [b, tokens]."""
    batch, _, _, _, width = latents.shape
    columns = width // 2
    now = slice(rows[0] * columns, rows[1] * columns)
    rotary = [part[:, now] for part in model.rope(latents)]
    hidden = model.patch_embedding(latents).flatten(2).transpose(1, 2)[:, now].contiguous()
    each = timestep.shape[1] if timestep.ndim == 2 else None
    temb, modulation, text, image = model.condition_embedder(timestep.flatten(), text, image, timestep_seq_len=each)
    modulation = modulation.unflatten(-1, (6, -1))
    temb, modulation = (temb[:, None], modulation) if each is None else (temb[:, now], modulation[:, now])
    if image is not None:
        text = torch.cat([image, text], 1)
    for block, attention in zip(model.blocks, attentions):
        attention.step, attention.now = step, now
        hidden = block(hidden, text, modulation, rotary)
    shift, scale = (model.scale_shift_table[:, None] + temb[:, :, None]).unbind(2)
    hidden = model.proj_out(model.norm_out(hidden) * (1 + scale) + shift)
    hidden = hidden.reshape(batch, rows[1] - rows[0], columns, 2, 2, -1)
    return torch.einsum("nhwpqc->nchpwq", hidden).reshape(batch, hidden.shape[5], -1, width)


def denoise(pipe, case, given=lambda latents: latents, given_mask=None, image=None):
    """Final latents [1, C, f·h, w]. The second of two transformers begins with a step of all rows, from keys and values of its own. `given`: the model's input from
    latents [1, C, f, h, w]; given_mask [1, 1, f, h, w]: 0 where a frame is given, and stays."""
    guided = case["guidance"] > 1
    boundary = (pipe.config.boundary_ratio or 0) * pipe.scheduler.config.num_train_timesteps
    positive, negative = pipe.encode_prompt(case["prompts"], case["negative_prompt"], guided, max_sequence_length=case["max_sequence_length"])
    text = torch.cat([negative, positive]) if guided else positive
    side = pipe.vae_scale_factor_spatial
    shape = (1, pipe.vae.config.z_dim, (case["num_frames"] - 1) // 4 + 1, case["height"] // side, case["width"] // side)
    rows = split(shape[2] * shape[3] // 2, case["patches"])
    scheduler = copy.deepcopy(pipe.scheduler)
    scheduler.set_timesteps(case["steps"])
    scheduler.set_begin_index(0)
    steppers = [copy.deepcopy(scheduler) for _ in rows]
    tall = torch.randn(shape, generator=generator(case["seed"])).reshape(1, shape[1], -1, shape[4])
    twice = lambda x: torch.cat([x] * 2) if guided else x
    of_tokens = None if given_mask is None else given_mask[0, 0, :, ::2, ::2].flatten()
    of_models = []
    for model in [m for m in (pipe.transformer, pipe.transformer_2) if m is not None]:
        attentions = [WanPatchAttention(tall.shape[2] // 2 * tall.shape[3] // 2, case["method"], case["kv"]) for _ in model.blocks]
        for attention in attentions:
            attention.given = 0 if of_tokens is None else int((of_tokens == 0).sum())
        of_models.append((model, attentions, [block.attn1.processor for block in model.blocks]))
        for block, processor in zip(model.blocks, attentions):
            block.attn1.processor = processor
    former = 0
    for step, t in enumerate(scheduler.timesteps):
        now = int(t < boundary)
        model, attentions, _ = of_models[now]
        scale = case.get("guidance_2", case["guidance"]) if now else case["guidance"]
        whole, former = step < case["warmup"] or now != former, now
        for first, last in [(0, len(rows))] if whole else [(m, m + 1) for m in range(len(rows))]:
            part = (rows[first][0], rows[last - 1][1])
            x = twice(given(tall.reshape(shape)))
            times = t.expand(x.shape[0]) if of_tokens is None else (of_tokens * t).expand(x.shape[0], -1)
            out = forward(model, attentions, x, step, part, text, times, None if image is None else twice(image))
            if guided:
                uncond, cond = out.chunk(2)
                out = uncond + scale * (cond - uncond)
            for m in range(first, last):
                mine, offset = slice(2 * rows[m][0], 2 * rows[m][1]), 2 * part[0]
                v = out[:, :, mine.start - offset:mine.stop - offset]
                tall[:, :, mine] = steppers[m].step(v, t, tall[:, :, mine].clone(), return_dict=False)[0]
    for model, _, before in of_models:
        for block, processor in zip(model.blocks, before):
            block.attn1.processor = processor
    return tall if given_mask is None else given(tall.reshape(shape)).reshape(tall.shape)


# Nine rows of tokens, three a frame: whole frames, parts of frames, and runs across.
CASES = [(method, kv, patches, warmup) for method in ("pipefusion", "distrifusion") for kv, patches, warmup in
         (("stale", 3, 1), ("stale", 4, 0), ("predict", 2, 1), ("predict", 9, 1), ("stale", 3, 6))]


def make():
    pipe = wan.load()
    book = Book("wan_patches", "As `wan`, by PipeFusion or DistriFusion with `patches` of the tall picture's token rows and `warmup` synchronous steps: latents [1,4,f·h,w] are the final ones. "
                "`drift`: the largest distance from the synchronous pipeline's latents, as a fraction of their range.")
    for number, (method, kv, patches, warmup) in enumerate(CASES):
        case = {**wan.DEFAULTS, "steps": 6, "method": method, "kv": kv, "patches": patches, "warmup": warmup, "seed": 20 + number % 3, "guidance": 1.0 if number % 4 == 1 else 4.0}
        latents = denoise(pipe, case)
        whole = pipe(prompt=case["prompts"], negative_prompt="", height=48, width=64, num_frames=9, num_inference_steps=6, guidance_scale=case["guidance"],
                     generator=generator(case["seed"]), max_sequence_length=24, output_type="latent").frames.reshape(latents.shape)
        drift = float((latents - whole).abs().max() / (whole.max() - whole.min()))
        assert (drift < 1e-5) == (warmup >= 6), drift
        print(f"  {method} {kv} {patches} {warmup}: drift {drift:.2e}", flush=True)
        book.case(f"{method}_{kv}_m{patches}_k{warmup}", {**case, "drift": drift}, {"latents": latents})
    book.save()
