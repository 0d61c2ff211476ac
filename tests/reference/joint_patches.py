"""PipeFusion and DistriFusion of joint-attention models on one process, on diffusers' own blocks: text is computed with patch 0."""
import copy

import torch
import torch.nn.functional as F
from diffusers import StableDiffusion3Pipeline
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from common import Book, generator
from families import DEFAULTS, draw, load
from patches import PatchAttention, split


def attend(kept, heads, query, key, value):
    """query, key, value [b, tokens, H, d] of the tokens `kept.now`, over what `kept` has of the others."""
    batch, length = query.shape[:2]
    seen = kept.keys_and_values(torch.stack([key.flatten(2), value.flatten(2)]))
    seen = seen[:, :, ~seen[0, 0, :, 0].isnan()]
    q, k, v = query.transpose(1, 2), *(x.view(batch, -1, heads, query.shape[-1]).transpose(1, 2) for x in seen)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, -1)


def heads_of(attn, x, names, norms):
    out = [getattr(attn, name)(x).unflatten(-1, (attn.heads, -1)) for name in names]
    for i, norm in enumerate(norms):
        if getattr(attn, norm, None) is not None:
            out[i] = getattr(attn, norm)(out[i])
    return out


PICTURE, TEXT = (("to_q", "to_k", "to_v"), ("norm_q", "norm_k")), (("add_q_proj", "add_k_proj", "add_v_proj"), ("norm_added_q", "norm_added_k"))


def joint_block(block, kept, second, text, picture, temb, rotary, temb_text=None):
    """One block of two streams; `text` may have no tokens. `temb_text`: where the text has one of its own."""
    temb_text = temb if temb_text is None else temb_text
    count, dual, last = text.shape[1], getattr(block, "use_dual_attention", False), getattr(block, "context_pre_only", False)
    modulated = block.norm1(picture, emb=temb)
    normal, gate, shift, scale, gate_forward = modulated[:5]
    qkv = heads_of(block.attn, normal, *PICTURE)
    if rotary is not None:
        qkv[:2] = (apply_rotary_emb(x, tuple(r[count:] for r in rotary), sequence_dim=1) for x in qkv[:2])
    if count:
        given = block.norm1_context(text, temb_text) if last else block.norm1_context(text, emb=temb_text)
        own = heads_of(block.attn, given if last else given[0], *TEXT)
        if rotary is not None:
            own[:2] = (apply_rotary_emb(x, tuple(r[:count] for r in rotary), sequence_dim=1) for x in own[:2])
        qkv = [torch.cat(pair, dim=1) for pair in zip(own, qkv)]
    out = attend(kept, block.attn.heads, *qkv)
    picture = picture + gate[:, None] * block.attn.to_out[0](out[:, count:])
    if dual:
        normal2, gate2 = modulated[5:]
        picture = picture + gate2[:, None] * block.attn2.to_out[0](attend(second, block.attn.heads, *heads_of(block.attn2, normal2, *PICTURE)))
    picture = picture + gate_forward[:, None] * block.ff(block.norm2(picture) * (1 + scale[:, None]) + shift[:, None])
    if count and not last:
        _, gate, shift, scale, gate_forward = given
        text = text + gate[:, None] * block.attn.to_add_out(out[:, :count])
        text = text + gate_forward[:, None] * block.ff_context(block.norm2_context(text) * (1 + scale[:, None]) + shift[:, None])
    return text, picture


def single_block(block, kept, hidden, temb, rotary):
    normal, gate = block.norm(hidden, emb=temb)
    q, k, v = heads_of(block.attn, normal, *PICTURE)
    q, k = (apply_rotary_emb(x, rotary, sequence_dim=1) for x in (q, k))
    out = torch.cat([attend(kept, block.attn.heads, q, k, v), block.act_mlp(block.proj_mlp(normal))], dim=2)
    return hidden + gate[:, None] * block.proj_out(out)


class Picture:
    """A pipeline's transformer over patches: `predict` gives the rows of one micro-step. `beside`: channels that stand beside the packed latents."""

    def __init__(self, pipe, case, beside=None):
        self.pipe, self.model, self.flux, self.beside = pipe, pipe.transformer, not isinstance(pipe, StableDiffusion3Pipeline), beside
        self.rows, self.columns = case["height"] // 16, case["width"] // 16
        self.guided, self.scale = case["guidance"] > 1 and not self.flux, case["guidance"]
        count = case["n"] * len(case["prompts"])
        if self.flux:
            self.text, self.pooled, text_ids = pipe.encode_prompt(case["prompts"], None, num_images_per_prompt=case["n"],
                                                                  max_sequence_length=case["max_sequence_length"])
            ids = pipe._prepare_latent_image_ids(1, self.rows, self.columns, "cpu", torch.float32)
            self.rotary = self.model.pos_embed(torch.cat([text_ids, ids]))
        else:
            self.text, negative, self.pooled, negative_pooled = pipe.encode_prompt(
                case["prompts"], None, None, do_classifier_free_guidance=self.guided, negative_prompt=case["negative_prompt"],
                num_images_per_prompt=case["n"], max_sequence_length=case["max_sequence_length"])
            if self.guided:
                self.text, self.pooled = torch.cat([negative, self.text]), torch.cat([negative_pooled, self.pooled])
        self.tokens, self.count = self.text.shape[1], count
        self.text = self.model.context_embedder(self.text)
        everything, picture = self.tokens + self.rows * self.columns, self.rows * self.columns
        blocks = [*self.model.transformer_blocks, *getattr(self.model, "single_transformer_blocks", [])]
        self.kept = [PatchAttention(everything, case["method"], case["kv"]) for _ in blocks]
        self.second = [PatchAttention(picture, case["method"], case["kv"]) for _ in blocks]

    def predict(self, latents, step, t, rows):
        """[n, C, 2 * rows, w] of token rows [from, to)."""
        model, texts = self.model, self.tokens if rows[0] == 0 else 0
        own = torch.arange(rows[0] * self.columns, rows[1] * self.columns)
        everything = torch.cat([torch.arange(texts), self.tokens + own])
        for kept, second in zip(self.kept, self.second):
            kept.step, kept.now, second.step, second.now = step, everything, step, own
        x = torch.cat([latents] * 2) if self.guided else latents
        batch, channels, height, width = x.shape
        text, temb_of = self.text[:, :texts], model.time_text_embed
        if self.flux:
            packed = self.pipe._pack_latents(x, batch, channels, height, width)
            if self.beside is not None:
                packed = torch.cat([packed, self.beside], dim=2)
            picture = model.x_embedder(packed)[:, own]
            time = (t.expand(batch) / 1000) * 1000
            guidance = [torch.full([batch], self.scale) * 1000] if model.config.guidance_embeds else []
            temb, rotary = temb_of(time, *guidance, self.pooled), tuple(r[everything] for r in self.rotary)
        else:
            picture, temb, rotary = model.pos_embed(x)[:, own], temb_of(t.expand(batch), self.pooled), None
        kept = iter(self.kept)
        for block, second in zip(model.transformer_blocks, self.second):
            text, picture = joint_block(block, next(kept), second, text, picture, temb, rotary)
        if self.flux:
            hidden = torch.cat([text, picture], dim=1)
            for block in model.single_transformer_blocks:
                hidden = single_block(block, next(kept), hidden, temb, rotary)
            picture = hidden[:, texts:]
        out = model.proj_out(model.norm_out(picture, temb))
        high = 2 * (rows[1] - rows[0])
        if self.flux:
            out = self.pipe._unpack_latents(out, high * 8, width * 8, 8)
        else:
            out = out.reshape(batch, rows[1] - rows[0], self.columns, 2, 2, channels)
            out = torch.einsum("nhwpqc->nchpwq", out).reshape(batch, channels, high, width)
        if self.guided:
            negative, positive = out.chunk(2)
            out = negative + self.scale * (positive - negative)
        return out


def timesteps(pipe, case):
    scheduler = copy.deepcopy(pipe.scheduler)
    if not isinstance(pipe, StableDiffusion3Pipeline):
        config = scheduler.config
        mu = calculate_shift(case["height"] // 16 * (case["width"] // 16), config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
        sigmas = [1 - i * (1 - 1 / case["steps"]) / max(case["steps"] - 1, 1) for i in range(case["steps"])]
        scheduler.set_timesteps(sigmas=sigmas, mu=mu)
    else:
        scheduler.set_timesteps(case["steps"])
    scheduler.set_begin_index(0)
    return scheduler


def denoise(pipe, case, latents=None, beside=None):
    picture, scheduler = Picture(pipe, case, beside), timesteps(pipe, case)
    channels = pipe.transformer.config.in_channels // (4 if picture.flux else 1)
    if latents is None:
        latents = torch.randn(picture.count, channels, case["height"] // 8, case["width"] // 8, generator=generator(case["seed"]))
    rows = split(picture.rows, case["patches"])
    steppers = [copy.deepcopy(scheduler) for _ in rows]
    for step, t in enumerate(scheduler.timesteps):
        for first, last in [(0, len(rows))] if step < case["warmup"] else [(m, m + 1) for m in range(len(rows))]:
            part = (rows[first][0], rows[last - 1][1])
            out = picture.predict(latents, step, t, part)
            for m in range(first, last):
                mine, offset = slice(2 * rows[m][0], 2 * rows[m][1]), 2 * part[0]
                latents[:, :, mine] = steppers[m].step(out[:, :, mine.start - offset:mine.stop - offset], t, latents[:, :, mine].clone(), return_dict=False)[0]
    return latents


def cases():
    shapes = {"": {}, "five_rows_": dict(height=80, width=48, seed=2, prompts=["a blue tree"], steps=5), "two_": dict(prompts=["a cat", "a tree"], n=2, width=48, seed=4, steps=4)}
    for checkpoint in ("tiny-sd3", "tiny-sd35", "tiny-flux"):
        for method in ("pipefusion", "distrifusion"):
            for kv in ("stale", "predict"):
                for shape, patches, warmup in (("", 1, 0), ("", 2, 0), ("", 4, 1), ("five_rows_", 3, 1), ("five_rows_", 5, 2), ("two_", 2, 1)):
                    if kv == "predict" and patches == 1:
                        continue
                    name = f"{checkpoint.removeprefix('tiny-')}_{method}_{shape}m{patches}_k{warmup}_{kv}"
                    yield name, dict(checkpoint=checkpoint, method=method, kv=kv, patches=patches, warmup=warmup, **shapes[shape])


def add_cases(book, name, defaults, two, denoise, draw):
    """Adds to `book` cases of every method, kind of K, V and number of patches. `denoise(case)` returns the latents by patches, `draw(case)` those
    of the whole pipeline, which are the same for one patch alone; `two` are the prompts of the cases that have two."""
    shapes = {"": {}, "five_rows_": dict(height=80, width=48, seed=2, prompts=["a blue tree"], steps=5), "two_": dict(prompts=two, n=2, width=48, seed=4, steps=4)}
    wholes = {shape: draw({**defaults, **changes}) for shape, changes in shapes.items()}
    for method in ("pipefusion", "distrifusion"):
        for kv in ("stale", "predict"):
            for shape, count, warmup in (("", 1, 0), ("", 4, 1), ("five_rows_", 5, 2), ("two_", 2, 1)):
                if kv == "predict" and count == 1:
                    continue
                case = {**defaults, **shapes[shape], "method": method, "kv": kv, "patches": count, "warmup": warmup}
                named, latents, whole = f"{name}_{method}_{shape}m{count}_k{warmup}_{kv}", denoise(case), wholes[shape]
                drift = float((latents - whole).abs().max() / (whole.max() - whole.min()))
                assert torch.isfinite(latents).all() and (drift < 1e-5) == (count == 1), (named, drift)
                print(f"  {named}: drift {drift:.2e}", flush=True)
                book.case(named, {**case, "drift": drift}, {"latents": latents})


def make():
    book = Book("families_patches", "As `families`, by `method` with `patches` and `warmup` synchronous steps, K, V `kv`: see `pipefusion` and `distrifusion`. "
                "The text's tokens are computed once a step with patch 0, from what patch 0 sees. `drift`: distance from the synchronous latents by range.")
    pipes = {}
    for name, changes in cases():
        case = {**DEFAULTS, **changes}
        pipe = pipes.setdefault(case["checkpoint"], load(case["checkpoint"]))
        latents, whole = denoise(pipe, case), draw(pipe, case)
        drift = float((latents - whole).abs().max() / (whole.max() - whole.min()))
        assert torch.isfinite(latents).all()
        assert (drift < 1e-5) == (case["patches"] == 1), (name, drift)
        print(f"  {name}: drift {drift:.2e}", flush=True)
        book.case(name, {**case, "drift": drift}, {"latents": latents})
    book.save()
