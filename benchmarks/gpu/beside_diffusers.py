"""One picture (or clip) of a model folder by diffusers: seconds of a step, of text and of decoding, peak memory, final latents.

    python3 benchmarks/gpu/beside_diffusers.py pixart FOLDER --device cuda --compile --latents FILE"""
import pathlib
import statistics
import time

import rows
from shapes import PROMPT, SHAPES, model_options, size_of, steps_of


def options():
    parser = model_options(__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--latents", type=pathlib.Path)
    return parser.parse_args()


class Clock:
    """Seconds between marks, each after all that the device had to do before it."""

    def __init__(self, device):
        self.device, self.marks = device, {}

    def mark(self, name):
        import torch
        if self.device != "cpu":
            torch.cuda.synchronize()
        self.marks.setdefault(name, []).append(time.perf_counter())

    def between(self, first, last):
        return self.marks[last][-1] - self.marks[first][0]


def watch(pipe, clock):
    """Marks around text, every model call and decoding; keeps what the decoder is handed."""
    kept, encode, decode = {}, pipe.encode_prompt, pipe.vae.decode
    network = getattr(pipe, "transformer", None) or pipe.unet

    def encoded(*args, **more):
        clock.mark("text")
        result = encode(*args, **more)
        clock.mark("text done")
        return result

    def decoded(latents, *args, **more):
        kept["latents"] = latents
        clock.mark("decode")
        result = decode(latents, *args, **more)
        clock.mark("decode done")
        return result

    pipe.encode_prompt, pipe.vae.decode = encoded, decoded
    hooks = [network.register_forward_pre_hook(lambda *_: clock.mark("call")), network.register_forward_hook(lambda *_: clock.mark("call done"))]

    def restore():
        pipe.encode_prompt, pipe.vae.decode = encode, decode
        for hook in hooks:
            hook.remove()
    return kept, restore


def plain_latents(pipe, latents):
    """As the sampler left them: the decoder is handed scaled and shifted ones."""
    import torch
    config = pipe.vae.config
    latents = latents.float()
    if getattr(config, "latents_std", None):
        view = (1, -1, 1, 1, 1)
        mean, deviation = (torch.tensor(values, device=latents.device).view(view) for values in (config.latents_mean, config.latents_std))
        return (latents - mean) / deviation
    return (latents - (getattr(config, "shift_factor", None) or 0)) * config.scaling_factor


def arguments(args):
    import torch
    height, width, frames = size_of(args.name, args.tiny)
    shape = SHAPES[args.name]
    asked = dict(prompt=PROMPT, height=height, width=width, num_inference_steps=args.steps or steps_of(args.name, args.tiny), guidance_scale=shape.guidance,
                 generator=torch.Generator().manual_seed(0))
    if args.name == "pixart":
        asked.update(use_resolution_binning=False, clean_caption=False)
    if args.name == "wan":
        asked["num_frames"] = frames
    return asked


def paint(args, pipe):
    clock = Clock(args.device)
    kept, restore = watch(pipe, clock)
    pipe(**arguments(args))
    restore()
    return clock, plain_latents(pipe, kept["latents"])


def load(args):
    import torch
    from diffusers import DiffusionPipeline
    pipe = DiffusionPipeline.from_pretrained(args.folder, dtype=getattr(torch, args.dtype)).to(args.device)
    pipe.set_progress_bar_config(disable=True)
    if args.compile:
        network = "transformer" if getattr(pipe, "transformer", None) else "unet"
        getattr(pipe, network).compile()
    return pipe


def tell(args, clock, first, loading):
    import torch
    way = "diffusers + compile" if args.compile else "diffusers"
    calls = [end - begin for begin, end in zip(clock.marks["call"], clock.marks["call done"])]
    rows.say(f"{args.name}, {way}: a model call", 1e3 * statistics.median(calls), "ms")
    steps = len(clock.marks["call"]) if args.name != "wan" else len(clock.marks["call"]) // 2
    rows.say(f"{args.name}, {way}: denoising", clock.between("call", "decode"), "s", note=f"{steps} steps")
    rows.say(f"{args.name}, {way}: text", clock.between("text", "text done"), "s", note="the encoders resident")
    rows.say(f"{args.name}, {way}: decoding", clock.between("decode", "decode done"), "s")
    rows.say(f"{args.name}, {way}: request", clock.between("text", "decode done"), "s", note=f"the first one took {first:.1f} s, loading {loading:.1f} s")
    if args.device != "cpu":
        rows.say(f"{args.name}, {way}: peak memory", torch.cuda.max_memory_allocated() / 1e9, "GB")


def main(args):
    import torch
    from safetensors.torch import save_file
    begun = time.perf_counter()
    pipe = load(args)
    loading = time.perf_counter() - begun
    clock, _ = paint(args, pipe)
    first = clock.between("text", "decode done")
    if args.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    clock, latents = paint(args, pipe)
    tell(args, clock, first, loading)
    if args.latents:
        save_file({"latents": latents.cpu().contiguous()}, args.latents)


if __name__ == "__main__":
    ARGS = options()
    import torch
    with torch.no_grad():
        main(ARGS)
