"""Wan 2.2's TI2V-5B, video from text: small random checkpoints, their decoder, and whole videos."""
import torch
from diffusers import UniPCMultistepScheduler, WanPipeline

from common import FIXTURES, PROMPT, Book, generator
from wan import FLOW, TRAINED, decode, draw, load, make_text_encoder, make_transformer, make_vae, pictures, tall
from checkpoints import make_tokenizer

NAME = "tiny-wan22"
# A decoder of other widths, whose levels repeat their input otherwise, and that doubles frames elsewhere.
OTHER = "tiny-wan22-other"
CHANNELS = 6
DECODES = [("one_frame", NAME, 1, 1, 3, 5), ("two_frames", NAME, 2, 2, 4, 4), ("four_frames", NAME, 1, 4, 3, 2), ("other_widths", OTHER, 1, 3, 3, 4)]
DEFAULTS = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=96, width=64, num_frames=9, steps=4, guidance=4.0, seed=0, n=1, max_sequence_length=24, image=False)
VIDEOS = [("wan22_plain", dict(image=True)), ("wan22_alone", dict(guidance=1.0, seed=3, image=True, num_frames=5, width=96)), ("wan22_picture", dict(num_frames=1, height=64, seed=1, image=True)),
          ("wan22_two", dict(prompts=["a red  circle", PROMPT], width=32, num_frames=5, seed=2, steps=3, negative_prompt="a dog", image=True)), ("wan22_one_step", dict(steps=1, seed=4)),
          ("wan22_wide", dict(height=32, width=160, num_frames=13, seed=5, steps=3)), ("wan22_other", dict(checkpoint=OTHER, seed=6, num_frames=5, steps=3, image=True))]


def make_checkpoint(name, **changes):
    latents = dict(latents_mean=[-0.3, 0.2, 0.1, -0.1, 0.4, 0.0], latents_std=[1.4, 0.8, 1.1, 1.9, 1.0, 0.7])
    config = dict(base_dim=4, decoder_base_dim=8, z_dim=CHANNELS, dim_mult=[1, 2, 4, 4], is_residual=True, in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16)
    tokenizer = make_tokenizer(FIXTURES / name / "tokenizer")
    transformer = make_transformer(in_channels=CHANNELS, out_channels=CHANNELS, num_layers=6)
    WanPipeline(tokenizer=tokenizer, text_encoder=make_text_encoder(len(tokenizer)), vae=make_vae(**{**config, **latents, **changes}), transformer=transformer,
                scheduler=UniPCMultistepScheduler(**TRAINED, **FLOW, flow_shift=5.0), expand_timesteps=True).save_pretrained(FIXTURES / name)


def make_decodes():
    book = Book("wan22_vae", "The decoders: latents [b,6,f·h,w], frame below frame, as the sampler leaves them → pixels [b,3,F·H,W], frames likewise, clamped.")
    for seed, (name, checkpoint, batch, frames, height, width) in enumerate(DECODES):
        latents = torch.randn(batch, CHANNELS, frames, height, width, generator=generator(900 + seed))
        pixels = decode(load(checkpoint), latents)
        print(f"  {name}: {tuple(pixels.shape)}, std {pixels.std():.2f}, at ±1: {(pixels.abs() >= 1).float().mean():.2f}")
        book.case(name, {"checkpoint": checkpoint, "frames": frames}, {"latents": tall(latents), "pixels": tall(pixels)})
    book.save()


def make_videos():
    book = Book("wan22", "Whole videos by WanPipeline: latents [n,C,f·h,w], frame below frame, are the final ones before the VAE; image (uint8 [n,F·H,W,3], frames likewise) where `image` is true.")
    pipes = {name: load(name) for name in (NAME, OTHER)}
    for name, changes in VIDEOS:
        case = {**DEFAULTS, **changes}
        pipe = pipes[case["checkpoint"]]
        latents = draw(pipe, case)
        assert torch.isfinite(latents).all()
        print(f"  {name}: latents {tuple(latents.shape)} {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        tensors = {"latents": tall(latents)}
        if case["image"]:
            tensors["image"] = pictures(pipe, latents)
        book.case(name, case, tensors)
    book.save()


def make():
    make_checkpoint(NAME)
    make_checkpoint(OTHER, dim_mult=[1, 1, 2, 2], temperal_downsample=[True, False, True], num_res_blocks=2)
    make_decodes()
    make_videos()
