"""Small random checkpoints of the other families, and whole pictures by their pipelines."""
import shutil

import diffusers
import numpy as np
import torch
from diffusers import (AutoencoderKL, DDIMScheduler, HunyuanDiT2DModel, HunyuanDiTPipeline, DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel, PixArtSigmaPipeline,
                       SD3Transformer2DModel, StableDiffusion3Pipeline)
from transformers import BertConfig, BertModel, BertTokenizer, CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from checkpoints import make_text_encoder, make_tokenizer, make_transformer, make_vae
from common import FIXTURES, PROMPT, SCHEDULER, Book, generator, halve, randomise

CLIP = FIXTURES / "tiny-clip"


def clip_encoder(seed, width, projection, act):
    tokenizer = CLIPTokenizer.from_pretrained(CLIP / "tokenizer")
    config = CLIPTextConfig(vocab_size=len(tokenizer), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=3, num_attention_heads=2,
                            max_position_embeddings=77, hidden_act=act, projection_dim=projection or width, bos_token_id=tokenizer.bos_token_id,
                            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    kind = CLIPTextModelWithProjection if projection else CLIPTextModel
    return tokenizer, randomise(kind(config), seed, {"embedding": 3.0})


def flow_vae(channels):
    """As SD3's and FLUX's: no convolutions beside the latents, which are shifted."""
    vae = AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, block_out_channels=(8, 8, 16, 16),
                        layers_per_block=1, latent_channels=channels, norm_num_groups=4, sample_size=64, scaling_factor=1.3, shift_factor=0.12,
                        use_quant_conv=False, use_post_quant_conv=False)
    return randomise(vae, 2, {"decoder.conv_out": 1.0})


def t5(folder):
    tokenizer = make_tokenizer(folder)
    return tokenizer, make_text_encoder(len(tokenizer))


def make_sigma(folder):
    tokenizer, encoder = t5(folder / "tokenizer")
    transformer = make_transformer(21, 3, 3, sample_size=16, interpolation_scale=1, use_additional_conditions=False)
    return PixArtSigmaPipeline(tokenizer=tokenizer, text_encoder=encoder, vae=make_vae(), transformer=transformer,
                               scheduler=DPMSolverMultistepScheduler(**SCHEDULER, solver_order=2, algorithm_type="dpmsolver++"))


def small_vae(scaling):
    vae = AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, block_out_channels=(4, 4, 8, 8),
                        layers_per_block=1, latent_channels=4, norm_num_groups=2, sample_size=64, scaling_factor=scaling)
    return randomise(vae, 5, {"decoder.conv_out": 1.0})


def make_sigma_ms(folder):
    """Positions as in the published 1024 px checkpoint; T5's distances as in the published encoder."""
    tokenizer = make_tokenizer(folder / "tokenizer")
    encoder = make_text_encoder(len(tokenizer), buckets=32, distance=128)
    transformer = make_transformer(27, 2, 2, sample_size=128, interpolation_scale=2, use_additional_conditions=False)
    return PixArtSigmaPipeline(tokenizer=tokenizer, text_encoder=encoder, vae=small_vae(0.6), transformer=transformer,
                               scheduler=DPMSolverMultistepScheduler(**SCHEDULER, solver_order=3, algorithm_type="dpmsolver++"))


def make_sd3(folder, with_t5=True, **config):
    tokenizer, encoder = clip_encoder(22, 8, 8, "quick_gelu")
    tokenizer_2, encoder_2 = clip_encoder(23, 12, 12, "gelu")
    tokenizer_3, encoder_3 = t5(folder / "tokenizer_3") if with_t5 else (None, None)
    transformer = SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=16, num_layers=4, attention_head_dim=8, num_attention_heads=3, joint_attention_dim=24,
        caption_projection_dim=24, pooled_projection_dim=20, out_channels=16, pos_embed_max_size=12, **config)
    randomise(transformer, 24, {"to_q": 1.5, "add_q": 1.5, "context_embedder": 2.0, "proj_out": 0.6})
    return StableDiffusion3Pipeline(
        transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), vae=flow_vae(16), text_encoder=encoder, tokenizer=tokenizer,
        text_encoder_2=encoder_2, tokenizer_2=tokenizer_2, text_encoder_3=encoder_3, tokenizer_3=tokenizer_3)


def make_flux(folder, guidance):
    tokenizer, encoder = clip_encoder(25, 16, None, "quick_gelu")
    tokenizer_2, encoder_2 = t5(folder / "tokenizer_2")
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=2, num_single_layers=3, attention_head_dim=8, num_attention_heads=3, joint_attention_dim=24,
        pooled_projection_dim=16, guidance_embeds=guidance, axes_dims_rope=(2, 4, 2))
    randomise(transformer, 26, {"to_q": 1.5, "add_q": 1.5, "context_embedder": 2.0, "proj_out.weight": 0.6})
    shift = dict(shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=16, max_image_seq_len=256) if guidance else dict(shift=1.0)
    return FluxPipeline(scheduler=FlowMatchEulerDiscreteScheduler(**shift), vae=flow_vae(4), text_encoder=encoder, tokenizer=tokenizer,
                        text_encoder_2=encoder_2, tokenizer_2=tokenizer_2, transformer=transformer)


def bert(folder):
    """A vocabulary of letters, some words and their endings, some of them Chinese."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *",.!?-'", *letters, *("##" + c for c in letters), "circle", "square", "##ound", "back", "##gr", "red", "white",
              "above", "##low", *"一只猫红色的圆", "cafe"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(p + "\n" for p in pieces), encoding="utf-8")
    tokenizer = BertTokenizer.from_pretrained(folder)
    config = BertConfig(vocab_size=len(pieces), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=80)
    return tokenizer, randomise(BertModel(config), 33, {"embeddings": 3.0})


def make_hunyuan(folder, sizes=False):
    """`sizes`: as HunyuanDiT 1.1, which is told the picture's size and style, and smaller."""
    tokenizer, encoder = bert(folder / "tokenizer")
    tokenizer_2, encoder_2 = t5(folder / "tokenizer_2")
    heads, layers = (2, 4) if sizes else (3, 6)
    transformer = HunyuanDiT2DModel(num_attention_heads=heads, attention_head_dim=8, in_channels=4, patch_size=2, sample_size=16, hidden_size=8 * heads, num_layers=layers, mlp_ratio=3.3,
                                    learn_sigma=True, cross_attention_dim=16, cross_attention_dim_t5=24, pooled_projection_dim=16, text_len=77, text_len_t5=256,
                                    use_style_cond_and_image_meta_size=sizes)
    randomise(transformer, 34, {"to_q": 1.5, "proj_out": 0.5})
    scheduler = DDIMScheduler(**SCHEDULER, prediction_type="v_prediction", clip_sample=False, set_alpha_to_one=False, steps_offset=1)
    return HunyuanDiTPipeline(vae=small_vae(0.7) if sizes else make_vae(), text_encoder=encoder, tokenizer=tokenizer, transformer=transformer, scheduler=scheduler, safety_checker=None,
                              feature_extractor=None, requires_safety_checker=False, text_encoder_2=encoder_2, tokenizer_2=tokenizer_2)


CHECKPOINTS = {
    "tiny-hunyuan": make_hunyuan,
    "tiny-hunyuan-meta": lambda folder: make_hunyuan(folder, True),
    "tiny-sigma": make_sigma,
    "tiny-sigma-ms": make_sigma_ms,
    "tiny-sd3": make_sd3,
    "tiny-sd35": lambda folder: make_sd3(folder, with_t5=False, qk_norm="rms_norm", dual_attention_layers=(0, 1)),
    "tiny-flux": lambda folder: make_flux(folder, True),
    "tiny-flux-schnell": lambda folder: make_flux(folder, False),
}

DEFAULTS = dict(prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=6, guidance=4.5, seed=0, n=1, max_sequence_length=12)
PLAIN = dict(image=True)
WIDE = dict(width=96, height=80, prompts=["a cat"], negative_prompt="a dog", guidance=3.0, seed=1, steps=4)
TWO = dict(prompts=["a red circle", "a tree"], n=2, width=48, seed=2, steps=3)
ALONE = dict(guidance=1.0, seed=3, image=True, steps=3)
ONE_STEP = dict(steps=1, seed=4)
CASES = [(f"{name.removeprefix('tiny-')}_{kind}", {"checkpoint": name, **changes}) for name in CHECKPOINTS
         if name not in ("tiny-hunyuan", "tiny-hunyuan-meta", "tiny-sigma-ms") for kind, changes in (("plain", PLAIN), ("wide", WIDE), ("two", TWO), ("alone", ALONE), ("one_step", ONE_STEP))]

# One picture a prompt: with more, diffusers' pipeline lays masks and states out in different orders.
MANY = dict(max_sequence_length=256)
CASES += [(f"hunyuan_{kind}", {"checkpoint": "tiny-hunyuan", **MANY, **changes}) for kind, changes in
          (("plain", PLAIN), ("wide", WIDE), ("two", {**TWO, "n": 1, "prompts": ["一只红色的猫 café", "a blue house, 4 cats!"]}), ("alone", ALONE), ("one_step", ONE_STEP))]

CASES += [(f"sigma-ms_{kind}", {"checkpoint": "tiny-sigma-ms", **changes}) for kind, changes in (("plain", PLAIN), ("wide", WIDE))]
CASES += [(f"hunyuan-meta_{kind}", {"checkpoint": "tiny-hunyuan-meta", **MANY, **changes}) for kind, changes in (("plain", PLAIN), ("wide", WIDE))]

# More words than the farthest distance that T5 tells apart, which CLIP cuts.
LONG = dict(prompts=[f"{PROMPT}, a green tree by the river, a white cat and a black dog, " * 8], seed=5, steps=3)
CASES += [("sd3_long", {"checkpoint": "tiny-sd3", **LONG, "max_sequence_length": 256}), ("flux_long", {"checkpoint": "tiny-flux", **LONG, "max_sequence_length": 512}),
          ("sigma-ms_long", {"checkpoint": "tiny-sigma-ms", **LONG, "max_sequence_length": 300})]

# What else each family's pipeline can be run with. FLUX's passes its own noise levels: only their spacing can differ.
FLOW = dict(prediction_type="flow_prediction", use_flow_sigmas=True)
VELOCITY = dict(prediction_type="v_prediction", steps_offset=1)
SHIFT = dict(use_dynamic_shifting=True, base_shift=0.3, max_shift=0.9, base_image_seq_len=16, max_image_seq_len=256)
SAMPLERS = [("sigma", "euler", "EulerDiscreteScheduler", {}), ("sigma", "ddim", "DDIMScheduler", dict(clip_sample=False)),
            ("sigma-ms", "unipc", "UniPCMultistepScheduler", {}),
            ("sd3", "unipc", "UniPCMultistepScheduler", dict(**FLOW, flow_shift=3.0)),
            ("sd35", "dpm", "DPMSolverMultistepScheduler", dict(**FLOW, flow_shift=3.0, algorithm_type="dpmsolver++")),
            ("flux", "linear", "FlowMatchEulerDiscreteScheduler", dict(**SHIFT, time_shift_type="linear")),
            ("flux-schnell", "exponential", "FlowMatchEulerDiscreteScheduler", dict(shift=2.0, use_exponential_sigmas=True)),
            ("hunyuan", "ddpm", "DDPMScheduler", dict(**VELOCITY, clip_sample=False)),
            ("hunyuan", "dpm", "DPMSolverMultistepScheduler", dict(**VELOCITY, algorithm_type="dpmsolver++")),
            ("hunyuan-meta", "euler", "EulerDiscreteScheduler", VELOCITY)]
CASES += [(f"{family}_{kind}", {"checkpoint": f"tiny-{family}", **(MANY if "hunyuan" in family else {}), "scheduler": name, "config": config, "seed": 6 + k})
          for k, (family, kind, name, config) in enumerate(SAMPLERS)]


def load(name):
    kind = {"tiny-sigma": PixArtSigmaPipeline, "tiny-sigma-ms": PixArtSigmaPipeline, "tiny-hunyuan-meta": HunyuanDiTPipeline, "tiny-sd3": StableDiffusion3Pipeline, "tiny-sd35": StableDiffusion3Pipeline, "tiny-hunyuan": HunyuanDiTPipeline}.get(name, FluxPipeline)
    absent = dict(text_encoder_3=None, tokenizer_3=None) if name == "tiny-sd35" else {}
    pipe = kind.from_pretrained(FIXTURES / name, **absent)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe, case):
    """Final latents [n, C, h/8, w/8] as the pipeline has them before the VAE."""
    call = dict(prompt=case["prompts"], height=case["height"], width=case["width"], num_inference_steps=case["steps"], guidance_scale=case["guidance"],
                num_images_per_prompt=case["n"], generator=generator(case["seed"]), max_sequence_length=case["max_sequence_length"], output_type="latent")
    if isinstance(pipe, FluxPipeline):
        return pipe._unpack_latents(pipe(**call).images, case["height"], case["width"], 8)
    if isinstance(pipe, HunyuanDiTPipeline):
        call.update(use_resolution_binning=False)
        call.pop("max_sequence_length")  # the pipeline's own: 77 and 256
    if isinstance(pipe, PixArtSigmaPipeline):
        call.update(use_resolution_binning=False, clean_caption=False)
    many = isinstance(pipe, HunyuanDiTPipeline)  # takes as many as there are prompts
    return pipe(**call, negative_prompt=[case["negative_prompt"]] * len(case["prompts"]) if many else case["negative_prompt"]).images


def scheduled(case, own):
    if "scheduler" not in case:
        return own
    beta = {} if case["scheduler"].startswith("FlowMatch") else SCHEDULER
    return getattr(diffusers, case["scheduler"])(**beta, **case["config"])


def decode(pipe, latents):
    config = pipe.vae.config
    pixels = pipe.vae.decode(latents / config.scaling_factor + (config.shift_factor or 0), return_dict=False)[0]
    return torch.from_numpy(np.stack([np.asarray(i) for i in pipe.image_processor.postprocess(pixels, output_type="pil")]))


def make():
    for name, build in CHECKPOINTS.items():
        shutil.rmtree(FIXTURES / name, ignore_errors=True)
        build(FIXTURES / name).save_pretrained(FIXTURES / name)
    halve(FIXTURES / "tiny-hunyuan-meta" / "transformer")
    book = Book("families", "Whole pictures by the families' own pipelines; schedulers are as the checkpoint's folder names them, or `scheduler`(**beta, **config), "
                "a flow's without beta: latents [n,C,h/8,w/8] are the final ones before the VAE, image (uint8 [n,h,w,3]) where `image` is true.", beta=SCHEDULER)
    pipes, own = {}, {}
    for name, changes in CASES:
        case = {**DEFAULTS, "image": False, **changes}
        pipe = pipes.setdefault(case["checkpoint"], load(case["checkpoint"]))
        pipe.scheduler = scheduled(case, own.setdefault(case["checkpoint"], pipe.scheduler))
        latents = draw(pipe, case)
        assert torch.isfinite(latents).all()
        tensors = {"latents": latents}
        if case["image"]:
            tensors["image"] = decode(pipe, latents)
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        book.case(name, case, tensors)
    book.save()
