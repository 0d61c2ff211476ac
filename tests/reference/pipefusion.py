"""The PipeFusion oracle: patch m sees the newest keys and values of patches up to m, and the previous step's of the others."""
from common import SCHEDULER, Book
from patches import make_book

THIRD = dict(solver_order=3, algorithm_type="dpmsolver++")
DDIM = dict(clip_sample=False, set_alpha_to_one=False, steps_offset=1)


def stale():
    def case(name, patches, warmup, **changes):
        return f"{name}m{patches}_k{warmup}", dict(patches=patches, warmup=warmup, **changes)

    for patches in (1, 2, 3, 4):
        for warmup in (0, 1, 2):
            yield case("", patches, warmup)
    for patches, warmup in ((2, 0), (3, 1), (4, 2)):
        yield case("unguided_", patches, warmup, guidance=1.0, seed=1)
        yield case("five_rows_", patches, warmup, height=80, width=48, seed=2, prompts=["a blue tree"])
    for patches, warmup in ((2, 1), (3, 0), (4, 1), (7, 2)):
        yield case("seven_rows_", patches, warmup, height=112, width=48, seed=3, negative_prompt="a dog")
    yield case("two_prompts_", 3, 1, prompts=["a red circle", "a tree"], n=2, width=48, seed=4)
    yield case("all_warm_", 3, 8, seed=5)
    yield case("third_order_", 2, 1, seed=6, config=THIRD)
    yield case("ddim_", 2, 1, seed=7, scheduler="DDIMScheduler", config=DDIM)
    yield case("euler_", 3, 1, seed=8, scheduler="EulerDiscreteScheduler", config={})
    yield case("ms_", 3, 1, seed=9, checkpoint="tiny-pixart-1024", height=112, width=80)


PREDICTED = ["m1_k0", "m2_k0", "m2_k1", "m3_k1", "m3_k2", "m4_k0", "m4_k1", "m4_k2", "unguided_m2_k0", "unguided_m3_k1", "five_rows_m4_k2",
             "seven_rows_m3_k0", "seven_rows_m4_k1", "seven_rows_m7_k2", "two_prompts_m3_k1", "all_warm_m3_k8", "third_order_m2_k1", "ddim_m2_k1",
             "euler_m3_k1", "ms_m3_k1"]


def cases():
    all_stale = dict(stale())
    yield from all_stale.items()
    yield from ((f"{name}_predict", {**all_stale[name], "kv": "predict"}) for name in PREDICTED)


def make():
    make_book(Book("pipefusion", "As `pipeline`, by PipeFusion with `patches` and `warmup` synchronous steps: latents [n,4,h/8,w/8] are the final ones. "
                   "`rows`: token rows [from, to) of each patch. Patch m sees this step's K, V of patches up to m and the previous step's of the others; "
                   "with warmup 0, in step 0, patches after m are absent. `kv` predict: the previous step's K, V x1 are replaced by x1 + α (x1 − x2), x2 "
                   "the step before's, where there is x2; α per block, batch item and K or V, fitted on this step's rows so far, clamped to [0, 1]. "
                   "`drift`: the largest distance from the synchronous pipeline's latents, as a fraction of their range.", beta=SCHEDULER), cases())
