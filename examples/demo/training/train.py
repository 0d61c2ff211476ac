"""Trains the demo checkpoint: a small PixArt-α in diffusers format that draws captioned scenes (scenes.py).

    python train.py vae OUT --minutes 17                 autoencoder, 8x down, 4 channels, 1 M parameters
    python train.py dit OUT --steps 3000 3000            transformer (5 M) and T5 encoder (0.2 M): 128 px, then 256 px
    python train.py decoder OUT --minutes 20             finishes the decoder with the encoder fixed
    python train.py score OUT --size 256 --count 100     attribute accuracy of pictures drawn from captions
    python train.py store OUT                            rounds the weights to bfloat16: half the bytes

Needs torch, diffusers, transformers, sentencepiece, scipy. Runs on CPU; `--device cuda` for far longer training."""
import argparse, os, random, re, shutil, time

import numpy as np
import sentencepiece as spm
import torch
from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, PixArtAlphaPipeline, PixArtTransformer2DModel
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import T5Config, T5EncoderModel, T5Tokenizer

from scenes import BACKGROUNDS, COLORS, RELATIONS, SHAPES, matches, sample

SCHEDULER = dict(num_train_timesteps=1000, beta_start=1e-4, beta_end=0.02, beta_schedule="linear", solver_order=2, algorithm_type="dpmsolver++")


def pictures(rng, count, size):
    captions, images = zip(*(sample(rng, size) for _ in range(count)))
    return list(captions), torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


def new_vae():
    return AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
                         block_out_channels=(16, 32, 64, 64), layers_per_block=1, latent_channels=4, norm_num_groups=8, sample_size=256)


def train_vae(args, decoder_only=False):
    rng, start, step = np.random.default_rng(0), time.time(), 0
    vae = AutoencoderKL.from_pretrained(f"{args.out}/vae") if decoder_only else new_vae()
    vae = vae.to(args.device, memory_format=torch.channels_last)
    trained = list(vae.decoder.parameters()) + list(vae.post_quant_conv.parameters()) if decoder_only else list(vae.parameters())
    optimizer, seconds = torch.optim.AdamW(trained, weight_decay=0), 60 * args.minutes[0]
    while (done := (time.time() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = (5e-4 if decoder_only else 1e-3) * min(1, (step + 1) / 100) * (1 - done) + 2e-5
        _, x = pictures(rng, args.batch or 16, rng.choice([128, 256]) if decoder_only else 128)
        y, c = rng.integers(0, (x.shape[-1] - 64) // 8 + 1, 2) * 8
        x = x[:, :, y:y + 64, c:c + 64].to(args.device, memory_format=torch.channels_last)
        with torch.set_grad_enabled(not decoder_only):
            posterior = vae.encode(x).latent_dist
        out = vae.decode(posterior.mean if decoder_only else posterior.sample()).sample
        loss = (out - x).abs().mean() + 0.5 * ((out - x) ** 2).mean()
        if not decoder_only:
            loss = loss + 1e-6 * posterior.kl().sum() / len(x) / 64
        optimizer.zero_grad(); loss.backward(); torch.nn.utils.clip_grad_norm_(trained, 1.0); optimizer.step()
        step += 1
        if step % 100 == 0: print(f"vae step {step} {time.time() - start:.0f} s loss {loss.item():.4f}", flush=True)
    vae = vae.eval().to("cpu")
    with torch.no_grad():
        _, x = pictures(np.random.default_rng(1), 64, 128)
        z = vae.encode(x).latent_dist.mean
        print("PSNR", 10 * np.log10(4 / ((vae.decode(z).sample.clamp(-1, 1) - x) ** 2).mean().item()))
    if not decoder_only: vae.register_to_config(scaling_factor=float(1 / z.std()))
    vae.save_pretrained(f"{args.out}/vae")


def tokenizer(folder):
    """A sentencepiece model whose pieces are the words of the captions (and letters for the rest)."""
    model, trained = f"{folder}/spiece.model", f"{os.path.dirname(folder)}/tokenizer/spiece.model"
    if os.path.exists(trained):  # going on: keep the pieces
        os.makedirs(folder, exist_ok=True); shutil.copy(trained, model)
    if not os.path.exists(model):
        os.makedirs(folder, exist_ok=True)
        random.seed(0)
        words = [*COLORS, *BACKGROUNDS, *SHAPES, *" ".join(RELATIONS).split(), "on", "a", "an", "background"]
        with open(f"{folder}/words.txt", "w") as f: f.write("\n".join(" ".join(random.choices(words, k=6)) for _ in range(20000)))
        spm.SentencePieceTrainer.train(input=f"{folder}/words.txt", model_prefix=f"{folder}/spiece", vocab_size=80, model_type="unigram", pad_id=0,
                                       eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2)
    return spm.SentencePieceProcessor(model_file=model)


def encode(pieces, captions, device, length=24):
    ids, mask = torch.zeros(len(captions), length, dtype=torch.long), torch.zeros(len(captions), length)
    for row, caption in enumerate(captions):
        tokens = (pieces.encode(caption) + [1])[:length]
        ids[row, :len(tokens)], mask[row, :len(tokens)] = torch.tensor(tokens), 1
    width = int(mask.sum(1).max())
    return ids[:, :width].to(device), mask[:, :width].to(device)


def new_models():
    text = T5EncoderModel(T5Config(d_model=96, d_ff=192, d_kv=24, num_heads=4, num_layers=2, vocab_size=64, feed_forward_proj="gated-gelu", dropout_rate=0.0))
    dit = PixArtTransformer2DModel(num_attention_heads=3, attention_head_dim=64, in_channels=4, out_channels=8, num_layers=8, cross_attention_dim=192,
                                   sample_size=32, patch_size=2, caption_channels=96, norm_type="ada_norm_single", norm_elementwise_affine=False, norm_eps=1e-6,
                                   attention_bias=True, activation_fn="gelu-approximate", num_embeds_ada_norm=1000, interpolation_scale=1,
                                   use_additional_conditions=False)
    torch.nn.init.zeros_(dit.proj_out.weight); torch.nn.init.zeros_(dit.proj_out.bias)
    return dit, text


def keep_float32(module):
    """Runs one layer outside autocast: the first and the last carry noise that bfloat16 would round."""
    inner = module.forward
    def forward(x):
        with torch.autocast(x.device.type, enabled=False): return inner(x.float())
    module.forward = forward


def loss_weight(snr):
    """Of the noise's squared error: min-SNR-5 where little noise is left; more, up to 12 times, where the layout is decided."""
    return (5 / snr).clamp(max=1) * snr.rsqrt().clamp(1, 12)


class Muon:
    """Momentum made orthogonal (Newton-Schulz) for the blocks' matrices, those of one shape in one batch."""
    def __init__(self, params):
        self.param_groups, self.shapes = [{"lr": 0.0}], {}
        for p in params: self.shapes.setdefault(tuple(sorted(p.shape)), []).append(p)
        self.momentum = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.shapes.items()}

    def zero_grad(self):
        for ps in self.shapes.values():
            for p in ps: p.grad = None

    @torch.no_grad()
    def step(self):
        for shape, ps in self.shapes.items():
            grad = torch.stack([p.grad if tuple(p.shape) == shape else p.grad.T for p in ps])
            momentum = self.momentum[shape].lerp_(grad, 0.05)
            x = grad.lerp(momentum, 0.95)
            x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-12)).bfloat16()
            for _ in range(5):
                a = x @ x.mT
                x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
            for p, update in zip(ps, x.float()):
                p.add_(update if tuple(p.shape) == shape else update.T, alpha=-0.2 * max(shape) ** 0.5 * self.param_groups[0]["lr"])

    def state_dict(self): return self.momentum
    def load_state_dict(self, state):
        for shape, value in state.items(): self.momentum[shape].copy_(value)


def phrases(pieces, captions, device):
    """What each token of an object's phrase (its colour, its shape) should know: indices of colour, shape and place of
    its object [n, tokens, 3], -1 elsewhere. Places: alone, then as RELATIONS."""
    opposite, rows = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}, []
    for caption in captions:
        row = [[-1] * 3 for _ in pieces.encode(caption) + [1]]
        m = re.fullmatch(r"a (\w+) (\w+)(?: (above|below|left of|right of) a (\w+) (\w+))? on a \w+ background", caption)
        if m and len(row) == len(caption.split()) + 1:
            color, shape, relation, color2, shape2 = m.groups()
            places = [0] if not relation else [1 + list(RELATIONS).index(r) for r in (relation, opposite[relation])]
            starts = [1] if not relation else [1, 4 + len(relation.split())]
            for start, c, s, place in zip(starts, (color, color2), (shape, shape2), places):
                row[start] = row[start + 1] = [list(COLORS).index(c), SHAPES.index(s), place]
        rows.append(row)
    width = max(map(len, rows))
    return torch.tensor([row + [[-1] * 3] * (width - len(row)) for row in rows], device=device)


class Phrases(torch.nn.Linear):
    """Reads colour, shape and place of a token's object out of the text encoder's states; not part of the checkpoint.
    Without it two T5 blocks learn from noise alone which words there are, but hardly which belong together."""
    sizes = (len(COLORS), len(SHAPES), 1 + len(RELATIONS))

    def __init__(self): super().__init__(96, sum(self.sizes))

    def loss(self, states, wanted):
        parts = self(states).split(self.sizes, -1)
        return sum(torch.nn.functional.cross_entropy(part.flatten(0, 1), wanted[..., i].flatten(), ignore_index=-1) for i, part in enumerate(parts))


class Run:
    """What training needs to go on after an interruption: raw and averaged weights, optimizers, step."""
    def __init__(self, args):
        self.args, self.step, self.elapsed = args, 0, 0.0
        self.dit, self.text = new_models()
        if args.resume:
            self.dit.load_state_dict(PixArtTransformer2DModel.from_pretrained(f"{args.out}/transformer").state_dict())
            self.text.load_state_dict(T5EncoderModel.from_pretrained(f"{args.out}/text_encoder").state_dict())
        self.phrases = Phrases().to(args.device)
        self.dit.to(args.device).train(); self.text.to(args.device).train()
        blocks = [p for p in self.dit.transformer_blocks.parameters() if p.ndim == 2 and min(p.shape) > 6]
        others = [p for p in [*self.dit.parameters(), *self.text.parameters()] if not any(p is q for q in blocks)]
        self.params = blocks + others
        self.average = [p.detach().clone() for p in self.params]
        self.optimizers = [Muon(blocks), torch.optim.AdamW(others, lr=0, betas=(0.9, 0.98), weight_decay=0),
                           torch.optim.AdamW(self.phrases.parameters(), lr=0, betas=(0.9, 0.98), weight_decay=0)]
        self.state = f"{args.out}/training_state.pt"
        if args.resume and os.path.exists(self.state):
            saved = torch.load(self.state, map_location=args.device)
            self.step, self.elapsed = saved["step"], saved["elapsed"]
            with torch.no_grad():
                for mine, theirs in ((self.params, saved["params"]), (self.average, saved["average"])):
                    for p, value in zip(mine, theirs): p.copy_(value)
            if "phrases" in saved: self.phrases.load_state_dict(saved["phrases"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"]): optimizer.load_state_dict(state)
            print(f"going on from step {self.step}, {self.elapsed:.0f} s", flush=True)

    def save(self):
        """Averaged weights into the model's folder, everything into training_state.pt; each file is replaced whole."""
        torch.save({"step": self.step, "elapsed": self.elapsed, "params": self.params, "average": self.average, "phrases": self.phrases.state_dict(),
                    "optimizers": [o.state_dict() for o in self.optimizers]}, self.state + ".new")
        os.replace(self.state + ".new", self.state)
        raw, work = [p.detach().clone() for p in self.params], f"{self.args.out}/new"
        with torch.no_grad():
            for p, value in zip(self.params, self.average): p.copy_(value)
        for name, model in (("transformer", self.dit), ("text_encoder", self.text)):
            model.save_pretrained(f"{work}/{name}")
            os.makedirs(f"{self.args.out}/{name}", exist_ok=True)
            for file in os.listdir(f"{work}/{name}"): os.replace(f"{work}/{name}/{file}", f"{self.args.out}/{name}/{file}")
        shutil.rmtree(work)
        with torch.no_grad():
            for p, value in zip(self.params, raw): p.copy_(value)
        print(f"saved at step {self.step}, {self.elapsed:.0f} s", flush=True)


class Scenes:
    """Encoded scenes of one size, a pool that grows while training goes on."""
    def __init__(self, rng, vae, size, device, limit):
        self.rng, self.vae, self.size, self.device, self.limit, self.latents, self.captions = rng, vae, size, device, limit, [], []

    def draw(self, pieces, batch, fresh):
        if len(self.latents) < self.limit:
            new, x = pictures(self.rng, fresh if self.latents else 128, self.size)
            with torch.no_grad():
                for part in x.split(16): self.latents += list((self.vae.encode(part.to(self.device)).latent_dist.mean * self.vae.config.scaling_factor).half().clone())
            self.captions += new
        pick = self.rng.integers(0, len(self.latents), batch)
        captions = ["" if self.rng.random() < 0.1 else self.captions[k] for k in pick]
        return torch.stack([self.latents[k] for k in pick]).float(), *encode(pieces, captions, self.device), phrases(pieces, captions, self.device)


def teach_phrases(run, pieces, rng, steps):
    """The text encoder alone, before the first picture: a minute that saves hours. Where it has learned already, its
    states are held near what the transformer knows."""
    known = T5EncoderModel(run.text.config).to(run.args.device); known.load_state_dict(run.text.state_dict())
    optimizer = torch.optim.AdamW([*run.text.parameters(), *run.phrases.parameters()], lr=2e-3, betas=(0.9, 0.98), weight_decay=0)
    for step in range(steps):
        for group in optimizer.param_groups: group["lr"] = 2e-3 * min(1, (step + 1) / 50) * (1 - step / steps)
        captions = [sample(rng, 4)[0] for _ in range(256)]
        ids, mask = encode(pieces, captions, run.args.device)
        states = run.text(input_ids=ids, attention_mask=mask)[0]
        loss = run.phrases.loss(states, phrases(pieces, captions, run.args.device))
        held = 0
        if run.args.resume:
            with torch.no_grad(): before = known(input_ids=ids, attention_mask=mask)[0]
            held = ((states - before) ** 2 * mask[..., None]).mean()
        optimizer.zero_grad(); (loss + 0.3 * held).backward(); optimizer.step()
        if step % 50 == 49: print(f"phrases step {step + 1} loss {loss.item():.4f} moved {float(held):.4f}", flush=True)
    with torch.no_grad():
        own = [id(p) for p in run.text.parameters()]
        for p, value in zip(run.average, run.params):
            if id(value) in own: p.copy_(value)


def train_dit(args):
    torch.manual_seed(0)
    device, pieces = args.device, tokenizer(f"{args.out}/tokenizer_work")
    vae = AutoencoderKL.from_pretrained(f"{args.out}/vae").eval().to(device)
    run = Run(args)
    rng = np.random.default_rng(int(time.time()) if args.resume else 1)
    if args.phrases: teach_phrases(run, pieces, rng, args.phrases)
    keep_float32(run.dit.pos_embed.proj); keep_float32(run.dit.proj_out)
    alphas, saved, running, batch = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0).to(device), time.time(), {}, args.batch or 64
    small = args.small
    pools = {size: Scenes(rng, vae, size, device, limit) for size, limit in ((small, 30000), (256, 8000))}
    first, last = args.steps[0], time.time()
    while run.step < sum(args.steps):
        # small pictures first: most captions a second; then 256 px on three steps of four while the rate falls
        late = run.step >= first
        size = 256 if late and run.step % 4 else small
        count = batch * 3 // 8 if size == 256 else batch * 128 * 128 // (small * small)
        rate = args.rate * min(1, (run.step + 1) / 100)
        if late: rate *= 1 - 0.97 * (run.step - first) / args.steps[1]
        for optimizer in run.optimizers:
            for group in optimizer.param_groups: group["lr"] = rate
        z, ids, mask, wanted = pools[size].draw(pieces, count, 6 if size == 256 else 12 * 128 // small)
        t = ((torch.randperm(count, device=device) + torch.rand(count, device=device)) * (1000 / count)).long().clamp(max=999)
        noise, a = torch.randn_like(z), alphas[t].view(-1, 1, 1, 1)
        states = run.text(input_ids=ids, attention_mask=mask)[0]
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            out = run.dit(a.sqrt() * z + (1 - a).sqrt() * noise, encoder_hidden_states=states, encoder_attention_mask=mask, timestep=t,
                          added_cond_kwargs={"resolution": None, "aspect_ratio": None}).sample[:, :4].float()
        loss = (((out - noise) ** 2).mean((1, 2, 3)) * loss_weight((a / (1 - a)).view(-1))).mean()
        grammar = run.phrases.loss(states, wanted)
        for optimizer in run.optimizers: optimizer.zero_grad()
        (loss + 0.05 * grammar).backward(); torch.nn.utils.clip_grad_norm_(run.params, 1.0)
        for optimizer in run.optimizers: optimizer.step()
        run.step += 1
        decay = min(0.998, (1 + run.step) / (10 + run.step))
        with torch.no_grad(): torch._foreach_mul_(run.average, decay); torch._foreach_add_(run.average, run.params, alpha=1 - decay)
        running["phrases"] = grammar.item()
        running[size] = loss.item() if size not in running else 0.99 * running[size] + 0.01 * loss.item()
        now = time.time(); run.elapsed += now - last; last = now
        if run.step % 50 == 0: print(f"dit {size} px step {run.step} {run.elapsed:.0f} s losses {running}", flush=True)
        if now - saved > 60 * args.save_every: run.save(); saved = now
    run.save()
    vocabulary = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(pieces.vocab_size())]
    with torch.no_grad():
        for p, value in zip(run.params, run.average): p.copy_(value)
    PixArtAlphaPipeline(tokenizer=T5Tokenizer(vocab=vocabulary, extra_ids=0), text_encoder=run.text.eval().cpu(), vae=vae.cpu(), transformer=run.dit.eval().cpu(),
                        scheduler=DPMSolverMultistepScheduler(**SCHEDULER)).save_pretrained(args.out)
    shutil.copy(f"{args.out}/tokenizer_work/spiece.model", f"{args.out}/tokenizer/spiece.model")
    shutil.rmtree(f"{args.out}/tokenizer_work")


def score(args):
    pipe = PixArtAlphaPipeline.from_pretrained(args.out).to(args.device)
    pipe.set_progress_bar_config(disable=True)
    rng, right, total, sheet = np.random.default_rng(77), 0, 0, []
    for k in range(0, args.count, 10):
        captions = [sample(rng, 16)[0] for _ in range(10)]
        images = pipe(captions, height=args.size, width=args.size, num_inference_steps=20, guidance_scale=4.5, use_resolution_binning=False, clean_caption=False,
                      max_sequence_length=24, generator=torch.Generator().manual_seed(k)).images
        for caption, image in zip(captions, images):
            result = matches(caption, np.asarray(image))
            right, total = right + sum(result.values()), total + len(result)
        sheet.append(np.concatenate([np.asarray(i) for i in images[:8]], 1))
    Image.fromarray(np.concatenate(sheet[:4])).save(f"{args.out}/sheet.png")
    print(f"{right}/{total} attributes right = {100 * right / total:.1f} %")


def store(args):
    """The weights' files in bfloat16; the configs go on saying float32, in which the weights are used."""
    for part in ("transformer/diffusion_pytorch_model", "vae/diffusion_pytorch_model", "text_encoder/model"):
        file = f"{args.out}/{part}.safetensors"
        save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["vae", "dit", "decoder", "score", "store"]); parser.add_argument("out")
    parser.add_argument("--minutes", type=float, nargs="+", default=[17]); parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, nargs=2, default=[3000, 3000], help="dit: on small pictures, then mostly at 256 px while the rate falls")
    parser.add_argument("--small", type=int, default=128, choices=[64, 128], help="dit: pixels of the small pictures")
    parser.add_argument("--resume", action="store_true", help="dit: go on from OUT (its training_state.pt where there is one)")
    parser.add_argument("--phrases", type=int, default=0, help="dit: steps of the text encoder alone, first: 800 for a new one")
    parser.add_argument("--rate", type=float, default=1e-3); parser.add_argument("--save-every", type=float, default=10, help="minutes")
    parser.add_argument("--batch", type=int); parser.add_argument("--size", type=int, default=256); parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    {"vae": train_vae, "dit": train_dit, "decoder": lambda a: train_vae(a, True), "score": score, "store": store}[args.what](args)
