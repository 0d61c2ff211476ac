"""Qwen-Image-Edit and its Plus form: small random checkpoints, whole pictures by their pipelines with one to three pictures to edit, and by patches."""
import io
import json
import shutil

import torch
from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline
from PIL import Image
from transformers import Qwen2VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import qwen_image
from common import FIXTURES, PROMPT, Book, generator
from flux2 import references
from patches import PatchAttention
from qwen_image import block_of, decode, make_scheduler, make_text_encoder, make_tokenizer, make_transformer, make_vae

# Sixteen pixels a latent, so that the megapixel of a picture to edit is a thousand tokens.
DOWNSAMPLE = (False, True, True, False)
PIPELINES = {"tiny-qwen-edit": (QwenImageEditPipeline, {}), "tiny-qwen-edit-plus": (QwenImageEditPlusPipeline, dict(zero_cond_t=True))}
DEFAULTS = dict(checkpoint="tiny-qwen-edit", prompts=[PROMPT], negative_prompt="", height=128, width=128, steps=3, guidance=4.0, seed=0, n=1, max_sequence_length=100, image=False)
PLUS = dict(checkpoint="tiny-qwen-edit-plus")
CASES = {
    "one": dict(references=[(80, 70)], image=True),
    "two_prompts": dict(references=[(70, 200)], prompts=["a red circle", "a tree, a cat and a dog: é 猫"], negative_prompt="a house", width=96, seed=1, steps=2),
    "alone": dict(references=[(90, 1100)], negative_prompt=None, n=2, seed=2, steps=2),
    "sized": dict(references=[(120, 160)], height=0, width=0, guidance=1.0, seed=3, steps=2),
    "plus_one": dict(references=[(300, 200)], seed=4, image=True, **PLUS),
    "plus_two": dict(references=[(64, 101), (96, 64)], prompts=["a cat", "a blue tree"], negative_prompt="a dog", height=96, seed=5, steps=2, **PLUS),
    "plus_three": dict(references=[(64, 64), (50, 90), (200, 100)], guidance=1.0, negative_prompt=None, width=160, n=2, seed=6, steps=2, **PLUS),
}


def make_processor(tokenizer):
    """The pipelines' processor without what reads videos, which needs torchvision."""
    Qwen2VLProcessor.check_argument_for_proper_class = lambda *args: None
    return Qwen2VLProcessor(Qwen2VLImageProcessorPil(min_pixels=16 * 16, max_pixels=64 * 72, patch_size=4), tokenizer, None)


def make_checkpoints():
    tokenizer = make_tokenizer(QwenImageEditPipeline)
    processor = make_processor(tokenizer)
    for name, (pipeline, more) in PIPELINES.items():
        folder = FIXTURES / name
        shutil.rmtree(folder, ignore_errors=True)
        encoder = make_text_encoder(tokenizer, depth=3, num_heads=2, window_size=32, fullatt_block_indexes=[1])
        pipeline(scheduler=make_scheduler(), vae=make_vae(DOWNSAMPLE, 4), text_encoder=encoder, tokenizer=tokenizer, processor=None, transformer=make_transformer(**more)).save_pretrained(folder)
        processor.image_processor.save_pretrained(folder / "processor")
        index = folder / "model_index.json"
        index.write_text(json.dumps({**json.loads(index.read_text()), "processor": ["transformers", "Qwen2VLProcessor"]}, indent=1))


def load(name):
    pipe = PIPELINES[name][0].from_pretrained(FIXTURES / name, processor=None)
    pipe.processor = make_processor(pipe.tokenizer)
    pipe.set_progress_bar_config(disable=True)
    # transformers 5 has the positions of a picture's tokens only where it is told which they are; the pipelines of diffusers 0.42 do not tell it.
    encoder, place = pipe.text_encoder.forward, pipe.tokenizer.convert_tokens_to_ids("<|image_pad|>")

    def told(input_ids, **named):
        out = encoder(input_ids=input_ids, mm_token_type_ids=(input_ids == place).int(), **named)
        pipe.text_encoder.last = {"input_ids": input_ids, "states": out.hidden_states[-1]}
        return out

    pipe.text_encoder.forward = told
    # A picture that comes again is not encoded again: a megapixel takes seconds.
    encode, known = pipe.vae.encode, {}

    def encode_once(pixels):
        key = pixels.numpy().tobytes()
        if key not in known:
            known[key] = encode(pixels)
        return known[key]

    pipe.vae.encode = encode_once
    return pipe


def pictures_of(case):
    found = [Image.open(io.BytesIO(file)) for file in references(case)]
    return found if case["checkpoint"].endswith("plus") else found[0]


def noise(pipe, case):
    channels, height, width = pipe.transformer.config.in_channels // 4, case["height"] // 16, case["width"] // 16
    count = len(case["prompts"]) * case["n"]
    return pipe._pack_latents(torch.randn(count, 1, channels, height, width, generator=generator(case["seed"])), count, channels, height, width)


def draw(pipe, case):
    """Final latents [n, C, h/16, w/16]. The pipelines take one prompt with a picture: each of several gets its part of the noise."""
    call = dict(image=pictures_of(case), negative_prompt=case["negative_prompt"], true_cfg_scale=case["guidance"], height=case["height"] or None, width=case["width"] or None,
                num_inference_steps=case["steps"], output_type="latent")
    if len(case["prompts"]) == 1:
        packed = pipe(prompt=case["prompts"], num_images_per_prompt=case["n"], generator=generator(case["seed"]), **call).images
    else:
        every = [prompt for prompt in case["prompts"] for _ in range(case["n"])]
        packed = torch.cat([pipe(prompt=prompt, latents=own, **call).images for prompt, own in zip(every, noise(pipe, case).split(1))])
    height, width = (case["height"], case["width"]) if case["height"] else size_of(case)
    return pipe._unpack_latents(packed, height, width, 16)[:, :, 0]


def size_of(case):
    """Height and width of about a megapixel, of the first picture's ratio."""
    height, width = case["references"][0]
    across = (1024 * 1024 * width / height) ** 0.5
    return round(across * height / width / 32) * 32, round(across / 32) * 32


def files_of(case):
    return {f"reference{k}": torch.frombuffer(bytearray(file), dtype=torch.uint8) for k, file in enumerate(references(case))}


def pictures(pipes):
    book = Book("qwen_edit", "Whole pictures by QwenImageEditPipeline and QwenImageEditPlusPipeline, whose text encoder is told which tokens are pictures': latents [n,C,h/16,w/16] are the "
                "final ones before the VAE, image (uint8 [n,h,w,3]) where `image` is true. `references`: pictures to edit, the files reference0, ….")
    for name, changes in CASES.items():
        case = {**DEFAULTS, **changes}
        pipe = pipes[case["checkpoint"]]
        latents = draw(pipe, case)
        assert torch.isfinite(latents).all()
        tensors = {"latents": latents, **files_of(case)}
        if case["image"]:
            tensors["pixels"], tensors["image"] = decode(pipe, latents)
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        book.case(f"qwen-edit_{name}", case, tensors)
    book.save()


def states(pipes):
    book = Book("qwen_edit_states", "Ids [1, L] that the pipeline of `checkpoint` hands its text encoder beside the pictures reference0, …, and the states [1, L, D] of them.")
    for name, sizes in (("tiny-qwen-edit", [(80, 70)]), ("tiny-qwen-edit-plus", [(64, 101), (300, 200)])):
        case = {**DEFAULTS, "checkpoint": name, "references": sizes, "seed": 8}
        pipes[name](image=pictures_of(case), prompt=PROMPT, true_cfg_scale=1.0, height=64, width=64, num_inference_steps=2, generator=generator(0), output_type="latent")
        book.case(name, case, {**pipes[name].text_encoder.last, **files_of(case)})
    book.save()


class Branch(qwen_image.Branch):
    """As Qwen-Image's, with pictures to edit, which are computed with the text."""

    def __init__(self, pipe, case, prompt):
        self.model, self.rows, self.columns = pipe.transformer, case["height"] // 32, case["width"] // 32
        seen = {}
        forward = self.model.forward
        # What the pipeline itself makes of text and pictures, in a single call.
        self.model.forward = lambda **named: seen.update(named) or forward(**named)
        pipe(image=pictures_of(case), prompt=prompt, true_cfg_scale=1.0, height=case["height"], width=case["width"], num_inference_steps=2, generator=generator(0), output_type="latent")
        self.model.forward = forward
        states, own = seen["encoder_hidden_states"], self.rows * self.columns
        self.tokens, self.text = states.shape[1], self.model.txt_in(self.model.txt_norm(states))
        self.edited = seen["hidden_states"][:, own:]
        self.before = self.tokens + self.edited.shape[1]
        self.kept = [PatchAttention(self.before + own, case["method"], case["kv"]) for _ in self.model.transformer_blocks]
        self.rotary = self.model.pos_embed(seen["img_shapes"], max_txt_seq_len=self.tokens, device=torch.device("cpu"))

    def predict(self, packed, step, t, rows):
        model, texts, edited = self.model, *((self.tokens, self.edited.shape[1]) if rows[0] == 0 else (0, 0))
        count = self.rows * self.columns
        own = torch.arange(rows[0] * self.columns, rows[1] * self.columns)
        text, picture = self.text[:, :texts], model.img_in(torch.cat([self.edited[:, :edited], packed[:, own]], dim=1))
        temb = model.time_text_embed(torch.stack([t / 1000, t * 0]), picture)
        index = torch.tensor([[1] * edited + [0] * len(own)])
        places = torch.cat([count + torch.arange(edited), own])
        for kept, block in zip(self.kept, model.transformer_blocks):
            kept.step, kept.now = step, torch.cat([torch.arange(texts + edited), self.before + own])
            text, picture = block_of(block, kept, text, picture, temb[:1], (self.rotary[0][places], self.rotary[1][:texts]), temb, index)
        return model.proj_out(model.norm_out(picture[:, edited:], temb[:1]))


def patches(pipe):
    book = Book("qwen_edit_patches", "As `qwen_edit`, by `method` with `patches` and `warmup` synchronous steps, K, V `kv`: see `joint_patches`.")
    shape = {**DEFAULTS, **PLUS, "references": [(80, 70), (64, 64)], "negative_prompt": "a dog", "seed": 9}
    whole = {**shape, "method": "pipefusion", "kv": "stale", "patches": 1, "warmup": 0}
    drift = float((qwen_image.denoise(pipe, whole, Branch) - draw(pipe, whole)).abs().max())
    assert drift < 1e-5, drift
    for method in ("pipefusion", "distrifusion"):
        for kv in ("stale", "predict"):
            case = {**shape, "method": method, "kv": kv, "patches": 3, "warmup": 1}
            book.case(f"qwen-edit_{method}_{kv}", case, {"latents": qwen_image.denoise(pipe, case, Branch), **files_of(case)})
    book.save()


def make():
    make_checkpoints()
    pipes = {name: load(name) for name in PIPELINES}
    states(pipes)
    pictures(pipes)
    patches(pipes["tiny-qwen-edit-plus"])
