"""Pictures with step caches: diffusers' own first-block cache, and TeaCache's rule put round diffusers' own blocks. Each item of a batch decides for itself."""
import torch
from diffusers import FluxPipeline, PixArtSigmaPipeline
from diffusers.hooks import FirstBlockCacheConfig, apply_first_block_cache
from diffusers.hooks.first_block_cache import FBCHeadBlockHook
from diffusers.hooks.hooks import CacheContext, _set_cache_context

from common import Book
from families import DEFAULTS, draw, load

POLYNOMIALS = {"tiny-flux": [4.98651651e+02, -2.83781631e+02, 5.58554382e+01, -3.82021401e+00, 2.64230861e-01]}
MARGIN = 1e-3  # of the threshold, that every decision lies away from it


class TooNear(Exception):
    """Rounding could turn a decision."""


class Decisions:
    """What was asked and answered, in order: (item, value that was compared, skipped)."""

    def __init__(self, threshold):
        self.threshold, self.seen, self.item = threshold, [], 0

    def note(self, value, skipped):
        if abs(value - self.threshold) <= MARGIN * self.threshold:
            raise TooNear(f"{value} is too near to {self.threshold}: take another threshold")
        self.seen.append((self.item, value, skipped))


def items_of(pipe):
    """The batch items of a call, each by itself: [(name, arguments)]."""
    def apart(count, value, index):
        whole = torch.is_tensor(value) and value.ndim > 0 and value.shape[0] == count
        return value[index:index + 1] if whole else value

    def split(args, kwargs):
        count = (args[0] if args else kwargs["hidden_states"]).shape[0]
        for index in range(count):
            named = {key: apart(count, value, index) for key, value in kwargs.items() if key not in ("img_ids", "txt_ids", "added_cond_kwargs")}
            rest = {key: kwargs[key] for key in ("img_ids", "txt_ids", "added_cond_kwargs") if key in kwargs}
            yield index, [apart(count, value, index) for value in args], {**named, **rest}
    return split


def by_item(pipe, decisions, around):
    """Calls the transformer with one batch item at a time, `around(item)` set."""
    model, forward = pipe.transformer, pipe.transformer.forward
    split = items_of(pipe)

    def apart(*args, **kwargs):
        outs = []
        for index, own_args, own_kwargs in split(args, kwargs):
            decisions.item = index
            around(index)
            outs.append(forward(*own_args, **{**own_kwargs, "return_dict": False})[0])
        return (torch.cat(outs),)
    model.forward = apart


def first_block(pipe, decisions):
    apply_first_block_cache(pipe.transformer, FirstBlockCacheConfig(threshold=decisions.threshold))
    decide = FBCHeadBlockHook._should_compute_remaining_blocks

    def noted(self, residual):
        state = self.state_manager.get_state()
        before = state.head_block_residual
        computes = decide(self, residual)
        if before is not None:
            decisions.note(((residual - before).abs().mean() / before.abs().mean()).item(), not computes)
        return computes
    FBCHeadBlockHook._should_compute_remaining_blocks = noted
    by_item(pipe, decisions, lambda item: _set_cache_context(pipe.transformer, CacheContext(f"item {item}")))
    return lambda: setattr(FBCHeadBlockHook, "_should_compute_remaining_blocks", decide)


class TeaCache:
    """Block 0 decides before it is computed; skipped blocks hand on what they are given, the last one adds what all of them added last."""

    def __init__(self, pipe, decisions, steps, polynomial):
        model = pipe.transformer
        self.flux = isinstance(pipe, FluxPipeline)
        self.blocks = [*model.transformer_blocks, *(model.single_transformer_blocks if self.flux else [])]
        self.decisions, self.steps, self.polynomial = decisions, steps, polynomial
        self.kept = {}  # by item: calls, sum, signal, residual
        for index, block in enumerate(self.blocks):
            block.forward = self.around(index, block, block.forward)
        by_item(pipe, decisions, lambda item: self.kept.setdefault(item, dict(calls=0, sum=0.0)))

    def signal(self, block, args, kwargs):
        if self.flux:
            return block.norm1(kwargs["hidden_states"], emb=kwargs["temb"])[0]
        hidden = args[0] if args else kwargs["hidden_states"]
        shift, scale = (block.scale_shift_table[None] + kwargs["timestep"].reshape(hidden.shape[0], 6, -1)).chunk(6, dim=1)[:2]
        return block.norm1(hidden) * (1 + scale) + shift

    def decide(self, signal):
        of = self.kept[self.decisions.item]
        if of["calls"] in (0, self.steps - 1):
            skips = False
        else:
            change = ((signal - of["signal"]).abs().mean() / of["signal"].abs().mean()).item()
            value = 0.0
            for factor in self.polynomial:
                value = value * change + factor
            of["sum"] += value
            skips = of["sum"] < self.decisions.threshold
            self.decisions.note(of["sum"], skips)
        if not skips:
            of["sum"] = 0.0
        of["signal"], of["calls"], of["skips"] = signal, of["calls"] + 1, skips

    def around(self, index, block, forward):
        def run(*args, **kwargs):
            hidden = args[0] if args else kwargs["hidden_states"]
            if index == 0:
                self.decide(self.signal(block, args, kwargs))
                self.first = hidden
            of, last = self.kept[self.decisions.item], index + 1 == len(self.blocks)
            if not of["skips"]:
                out = forward(*args, **kwargs)
                if last:
                    of["residual"] = (out[1] if self.flux else out) - self.first
                return out
            if last:
                hidden = hidden + of["residual"]
            return (kwargs["encoder_hidden_states"], hidden) if self.flux else hidden
        return run


LONG = dict(width=96, height=80, prompts=["a cat"], negative_prompt="a dog", guidance=3.0, seed=1, steps=12)
PAIR = dict(LONG, prompts=["a red circle", "a tree"], width=48, seed=2)
CASES = [
    ("flux_first_block", "tiny-flux", "first-block", 0.55, LONG),
    ("flux_first_block_long", "tiny-flux", "first-block", 0.65, dict(LONG, steps=16, seed=5)),
    ("flux_two_first_block", "tiny-flux", "first-block", 0.6, PAIR),
    ("flux_teacache", "tiny-flux", "teacache", 1.0, LONG),
    ("sigma_first_block", "tiny-sigma", "first-block", 0.2, LONG),
    ("sigma_two_first_block", "tiny-sigma", "first-block", 0.21, PAIR),
    ("sigma_teacache", "tiny-sigma", "teacache", 0.4, LONG),
]


def skipped_by_step(decisions, items, steps):
    """Counts of items; those that nothing was asked about, the first step and TeaCache's last, are computed."""
    counts, asked = [0] * steps, [0] * items
    for item, _, skipped in decisions.seen:
        asked[item] += 1
        counts[asked[item]] += skipped
    return counts


def make():
    book = Book("step_cache", "Whole pictures with step caches: final latents [n,C,h/8,w/8], and of each step how many batch items (branches x pictures) skipped the blocks. "
                "First-block cache: diffusers' own hooks. TeaCache: the published rule round diffusers' blocks, FLUX's published polynomial, else the change itself.")
    for name, checkpoint, cache, threshold, changes in CASES:
        case = {**DEFAULTS, "image": False, "checkpoint": checkpoint, **changes, "step_cache": cache, "threshold": threshold}
        pipe, decisions = load(checkpoint), Decisions(threshold)
        plain = draw(load(checkpoint), case)
        if cache == "first-block":
            undo = first_block(pipe, decisions)
        else:
            TeaCache(pipe, decisions, case["steps"], POLYNOMIALS.get(checkpoint, [1, 0]))
            undo = lambda: None
        latents = draw(pipe, case)
        undo()
        branches = 2 if isinstance(pipe, PixArtSigmaPipeline) else 1
        case["skipped_by_step"] = skipped_by_step(decisions, branches * len(case["prompts"]), case["steps"])
        away = ((latents - plain).abs().max() / (plain.max() - plain.min())).item()
        print(f"  {name}: skipped {case['skipped_by_step']}, {away:.2g} of the range away; values {sorted(round(v, 3) for _, v, _ in decisions.seen)}", flush=True)
        assert 0 < sum(case["skipped_by_step"]) and away > 1e-3 and torch.isfinite(latents).all(), name
        book.case(name, case, {"latents": latents})
    book.save()
