"""The oracle of DistriFusion's attention: patch m sees its own keys and values of this step and all others' of the previous one."""
from common import SCHEDULER, Book
from patches import make_book

DDIM = dict(clip_sample=False, set_alpha_to_one=False, steps_offset=1)
SEVEN = dict(height=112, width=48, seed=3, negative_prompt="a dog")


def cases():
    for kv in ("stale", "predict"):
        def case(name, patches, warmup, **changes):
            return f"{name}m{patches}_k{warmup}" + ("_predict" if kv == "predict" else ""), dict(patches=patches, warmup=warmup, kv=kv, **changes)

        yield case("", 1, 0)
        for patches in (2, 3, 4):
            for warmup in (0, 1, 2):
                yield case("", patches, warmup)
        for warmup in (0, 1, 2):
            yield case("seven_rows_", 7, warmup, **SEVEN)
        yield case("seven_rows_", 4, 1, **SEVEN)
        yield case("unguided_", 3, 1, guidance=1.0, seed=1)
        yield case("five_rows_", 2, 0, height=80, width=48, seed=2, prompts=["a blue tree"])
        yield case("two_prompts_", 3, 1, prompts=["a red circle", "a tree"], n=2, width=48, seed=4)
        yield case("all_warm_", 3, 8, seed=5)
        yield case("ddim_", 2, 1, seed=7, scheduler="DDIMScheduler", config=DDIM)
        yield case("euler_", 3, 1, seed=8, scheduler="EulerDiscreteScheduler", config={})
        if kv == "stale":
            yield case("naive_", 2, 0, exchange="naive")
            yield case("naive_seven_rows_", 4, 0, exchange="naive", **SEVEN)
        yield case("ms_", 3, 1, seed=9, checkpoint="tiny-pixart-1024", height=112, width=80)


def make():
    make_book(Book("distrifusion", "As `pipeline`, by DistriFusion's attention with `patches` and `warmup` synchronous steps: latents [n,4,h/8,w/8] are the "
                   "final ones. `rows`: token rows [from, to) of each patch. Patch m sees its own K, V of this step and the previous step's of all others, "
                   "those of patches computed earlier in this step, too; with warmup 0, in step 0, the others are absent. `kv` predict: as in `pipefusion`, "
                   "but α is fitted on the patch's own rows. `exchange` naive: the others' are absent in every step. `drift`: the largest distance from the synchronous pipeline's latents, as a fraction of "
                   "their range.", beta=SCHEDULER), cases())
