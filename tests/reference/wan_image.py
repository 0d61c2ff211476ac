"""Wan from a first frame (and a last one): small random checkpoints of each model, their VAEs' encoders, whole videos, and videos by patches."""
import io
import shutil

import torch
from diffusers import UniPCMultistepScheduler, WanImageToVideoPipeline
from PIL import Image
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

import wan22
import wan_patches
from checkpoints import make_tokenizer
from common import FIXTURES, PROMPT, Book, generator, randomise
from flux2 import references
from wan import FLOW, TRAINED, make_text_encoder, make_transformer, make_vae, pictures, tall

TI2V, TI2V_OTHER, A14B, I2V, FLF = "tiny-wan-ti2v", "tiny-wan-ti2v-other", "tiny-wan-i2v-a14b", "tiny-wan-i2v", "tiny-wan-flf"
# Side of what the vision towers see, of two tokens a side.
SEEN, SEEN_WIDTH = 28, 20
DEFAULTS = dict(checkpoint=TI2V, prompts=[PROMPT], negative_prompt="", height=96, width=64, num_frames=9, steps=4, guidance=4.0, seed=0, n=1, max_sequence_length=24, image=False, references=[(80, 70)])
# The transformers with a vision tower take 512 tokens of text, no other number.
A14B_DEFAULTS = dict(DEFAULTS, checkpoint=A14B, height=48, steps=6)
I2V_DEFAULTS = dict(DEFAULTS, checkpoint=I2V, height=48, max_sequence_length=512)
FLF_DEFAULTS = dict(I2V_DEFAULTS, checkpoint=FLF, references=[(80, 70), (40, 99)])
# name, checkpoint, frames, height and width
ENCODES = [("one_frame", A14B, 1, 32, 48), ("nine_frames", A14B, 9, 24, 16), ("thirteen_frames", A14B, 13, 16, 24), ("squares_one", TI2V, 1, 48, 32), ("squares_nine", TI2V, 9, 32, 32),
           ("squares_other", TI2V_OTHER, 9, 48, 16)]
VIDEOS = {
    "ti2v": [("ti2v_plain", dict(image=True)), ("ti2v_alone", dict(guidance=1.0, seed=3, num_frames=5, width=96, references=[(96, 96)], image=True)), ("ti2v_one_step", dict(steps=1, seed=4)),
             ("ti2v_two", dict(prompts=["a red  circle", PROMPT], n=2, width=32, num_frames=5, seed=2, steps=3, negative_prompt="a dog", image=True)),
             ("ti2v_wide", dict(height=32, width=160, num_frames=13, seed=5, steps=3, references=[(201, 90)])), ("ti2v_other", dict(checkpoint=TI2V_OTHER, seed=6, num_frames=5, steps=3, image=True)),
             ("ti2v_text", dict(references=[], seed=7, steps=3, num_frames=5))],
    "i2v_a14b": [("a14b_plain", dict(image=True)), ("a14b_last", dict(references=[(50, 60), (97, 33)], guidance_2=2.5, seed=8, image=True)), ("a14b_first", dict(steps=1, seed=4)),
                 ("a14b_alone", dict(guidance=1.0, num_frames=13, height=32, seed=9)),
                 ("a14b_two", dict(prompts=["a red  circle", PROMPT], n=2, width=48, num_frames=5, seed=10, steps=3, negative_prompt="a dog", image=True))],
    "i2v": [("i2v_plain", dict(image=True)), ("i2v_alone", dict(guidance=1.0, seed=11, num_frames=5, width=96, references=[(28, 28)])),
            ("i2v_two", dict(prompts=["a red  circle", PROMPT], width=48, num_frames=5, seed=12, steps=3, negative_prompt="a dog", references=[(31, 200)])),
            ("flf_plain", dict(FLF_DEFAULTS, image=True)), ("flf_alone", dict(FLF_DEFAULTS, guidance=1.0, seed=13, num_frames=5, references=[(300, 41), (64, 64)]))],
}
PATCHES = [("pipefusion", "stale", 3, 1), ("pipefusion", "predict", 4, 2), ("distrifusion", "stale", 3, 0), ("distrifusion", "predict", 2, 1)]


def save(name, vae, transformers, **parts):
    shutil.rmtree(FIXTURES / name, ignore_errors=True)
    tokenizer = make_tokenizer(FIXTURES / name / "tokenizer")
    models = dict(zip(("transformer", "transformer_2"), transformers))
    WanImageToVideoPipeline(tokenizer=tokenizer, text_encoder=make_text_encoder(len(tokenizer)), vae=vae, **models, **parts,
                            scheduler=UniPCMultistepScheduler(**TRAINED, **FLOW, flow_shift=5.0)).save_pretrained(FIXTURES / name)


def make_checkpoints():
    wan22.make_checkpoint(TI2V)
    wan22.make_checkpoint(TI2V_OTHER, dim_mult=[1, 1, 2, 2], temperal_downsample=[True, False, True], num_res_blocks=2)
    save(A14B, make_vae(), [make_transformer(seed=seed, num_layers=6, in_channels=12) for seed in (63, 64)], boundary_ratio=0.9)
    for name, seed, act, positions in ((I2V, 65, "gelu", None), (FLF, 66, "quick_gelu", 10)):
        tower = CLIPVisionModel(CLIPVisionConfig(hidden_size=SEEN_WIDTH, intermediate_size=36, num_hidden_layers=4, num_attention_heads=2, image_size=SEEN, patch_size=SEEN // 2, hidden_act=act))
        transformer = make_transformer(seed=seed, num_layers=6, in_channels=12, image_dim=SEEN_WIDTH, added_kv_proj_dim=48, pos_embed_seq_len=positions)
        save(name, make_vae(), [transformer], image_encoder=randomise(tower, seed),
             image_processor=CLIPImageProcessor(size={"shortest_edge": SEEN}, crop_size={"height": SEEN, "width": SEEN}))


def load(name):
    pipe = WanImageToVideoPipeline.from_pretrained(FIXTURES / name)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def opened(files):
    return [Image.open(io.BytesIO(file)) for file in files]


def scaled(pipe, latents):
    config = pipe.vae.config
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (config.latents_mean, config.latents_std))
    return (latents - mean) * (1.0 / std)


def make_encodes():
    book = Book("wan_image_vae", "The encoders: pixels [1,3,F·H,W], frame below frame → latents [1,C,f·h,w], the distribution's mean as the sampler takes it.")
    for seed, (name, checkpoint, frames, height, width) in enumerate(ENCODES):
        pipe = load(checkpoint)
        pixels = torch.rand(1, 3, frames, height, width, generator=generator(950 + seed)) * 2 - 1
        latents = scaled(pipe, pipe.vae.encode(pixels).latent_dist.mode())
        print(f"  {name}: {tuple(latents.shape)}, std {latents.std():.2f}")
        book.case(name, {"checkpoint": checkpoint, "frames": frames}, {"pixels": tall(pixels), "latents": tall(latents)})
    book.save()


def draw(pipe, case, files):
    """Final latents [n,C,f,h,w]."""
    words = dict(prompt=case["prompts"], negative_prompt=case["negative_prompt"], height=case["height"], width=case["width"], num_frames=case["num_frames"], num_inference_steps=case["steps"],
                 guidance_scale=case["guidance"], guidance_scale_2=case.get("guidance_2"), num_videos_per_prompt=case["n"], generator=generator(case["seed"]),
                 max_sequence_length=case["max_sequence_length"], output_type="latent")
    if not files:
        return wan22.load(case["checkpoint"])(**words).frames
    image, *last = opened(files)
    return pipe(image=image, last_image=last[0] if last else None, **words).frames


def sent(files):
    """The frames' files as tensors, under the names by which tests find them."""
    names = ["reference0", "last"]
    return {name: torch.frombuffer(bytearray(file), dtype=torch.uint8) for name, file in zip(names, files)}


def make_videos(part, cases, defaults):
    book = Book(part, "Whole videos by WanImageToVideoPipeline (without references WanPipeline): latents [n,C,f·h,w], frame below frame, are the final ones before the VAE; reference0: the first "
                "frame's file, last: the last one's; image (uint8 [n,F·H,W,3], frames likewise) where `image` is true.")
    pipes = {}
    for name, changes in cases:
        case = {**defaults, **changes}
        pipe = pipes.setdefault(case["checkpoint"], load(case["checkpoint"]))
        files = references(case)
        latents = draw(pipe, case, files)
        assert torch.isfinite(latents).all()
        print(f"  {name}: latents {tuple(latents.shape)} {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        tensors = {"latents": tall(latents), **sent(files)}
        if case["image"]:
            tensors["image"] = pictures(pipe, latents)
        book.case(name, {**case, "references": case["references"][:1], "last": len(files) > 1}, tensors)
    book.save()


def denoise(pipe, case, files):
    frames = [pipe.video_processor.preprocess(image, height=case["height"], width=case["width"]) for image in opened(files)]
    image = None if pipe.transformer.config.image_dim is None else pipe.encode_image(opened(files), "cpu")
    _, condition, *mask = pipe.prepare_latents(frames[0], 1, pipe.vae.config.z_dim, case["height"], case["width"], case["num_frames"], torch.float32, "cpu", None,
                                               None, frames[1] if len(frames) > 1 else None)
    if mask:
        return wan_patches.denoise(pipe, case, lambda latents: (1 - mask[0]) * condition + mask[0] * latents, mask[0])
    return wan_patches.denoise(pipe, case, lambda latents: torch.cat([latents, condition], 1), image=image)


def make_patches(part, defaults, methods):
    book = Book(part, "As the whole videos, by PipeFusion or DistriFusion.")
    pipe = load(defaults["checkpoint"])
    for number, (method, kv, patches, warmup) in enumerate(methods):
        case = {**defaults, "steps": 6, "method": method, "kv": kv, "patches": patches, "warmup": warmup, "seed": 30 + number, "guidance": 1.0 if number == 1 else 4.0}
        files = references(case)
        book.case(f"{method}_{kv}_m{patches}_k{warmup}", {**case, "references": case["references"][:1], "last": len(files) > 1},
                  {"latents": denoise(pipe, case, files), **sent(files)})
    book.save()


def make():
    make_checkpoints()
    make_encodes()
    for (part, cases), defaults in zip(VIDEOS.items(), (DEFAULTS, A14B_DEFAULTS, I2V_DEFAULTS)):
        make_videos(part, cases, defaults)
    make_patches("ti2v_patches", DEFAULTS, PATCHES)
    make_patches("i2v_a14b_patches", A14B_DEFAULTS, PATCHES[1:3])
    make_patches("flf_patches", FLF_DEFAULTS, PATCHES[1:3])
