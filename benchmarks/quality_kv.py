"""Rules for keys and values that are not fresh, compared on the demo checkpoint.

    OMP_NUM_THREADS=1 .deps/reference/bin/python benchmarks/quality_kv.py [RULE ...]

PSNR of final latents against the exact ones; or, with --on-exact, which is quick: how much nearer than stale ones the rows of each
rule are to the true K,V along the exact trajectory, in decibels, averaged over steps, patches, blocks, K and V and pictures.
It runs the Python oracle of tests/reference (see requirements.txt there), not Troupe. benchmarks/results/quality.md tells what came of it."""
import sys
import warnings

from command_line import ROOT, Parser, add_captions, add_model, add_number, whole


def command_line():
    parser = Parser(__doc__, ["diffusers", "scenes"])
    parser.add_argument("rules", nargs="*", metavar="RULE", help="of quality_kv_rules.py; all of them")
    add_model(parser)
    add_captions(parser, captions=8, size=128)
    parser.add_argument("--patches", type=whole(1, 1024), nargs="+", default=[2, 4, 8], metavar="N", help="2 4 8")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="all of them")
    add_number(parser, "--warmup", 1, 1000, "synchronous steps", least=0)
    parser.add_argument("--on-exact", action="store_true", help="along the exact trajectory")
    return parser


METHODS = ["pipefusion", "distrifusion"]
ARGS = command_line().parse_args() if __name__ == "__main__" else None

import numpy as np  # noqa: E402
import torch  # noqa: E402

sys.path[:0] = [str(ROOT / "tests" / "reference"), str(ROOT / "examples" / "demo" / "training")]
from quality_kv_rules import NAN, RULES, Shift  # noqa: E402


def attention_class(rule, columns, ratios):
    """A PatchAttention whose rows that are not fresh come from `rule`."""
    from patches import PatchAttention

    class Trial(PatchAttention):
        def __init__(self, tokens, method, kv):
            super().__init__(tokens, method, kv)
            self.rule, self.columns, self.constants, self.ratios = rule(self), columns, {}, ratios

        def past(self, step):
            return self.steps.get(step, torch.full_like(self.steps[0], NAN))

        def __call__(self, attn, hidden_states, **rest):
            if issubclass(rule, Shift):
                shift = self.block_shift(attn)
                self.constants[self.step] = torch.stack([shift @ attn.to_k.weight.T, shift @ attn.to_v.weight.T])[:, None, None]
            return super().__call__(attn, hidden_states, **rest)

        def block_shift(self, attn):
            block = self.blocks[id(attn)]
            return block.scale_shift_table[0] + self.modulations["now"][0].reshape(6, -1)[0]

        def keys_and_values(self, fresh):
            absent = torch.full((2, fresh.shape[1], self.tokens, fresh.shape[-1]), NAN)
            current = self.steps.setdefault(self.step, absent.clone())
            current[:, :, self.now] = fresh
            x = absent.clone()
            if self.method == "pipefusion":
                x = current
            else:
                x[:, :, self.now] = fresh
            one, two, three = (self.steps.get(self.step - k, absent) for k in (1, 2, 3))
            if not x.isnan().any():
                return x
            self.ratio = self.ratios[self.step]
            return torch.where(x.isnan(), self.rule(x, one, two, three), x)

    return Trial


def on_exact(rule, tokens, method, patches, warmup, truth):
    """Mean decibels that `rule` is nearer to `truth` (a list of attentions with K,V of every step) than stale rows are."""
    from patches import split
    columns = int(tokens**0.5)
    gains = []
    for attention in truth:
        trial = rule(attention)
        for step in range(warmup, len(attention.steps)):
            attention.step = step
            attention.ratio = attention.ratios[step]
            now, (one, two, three) = attention.steps[step], (attention.past(step - k) for k in (1, 2, 3))
            for first, last in split(tokens // columns, patches):
                begin = 0 if method == "pipefusion" else first * columns
                x = torch.full_like(now, NAN)
                x[:, :, begin:last * columns] = now[:, :, begin:last * columns]
                attention.now = slice(first * columns, last * columns)
                stale = x[0, 0, :, 0].isnan()
                if not stale.any():
                    continue
                error = (trial(x, one, two, three) - now)[:, :, stale].square().sum((-2, -1))
                gains.append(10 * torch.log10((one - now)[:, :, stale].square().sum((-2, -1)) / error))
    return float(torch.stack(gains).mean())


def psnr(latents, exact):
    """Decibels of each picture against the exact latents' range."""
    error = (latents - exact).square().flatten(1).mean(1)
    span = exact.flatten(1).max(1).values - exact.flatten(1).min(1).values
    return 10 * torch.log10(span.square() / error)


def main(args):
    for name in args.rules:
        if name not in RULES:
            command_line().error(f'RULE: "{name}" is none of {", ".join(RULES)}')
    warnings.simplefilter("ignore")
    import common
    common.settle()
    import scenes
    from diffusers import DPMSolverMultistepScheduler, PixArtAlphaPipeline
    from patches import denoise
    import patches as reference
    pipe = PixArtAlphaPipeline.from_pretrained(args.model)
    pipe.set_progress_bar_config(disable=True)
    scheduler = dict(pipe.scheduler.config)
    reference.SCHEDULERS = {"DPMSolverMultistepScheduler": DPMSolverMultistepScheduler}
    rng = np.random.default_rng(1000 + args.seed)
    captions = [scenes.sample(rng, 32)[0] for _ in range(args.captions)]
    case = dict(prompts=captions, negative_prompt="", height=args.size, width=args.size, steps=args.steps, guidance=4.5, seed=args.seed, n=1,
                max_sequence_length=16, scheduler="DPMSolverMultistepScheduler", kv="stale",
                config={k: v for k, v in scheduler.items() if not k.startswith("_")})
    fresh = DPMSolverMultistepScheduler(**case["config"])
    fresh.set_timesteps(args.steps)
    abar = fresh.alphas_cumprod[fresh.timesteps]
    log_snr = torch.log(abar / (1 - abar))
    ratios = [1.0, 1.0] + [float((log_snr[s] - log_snr[s - 1]) / (log_snr[s - 1] - log_snr[s - 2])) for s in range(2, args.steps)]

    blocks = {id(block.attn1): block for block in pipe.transformer.transformer_blocks}
    modulations = {}
    pipe.transformer.adaln_single.register_forward_hook(lambda module, inputs, out: modulations.update(now=out[0]))

    def trial(rule):
        kind = attention_class(rule, args.size // 16, ratios)
        kind.blocks, kind.modulations = blocks, modulations
        return kind

    exact, truth = denoise(pipe, {**case, "method": "pipefusion", "patches": 1, "warmup": args.steps}, trial(Shift))
    columns = [(method, patches) for method in args.methods for patches in args.patches]
    print("| rule | " + " | ".join(f"{m[:2]} {p}" for m, p in columns) + " | mean |", flush=True)
    for name in args.rules or RULES:
        figures = []
        for method, patches in columns:
            if args.on_exact:
                figures.append(on_exact(RULES[name], (args.size // 16) ** 2, method, patches, args.warmup, truth))
                continue
            latents, _ = denoise(pipe, {**case, "method": method, "patches": patches, "warmup": args.warmup}, trial(RULES[name]))
            figures.append(float(psnr(latents, exact).mean()))
        print(f"| {name} | " + " | ".join(f"{f:.1f}" for f in figures) + f" | {np.mean(figures):.2f} |", flush=True)


if __name__ == "__main__":
    main(ARGS)
