"""The oracle of step caches by patches: PipeFusion and DistriFusion on diffusers' own blocks, where each item's patch may leave blocks out and keeps the K,V it had."""
import torch

import patches
from checkpoints import load
from common import SCHEDULER, Book
from patches import PatchAttention, fit, split
from pipeline import DEFAULTS, draw
from step_cache import Decisions, TooNear


class KeepingAttention(PatchAttention):
    """Rows that a step leaves out stay as they are: of each token its newest keys and values, and those before, as the step finds them."""

    def __init__(self, tokens, method, kv):
        super().__init__(tokens, method, kv)
        self.found_at = None

    def keys_and_values(self, fresh):
        if self.found_at is None:
            absent = torch.full((2, fresh.shape[1], self.tokens, fresh.shape[-1]), float("nan"))
            self.newest, self.before = absent, absent.clone()
        if self.found_at != self.step:
            self.found_at, self.one, self.two, self.current = self.step, self.newest.clone(), self.before.clone(), torch.full_like(self.newest, float("nan"))
        own = torch.full_like(self.newest, float("nan"))
        own[:, :, self.now] = self.current[:, :, self.now] = fresh
        self.before[:, :, self.now], self.newest[:, :, self.now] = self.newest[:, :, self.now], fresh
        x = self.current if self.method == "pipefusion" else own
        old = self.one
        if self.kv == "predict":
            old = torch.where(self.two.isnan(), self.one, self.one + fit(x, self.one, self.two) * (self.one - self.two))
        return torch.where(x.isnan(), old, x)


class CachedModel:
    """In `patches.forward`'s place: a batch item at a time, with attentions of its own."""

    def __init__(self, case, decisions):
        self.case, self.decisions, self.attentions, self.kept = case, decisions, {}, {}
        self.patches = split(case["height"] // 16, case["patches"])

    def __call__(self, model, _, latents, step, rows, caption, mask, timestep, added):
        return torch.cat([self.one(model, item, step, rows, latents[item:item + 1], caption[item:item + 1], mask[item:item + 1], timestep[item:item + 1],
                                   {k: v if v is None else v[item:item + 1] for k, v in added.items()}) for item in range(latents.shape[0])])

    def one(self, model, item, step, rows, latents, caption, mask, timestep, added):
        columns = latents.shape[-1] // model.config.patch_size
        if item not in self.attentions:
            self.attentions[item] = [KeepingAttention(latents.shape[-2] // 2 * columns, self.case["method"], self.case["kv"]) for _ in model.transformer_blocks]
        for block, attention in zip(model.transformer_blocks, self.attentions[item]):
            block.attn1.set_processor(attention)
        self.decisions.item = item
        before = [block.forward for block in model.transformer_blocks]
        try:
            last = len(before) - 1
            for index, block in enumerate(model.transformer_blocks):
                block.forward = self.around(index, last, block, before[index], item, step, rows, columns)
            return patches_forward(model, self.attentions[item], latents, step, rows, caption, mask, timestep, added)
        finally:
            for block in model.transformer_blocks:
                del block.forward

    def around(self, index, last, block, forward, item, step, rows, columns):
        first_block = self.case["step_cache"] == "first-block"

        def run(hidden, **kwargs):
            if index == 0:
                out = forward(hidden, **kwargs) if first_block else None
                self.skips = self.decide(item, step, rows, columns, out - hidden if first_block else self.modulated(block, hidden, kwargs["timestep"]))
                self.start = out if first_block else hidden
                if first_block:
                    return out
            if not self.skips:
                out = forward(hidden, **kwargs)
                if index == last:
                    self.each(item, rows, columns, lambda state, own: state.update(residual=(out - self.start)[:, own]))
                return out
            return hidden + self.kept[item, rows]["residual"] if index == last else hidden
        return run

    def modulated(self, block, hidden, timestep):
        shift, scale = (block.scale_shift_table[None] + timestep.reshape(1, 6, -1)).chunk(6, dim=1)[:2]
        return block.norm1(hidden) * (1 + scale) + shift

    def each(self, item, rows, columns, do):
        """For every patch of the rows: its state, and where its tokens are in the call."""
        for patch in self.patches:
            if rows[0] <= patch[0] and patch[1] <= rows[1]:
                do(self.kept.setdefault((item, patch), dict(sum=0.0)), slice((patch[0] - rows[0]) * columns, (patch[1] - rows[0]) * columns))

    def decide(self, item, step, rows, columns, signal):
        adds_up, state = self.case["step_cache"] == "teacache", self.kept.get((item, rows), {})
        whole = step < self.case["warmup"]
        skips = False
        if not whole and "signal" in state and not (adds_up and step == self.case["steps"] - 1):
            change = ((signal - state["signal"]).abs().mean() / state["signal"].abs().mean()).item()
            state["sum"] = state["sum"] + change if adds_up else change
            skips = state["sum"] < self.decisions.threshold
            self.decisions.note(state["sum"], skips)
            self.counts[step] += skips
        if not skips or adds_up:
            self.each(item, rows, columns, lambda own_state, own: own_state.update(signal=signal[:, own]))
        if not skips:
            self.each(item, rows, columns, lambda own_state, own: own_state.update(sum=0.0))
        return skips


patches_forward = patches.forward
WIDE = dict(height=112, width=48, seed=3, negative_prompt="a dog", steps=10)
TWO = dict(prompts=["a red circle", "a tree"], width=48, seed=4, steps=8)
CASES = [(f"{method}_{kv}_{cache}_{name}m{count}", dict(changes, method=method, kv=kv, patches=count, warmup=warmup, step_cache=cache, threshold=threshold))
         for method in ("pipefusion", "distrifusion") for kv in ("stale", "predict")
         for name, count, warmup, cache, threshold, changes in (("", 4, 1, "first-block", 0.2, WIDE), ("", 3, 2, "teacache", 0.4, WIDE),
                                                                ("two_", 3, 0, "first-block", 0.25, TWO))]


def make():
    book = Book("step_cache_patches", "As `pipefusion` and `distrifusion`, with a step cache: each batch item and patch decides for itself, the first `warmup` steps are "
                "whole and never left out; a patch whose blocks were left out keeps the K, V it had. `skipped_by_step`: how many items' patches were.", beta=SCHEDULER)
    for name, changes in CASES:
        case, latents = {**DEFAULTS, **changes}, None
        pipe = load(case["checkpoint"])
        while latents is None:
            decisions = Decisions(case["threshold"])
            cached = CachedModel(case, decisions)
            cached.counts = [0] * case["steps"]
            patches.forward = cached
            try:
                latents, _ = patches.denoise(pipe, case)
            except TooNear:
                case["threshold"] = round(case["threshold"] * 1.01, 6)
            finally:
                patches.forward = patches_forward
        plain, _ = patches.denoise(pipe, case)
        away = ((latents - plain).abs().max() / (plain.max() - plain.min())).item()
        print(f"  {name}: skipped {cached.counts}, {away:.2g} of the range away; {min(v for _, v, _ in decisions.seen):.3f} to {max(v for _, v, _ in decisions.seen):.3f}", flush=True)
        assert 0 < sum(cached.counts) < len(decisions.seen) and away > 1e-3 and torch.isfinite(latents).all(), name
        book.case(name, {**case, "skipped_by_step": cached.counts}, {"latents": latents})
    book.save()
