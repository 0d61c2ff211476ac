"""AutoencoderKL: decode (with post_quant_conv) and encode."""
import torch

from checkpoints import load
from common import Book, generator

SIZES = [("square", 1, 8, 8), ("wide", 2, 3, 7), ("tall", 1, 9, 5)]


def make():
    book = Book("vae", "tiny-pixart's vae. decode: latents [b,4,h,w], as handed to decode (already divided by scaling_factor) → pixels [b,3,8h,8w], "
                "unclamped. `mid` [b,16,h,w]: after decoder.mid_block; `up0`…`up3`: after each up block (case `wide`). encode: pixels → mean "
                "[b,4,h,w] and logvar (clamped to -30..20) of the posterior, not scaled. decode_tiled: with enable_tiling(), tiles of "
                "64 px; encode_tiled: of the pixels of decode_tiled, likewise.", scaling_factor=0.5)
    vae = load("tiny-pixart").vae
    for seed, (name, batch, height, width) in enumerate(SIZES):
        latents, kept, hooks = torch.randn(batch, 4, height, width, generator=generator(300 + seed)), {}, []
        if name == "wide":
            hooks = [vae.decoder.mid_block.register_forward_hook(lambda m, a, out: kept.__setitem__("mid", out))]
            hooks += [b.register_forward_hook(lambda m, a, out, k=k: kept.__setitem__(f"up{k}", out)) for k, b in enumerate(vae.decoder.up_blocks[:2])]
        pixels = vae.decode(latents).sample
        for hook in hooks:
            hook.remove()
        print(f"  decode {name}: std {pixels.std():.2f}, beyond ±1: {(pixels.abs() > 1).float().mean():.2f}")
        book.case(f"decode_{name}", {"what": "decode"}, {"latents": latents, **kept, "pixels": pixels})
    pixels = torch.rand(1, 3, 40, 24, generator=generator(310)) * 2 - 1
    posterior = vae.encode(pixels).latent_dist
    book.case("encode", {"what": "encode"}, {"pixels": pixels, "mean": posterior.mean, "logvar": posterior.logvar})
    vae.enable_tiling()
    latents = torch.randn(1, 4, 14, 9, generator=generator(311))
    pixels = vae.decode(latents).sample
    book.case("decode_tiled", {"what": "decode"}, {"latents": latents, "pixels": pixels})
    posterior = vae.encode(pixels).latent_dist
    book.case("encode_tiled", {"what": "encode"}, {"mean": posterior.mean, "logvar": posterior.logvar})
    book.save()
