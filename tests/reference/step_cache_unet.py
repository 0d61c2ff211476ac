"""Pictures with step caches on diffusers' own U-Nets, whole and by patches: where an item skips, its first layer and its last two are called one by one, with what came up to these last."""
import threading

import torch

from common import SCHEDULER, Book
from step_cache import Decisions
from unet_jobs import DEFAULTS, PATCHES, draw, load
from unet_patches import PatchedUNet


class CachedUNet:
    """In the U-Net's place: a batch item at a time, whole or with a thread for each patch."""

    def __init__(self, unet, case, decisions):
        self.unet, self.case, self.decisions, self.plain, self.items, self.calls = unet, case, decisions, unet.forward, {}, 0
        self.patched = PatchedUNet(unet, case["height"] // 8, case["width"] // 8, case["patches"], case["group_norm"]) if "patches" in case else None
        self.first, self.last = unet.down_blocks[0], unet.up_blocks[-1]
        self.last.resnets[-2].register_forward_pre_hook(self.see_inner)
        unet.forward = self.forward

    def forward(self, sample, timestep, *args, return_dict=True, **kwargs):
        if threading.current_thread() is not threading.main_thread():
            return self.patch(sample, timestep, **kwargs)
        self.calls += 1
        outs = []
        for item in range(sample.shape[0]):
            added = kwargs.get("added_cond_kwargs")
            own = dict(encoder_hidden_states=kwargs["encoder_hidden_states"][item:item + 1], added_cond_kwargs=added and {k: v[item:item + 1] for k, v in added.items()})
            outs.append(self.one(item, sample[item:item + 1], timestep, own))
        return (torch.cat(outs),)

    def one(self, item, sample, timestep, own):
        patches = self.case.get("patches", 1)
        self.of = self.items.setdefault(item, dict(sum=0.0, inner=[None] * patches, old={}))
        self.decisions.item, self.signals, self.count = item, [None] * patches, patches
        synchronous = self.calls <= self.case.get("warmup", 0)
        self.forced = self.calls == 1 or synchronous or (self.case["step_cache"] == "teacache" and self.calls == self.case["steps"])
        if self.patched is None:
            self.place = lambda: 0
            return self.patch(sample, timestep, **own)[0]
        self.place = lambda: self.patched.local.patch
        self.patched.old = self.of["old"]
        return self.patched.run(sample, "sync" if synchronous else "stale", timestep=timestep, **own)

    def meet(self):
        if self.patched is not None:
            self.patched.barrier.wait(60)

    def patch(self, sample, timestep, encoder_hidden_states, added_cond_kwargs=None, **_):
        unet, place = self.unet, self.place()
        emb = unet.time_embedding(unet.get_time_embed(sample, timestep))
        more = unet.get_aug_embed(emb, encoder_hidden_states, added_cond_kwargs)
        emb = emb if more is None else emb + more

        def layer(block, index, x):
            x = block.resnets[index](x, emb)
            return block.attentions[index](x, encoder_hidden_states=encoder_hidden_states, return_dict=False)[0] if hasattr(block, "attentions") else x
        entered = unet.conv_in(sample)
        first = layer(self.first, 0, entered)
        self.signals[place] = first - entered
        self.meet()
        if place == 0:
            self.decide()
        self.meet()
        if self.of["skips"]:
            x = self.of["inner"][place]
            for index, skip in ((-2, first), (-1, entered)):
                x = layer(self.last, index, torch.cat([x, skip], 1))
            out = unet.conv_out(unet.conv_act(unet.conv_norm_out(x)))
        else:
            self.width = first.shape[1]
            out = self.plain(sample, timestep, encoder_hidden_states, added_cond_kwargs=added_cond_kwargs, return_dict=False)[0]
        return type("Output", (tuple,), dict(sample=out))((out,))

    def see_inner(self, module, args):
        if not self.of["skips"]:
            self.of["inner"][self.place()] = args[0][:, :-self.width]

    def decide(self):
        of, threshold = self.of, self.decisions.threshold
        adds_up = self.case["step_cache"] == "teacache"
        of["skips"] = False
        if not self.forced:
            difference = sum((now - then).abs().double().sum() for now, then in zip(self.signals, of["signals"]))
            change = (difference / sum(then.abs().double().sum() for then in of["signals"])).item()
            of["sum"] = of["sum"] + change if adds_up else change
            of["skips"] = of["sum"] < threshold if adds_up else of["sum"] <= threshold
            self.decisions.note(of["sum"], of["skips"])
        else:
            self.decisions.seen.append((self.decisions.item, 0.0, False))
        if not of["skips"]:
            of["sum"] = 0.0
        if adds_up or not of["skips"]:
            of["signals"] = list(self.signals)


LONG = dict(steps=10, seed=31)
PAIR = dict(prompts=["a red circle", "a tree"], negative_prompt="dull", steps=8, seed=32)
BY_PATCHES = dict(PATCHES, steps=10, warmup=2, height=96)
CASES = [
    ("sdxl_first_block", "tiny-sdxl", "first-block", 0.24, LONG),
    ("sdxl_two_teacache", "tiny-sdxl", "teacache", 0.51, PAIR),
    ("sdxl_deep_first_block", "tiny-sdxl-deep", "first-block", 0.21, LONG),
    ("sd15_two_first_block", "tiny-sd15", "first-block", 0.21, PAIR),
    ("sd15_teacache", "tiny-sd15", "teacache", 0.51, LONG),
    ("sdxl_patches_first_block", "tiny-sdxl", "first-block", 0.24, dict(BY_PATCHES, warmup=1)),
    ("sd15_patches_teacache", "tiny-sd15", "teacache", 0.51, dict(BY_PATCHES, patches=2, prompts=["a red circle", "a tree"])),
]


def make():
    book = Book("step_cache_unet", "As step_cache, of U-Nets: what the first layer adds is compared; a skipped call computes that layer and the last two.", beta=SCHEDULER)
    for name, checkpoint, cache, threshold, changes in CASES:
        case = {"checkpoint": checkpoint, **DEFAULTS, "image": False, **changes, "step_cache": cache, "threshold": threshold}
        plain, pipe, decisions = draw(load(checkpoint), case), load(checkpoint), Decisions(threshold)
        CachedUNet(pipe.unet, case, decisions)
        latents = draw(pipe, case)
        case["skipped_by_step"] = [0] * case["steps"]
        asked = {}
        for item, _, skipped in decisions.seen:
            case["skipped_by_step"][asked.setdefault(item, 0)] += skipped
            asked[item] += 1
        away = ((latents - plain).abs().max() / (plain.max() - plain.min())).item()
        print(f"  {name}: skipped {case['skipped_by_step']}, {away:.2g} of the range away; values {sorted(round(v, 3) for _, v, _ in decisions.seen)}", flush=True)
        assert 0 < sum(case["skipped_by_step"]) and away > 1e-3 and torch.isfinite(latents).all(), name
        book.case(name, case, {"latents": latents})
    book.save()
