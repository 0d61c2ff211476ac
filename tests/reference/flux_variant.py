"""What models of FLUX.1's blocks that are none of FLUX.1's have in common: single calls, whole pictures by their pipelines, and by patches."""
import copy

import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from safetensors.torch import save_file

from common import FIXTURES, Book, generator
from families import decode
from joint_patches import add_cases, joint_block, single_block
from lora import in_diffusers, pairs
from patches import PatchAttention, split

# batch, latent height and width, timestep, text tokens
CALLS = {"square": (1, 8, 8, 981.0, 9), "wide": (2, 6, 14, 333.25, 5), "tall": (3, 14, 6, 40.5, 7)}


class Variant:
    """A model: `pipeline` and `network` are its classes, `layers` those that a LoRA is added to, `cases` change `defaults`."""

    name, channels, seed, note, single_block = None, 4, 0, "", staticmethod(single_block)

    @property
    def folder(self):
        return FIXTURES / f"tiny-{self.name}"

    def ids(self, tokens, rows, columns):
        """Rotary positions of the text's tokens and of the picture's."""

    def draw(self, pipe, case):
        """Final latents [n, C, h/8, w/8] as the pipeline has them before the VAE, and what was given instead of prompts."""

    def encode(self, pipe, case):
        """States of the negative prompts, then of the prompts, and positions of their tokens."""

    def text(self, model, states):
        return model.context_embedder(states)

    def temb(self, model, time):
        """What modulates the blocks, [1, D]."""

    def guided(self, negative, positive, scale):
        return negative + scale * (positive - negative)

    def pack(self, latents):
        return self.pipeline._pack_latents(latents, *latents.shape)

    def unpack(self, packed, case):
        return self.pipeline._unpack_latents(packed, case["height"], case["width"], 8)

    def call(self, model, batch, height, width, timestep, tokens, r):
        x, text = torch.randn(batch, self.channels, height, width, generator=r), torch.randn(batch, tokens, 24, generator=r)
        text_ids, ids = self.ids(tokens, height // 2, width // 2)
        out = model(self.pack(x), text, torch.full((batch,), timestep) / 1000, ids, text_ids, return_dict=False)[0]
        return {"hidden": x, "states0": text, "lengths0": torch.full((batch,), tokens), "output": self.unpack(out, {"height": height * 8, "width": width * 8})}

    def calls(self):
        model = self.network.from_pretrained(self.folder / "transformer").eval()
        book = Book(f"{self.name}_transformer", f"Checkpoint {self.folder.name}/transformer on latents `hidden` at `timestep`: states0 and lengths0 are what the text encoder gave; output [B,C,h,w].")
        for k, (shape, of) in enumerate(CALLS.items()):
            book.case(f"{self.name}_{shape}", {"checkpoint": self.folder.name, "timestep": of[3], "guidance": 1.0}, self.call(model, *of, generator(700 + k)))
        book.save()

    def pictures(self, pipe):
        (FIXTURES / "lora").mkdir(exist_ok=True)
        weights = in_diffusers("transformer", pairs(pipe.transformer, self.layers, 3, self.seed))
        save_file(weights, FIXTURES / self.cases["lora"]["lora"])
        book = Book(self.name, f"Whole pictures by {self.pipeline.__name__}: latents [n,C,h/8,w/8] are the final ones before the VAE, image (uint8 [n,h,w,3]) where `image` is true. "
                    f"`lora`: with this file. `embeds`: prompt embeds were given, of 40 tokens.{self.note}")
        for name, changes in self.cases.items():
            case = {**self.defaults, **changes}
            if "lora" in case:
                pipe.transformer.load_lora_adapter(dict(weights))
            latents, tensors = self.draw(pipe, case)
            if "lora" in case:
                pipe.transformer.unload_lora()
            assert torch.isfinite(latents).all()
            tensors = {"latents": latents, **tensors}
            if case["image"]:
                tensors["image"] = decode(pipe, latents)
            print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
            book.case(f"{self.name}_{name}", case, tensors)
        book.save()

    def denoise(self, pipe, case):
        picture, scheduler, config = Picture(self, pipe, case), copy.deepcopy(pipe.scheduler), pipe.scheduler.config
        height, width = case["height"] // 8, case["width"] // 8
        mu = calculate_shift(height // 2 * width // 2, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / case["steps"], case["steps"]), mu=mu)
        scheduler.set_begin_index(0)
        packed = self.pack(torch.randn(picture.count, self.channels, height, width, generator=generator(case["seed"])))
        rows = split(picture.rows, case["patches"])
        steppers = [copy.deepcopy(scheduler) for _ in rows]
        for step, t in enumerate(scheduler.timesteps):
            for first, last in [(0, len(rows))] if step < case["warmup"] else [(m, m + 1) for m in range(len(rows))]:
                part = (rows[first][0], rows[last - 1][1])
                out = picture.predict(packed, step, t, part)
                for m in range(first, last):
                    mine, offset = slice(rows[m][0] * picture.columns, rows[m][1] * picture.columns), part[0] * picture.columns
                    packed[:, mine] = steppers[m].step(out[:, mine.start - offset:mine.stop - offset], t, packed[:, mine].clone(), return_dict=False)[0]
        return self.unpack(packed, case)

    def patches(self, pipe, changes):
        book = Book(f"{self.name}_patches", f"As `{self.name}`, by `method` with `patches` and `warmup` synchronous steps, K, V `kv`. The text's tokens are computed once a step with patch 0, "
                    "from what patch 0 sees. `drift`: distance from the synchronous latents by range.")
        defaults = {**self.defaults, **changes}
        add_cases(book, self.name, defaults, ["a cat", *defaults["prompts"]], lambda case: self.denoise(pipe, case), lambda case: self.draw(pipe, case)[0])
        book.save()


class Picture:
    """The transformer over patches, both branches at once: `predict` gives the tokens of one micro-step."""

    def __init__(self, variant, pipe, case):
        self.variant, self.model, self.rows, self.columns = variant, pipe.transformer, case["height"] // 16, case["width"] // 16
        states, text_ids = variant.encode(pipe, case)
        self.count, self.tokens, self.scale = len(states) // 2, states.shape[1], case["guidance"]
        self.text = variant.text(self.model, states)
        self.rotary = self.model.pos_embed(torch.cat([text_ids, variant.ids(1, self.rows, self.columns)[1]]))
        blocks = [*self.model.transformer_blocks, *self.model.single_transformer_blocks]
        self.kept = [PatchAttention(self.tokens + self.rows * self.columns, case["method"], case["kv"]) for _ in blocks]

    def predict(self, packed, step, t, rows):
        variant, model, texts = self.variant, self.model, self.tokens if rows[0] == 0 else 0
        own = torch.arange(rows[0] * self.columns, rows[1] * self.columns)
        everything = torch.cat([torch.arange(texts), self.tokens + own])
        text, picture = self.text[:, :texts], model.x_embedder(torch.cat([packed[:, own]] * 2))
        temb = variant.temb(model, (t[None] / 1000) * 1000).expand(len(picture), -1)
        rotary = tuple(r[everything] for r in self.rotary)
        for kept in self.kept:
            kept.step, kept.now = step, everything
        kept = iter(self.kept)
        for block in model.transformer_blocks:
            text, picture = joint_block(block, next(kept), None, text, picture, temb, rotary)
        hidden = torch.cat([text, picture], dim=1)
        for block in model.single_transformer_blocks:
            hidden = variant.single_block(block, next(kept), hidden, temb, rotary)
        negative, positive = model.proj_out(model.norm_out(hidden[:, texts:], temb)).chunk(2)
        return variant.guided(negative, positive, self.scale)
