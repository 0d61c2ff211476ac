"""Wan 2.1, text to video: a small random checkpoint, single calls, its text encoder, its decoder, and whole videos."""
import shutil

import numpy as np
import torch
from diffusers import (AutoencoderKLWan, DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanPipeline,
                       WanTransformer3DModel)
from transformers import UMT5Config, UMT5EncoderModel

from checkpoints import make_tokenizer
from common import FIXTURES, PROMPT, Book, generator, halve, randomise

NAME = "tiny-wan"
# Cross-attention without a norm, heads of 12, a decoder of other widths that doubles in time at once.
PLAIN = "tiny-wan-plain"
# name, checkpoint, batch, latent frames, height and width, timestep
CALLS = [("wan_picture", NAME, 1, 1, 8, 8, 999.0), ("wan_clip", NAME, 2, 3, 6, 8, 431.0), ("wan_wide", NAME, 1, 5, 4, 14, 17.0),
         ("wan_plain_norm", PLAIN, 2, 2, 10, 6, 750.0)]
TEXT = 11


def make_text_encoder(vocabulary):
    config = UMT5Config(vocab_size=vocabulary, d_model=24, d_kv=8, d_ff=40, num_heads=3, num_layers=3, feed_forward_proj="gated-gelu",
                        dropout_rate=0.0, relative_attention_num_buckets=8, relative_attention_max_distance=20)
    return randomise(UMT5EncoderModel(config), 41, {"SelfAttention.q": 0.5})


def make_transformer(seed=42, **changes):
    config = dict(patch_size=(1, 2, 2), num_attention_heads=3, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=24, freq_dim=256, ffn_dim=72,
                  num_layers=4, cross_attn_norm=True, rope_max_seq_len=64)
    transformer = WanTransformer3DModel(**{**config, **changes})
    return randomise(transformer, seed, {"to_q": 1.5, "text_embedder": 2.0, "time_proj": 0.5, "proj_out": 0.6})


def make_vae(**changes):
    config = dict(base_dim=8, z_dim=4, dim_mult=[1, 2, 2, 2], num_res_blocks=1, temperal_downsample=[False, True, True],
                  latents_mean=[-0.3, 0.2, 0.1, -0.1], latents_std=[1.4, 0.8, 1.1, 1.9])
    vae = AutoencoderKLWan(**{**config, **changes})
    randomise(vae, 43)
    for name, p in vae.named_parameters():
        if name.endswith("gamma"):
            p.copy_(1 + 0.1 * torch.randn(p.shape, generator=generator(len(name))))
    return vae


def make_checkpoint(name, transformer, vae, scheduler):
    shutil.rmtree(FIXTURES / name, ignore_errors=True)
    tokenizer = make_tokenizer(FIXTURES / name / "tokenizer")
    WanPipeline(tokenizer=tokenizer, text_encoder=make_text_encoder(len(tokenizer)), vae=vae, transformer=transformer, scheduler=scheduler).save_pretrained(FIXTURES / name)
    halve(FIXTURES / name)


def make_checkpoints():
    # As in the published folders for 480 rows.
    make_checkpoint(NAME, make_transformer(), make_vae(), UniPCMultistepScheduler(**TRAINED, **FLOW, flow_shift=3.0))
    make_checkpoint(PLAIN, make_transformer(cross_attn_norm=False, num_layers=3, attention_head_dim=12), make_vae(base_dim=4, dim_mult=[1, 2, 2, 3]),
                    FlowMatchEulerDiscreteScheduler(shift=4.0))


def load(name=NAME):
    pipe = WanPipeline.from_pretrained(FIXTURES / name)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def make_calls():
    book = Book("wan_transformer", "Single calls of WanTransformer3DModel. hidden [b,C,f·h,w]: the latents, frame below frame; states0 [b,L,24] and lengths0: text states, of which those past "
                "a prompt's length count as zeros; output: the prediction, laid out like hidden.")
    for seed, (name, checkpoint, batch, frames, height, width, timestep) in enumerate(CALLS):
        model = WanTransformer3DModel.from_pretrained(FIXTURES / checkpoint, subfolder="transformer").eval()
        g = generator(700 + seed)
        latents = torch.randn(batch, 4, frames, height, width, generator=g)
        states = torch.randn(batch, TEXT, 24, generator=g)
        lengths = torch.tensor([7, TEXT][:batch])
        seen = states * (torch.arange(TEXT)[None, :, None] < lengths[:, None, None])
        output = model(hidden_states=latents, timestep=torch.full((batch,), timestep), encoder_hidden_states=seen, return_dict=False)[0]
        flat = [t.reshape(batch, 4, frames * height, width) for t in (latents, output)]
        print(f"  {name}: std {output.std():.2f}")
        book.case(name, {"checkpoint": checkpoint, "timestep": timestep, "guidance": 0.0, "frames": frames}, {"hidden": flat[0], "states0": states, "lengths0": lengths, "output": flat[1]})
    book.save()


def make_text():
    pipe = load()
    book = Book("wan_text", "UMT5 encoder of tiny-wan: last_hidden_state [batch, length, 24] for input_ids and mask (int64, 1 = token), as the pipeline calls it; embeds: what the pipeline "
                "makes of it, zeros past each prompt.")
    long = "a  Red circle\n and a “fancy” café &amp;amp; tree, 42% houses, 4 cats!"
    for k, (prompts, length) in enumerate([([PROMPT], 32), (["", long], 48), ([long], 6)]):
        embeds, _ = pipe.encode_prompt(prompts, do_classifier_free_guidance=False, max_sequence_length=length)
        from diffusers.pipelines.wan.pipeline_wan import prompt_clean
        clean = [prompt_clean(p) for p in prompts]
        tokens = pipe.tokenizer(clean, padding="max_length", max_length=length, truncation=True, add_special_tokens=True, return_attention_mask=True, return_tensors="pt")
        states = pipe.text_encoder(tokens.input_ids, tokens.attention_mask).last_hidden_state
        book.case(f"case{k}", {"prompts": prompts, "clean": clean, "length": length}, {"input_ids": tokens.input_ids, "mask": tokens.attention_mask, "states": states, "embeds": embeds})
    book.save()


def decode(pipe, latents):
    """The pipeline's own way from final latents [n,C,f,h,w] to pixels [n,3,F,H,W] in -1..1."""
    config = pipe.vae.config
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (config.latents_mean, config.latents_std))
    return pipe.vae.decode(latents / (1.0 / std) + mean, return_dict=False)[0]


def pictures(pipe, latents):
    """The videos of final latents as uint8 [n, F·H, W, 3], frame below frame."""
    frames = pipe.video_processor.postprocess_video(decode(pipe, latents), output_type="pil")
    return torch.from_numpy(np.stack([np.concatenate([np.asarray(f) for f in video]) for video in frames]))


def make_decodes():
    pipe = load()
    book = Book("wan_vae", "tiny-wan's decoder: latents [b,4,f·h,w], frame below frame, as the sampler leaves them → pixels [b,3,F·H,W], frames likewise, clamped.")
    for seed, (name, batch, frames, height, width) in enumerate([("one_frame", 1, 1, 4, 6), ("five_frames", 2, 2, 4, 4), ("nine_frames", 1, 3, 3, 5), ("seventeen_frames", 1, 5, 2, 3)]):
        latents = torch.randn(batch, 4, frames, height, width, generator=generator(800 + seed))
        pixels = decode(pipe, latents)
        print(f"  {name}: {tuple(pixels.shape)}, std {pixels.std():.2f}, at ±1: {(pixels.abs() >= 1).float().mean():.2f}")
        book.case(name, {"frames": frames, "pixel_frames": pixels.shape[2]}, {"latents": latents.reshape(batch, 4, -1, width), "pixels": pixels.reshape(batch, 3, -1, 8 * width)})
    book.save()


SCHEDULERS = {c.__name__: c for c in (UniPCMultistepScheduler, FlowMatchEulerDiscreteScheduler, DPMSolverMultistepScheduler)}
TRAINED = dict(num_train_timesteps=1000)
FLOW = dict(prediction_type="flow_prediction", use_flow_sigmas=True)
DEFAULTS = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=48, width=64, num_frames=9, steps=4, guidance=4.0, seed=0, n=1, max_sequence_length=24, image=False)
VIDEOS = [("wan_plain", dict(image=True)), ("wan_alone", dict(guidance=1.0, seed=3, image=True, num_frames=5)), ("wan_picture", dict(num_frames=1, height=64, seed=1, image=True)),
          ("wan_two", dict(prompts=["a red  circle", "a tree"], n=2, width=48, num_frames=5, seed=2, steps=3, negative_prompt="a dog")), ("wan_one_step", dict(steps=1, seed=4)),
          ("wan_long", dict(num_frames=17, height=32, width=32, seed=5, steps=6, guidance=3.0)),
          ("wan_euler", dict(scheduler="FlowMatchEulerDiscreteScheduler", config=dict(shift=5.0), seed=6, num_frames=5)),
          ("wan_dpm", dict(scheduler="DPMSolverMultistepScheduler", config=dict(**FLOW, flow_shift=5.0, algorithm_type="dpmsolver++", solver_order=3), seed=7, num_frames=5, steps=7)),
          ("wan_third_order", dict(scheduler="UniPCMultistepScheduler", config=dict(**FLOW, flow_shift=8.0, solver_order=3), seed=8, num_frames=5, steps=7)),
          ("wan-plain_plain", dict(checkpoint=PLAIN, seed=9, num_frames=5, image=True)), ("wan-plain_wide", dict(checkpoint=PLAIN, seed=10, width=80, height=32, guidance=1.0, steps=3))]


def draw(pipe, case):
    """Final latents [n,C,f,h,w]."""
    return pipe(prompt=case["prompts"], negative_prompt=case["negative_prompt"], height=case["height"], width=case["width"], num_frames=case["num_frames"],
                num_inference_steps=case["steps"], guidance_scale=case["guidance"], guidance_scale_2=case.get("guidance_2"), num_videos_per_prompt=case["n"], generator=generator(case["seed"]),
                max_sequence_length=case["max_sequence_length"], output_type="latent").frames


def tall(latents):
    """[n,C,f·h,w], frame below frame."""
    return latents.reshape(latents.shape[0], latents.shape[1], -1, latents.shape[4])


def make_videos():
    book = Book("wan", "Whole videos by WanPipeline: latents [n,C,f·h,w], frame below frame, are the final ones before the VAE; image (uint8 [n,F·H,W,3], frames likewise) where `image` is true. "
                "The scheduler is the folder's, or `scheduler`(**beta, **config).", beta=TRAINED)
    pipes = {name: load(name) for name in (NAME, PLAIN)}
    own = {name: pipe.scheduler for name, pipe in pipes.items()}
    for name, changes in VIDEOS:
        case = {**DEFAULTS, **changes}
        pipe = pipes[case["checkpoint"]]
        pipe.scheduler = SCHEDULERS[case["scheduler"]](**TRAINED, **case["config"]) if "scheduler" in case else own[case["checkpoint"]]
        latents = draw(pipe, case)
        assert torch.isfinite(latents).all()
        print(f"  {name}: latents {tuple(latents.shape)} {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        tensors = {"latents": tall(latents)}
        if case["image"]:
            tensors["image"] = pictures(pipe, latents)
        book.case(name, case, tensors)
    book.save()


def make():
    make_checkpoints()
    make_calls()
    make_text()
    make_decodes()
    make_videos()
