"""What is measured beside diffusers: the demo checkpoint, and random weights in the shapes of published families, shrunk.

A model is made by diffusers, with the small text encoders and VAEs of `tests/fixtures` or of the demo. Random weights cost the
same time as trained ones."""
import collections
import sys

from command_line import ROOT

FIXTURES = ROOT / "tests" / "fixtures"

# What one way to run costs: name, actors, threads per actor, options
Cluster = collections.namedtuple("Cluster", "name actors threads options")
# make(folder) writes the checkpoint; tokens: --max-sequence-length, or None for the model's own
Shape = collections.namedtuple("Shape", "what size steps guidance tokens make clusters")

ONE = [Cluster("1 actor × 1 thread", 1, 1, []), Cluster("1 actor × 2 threads", 1, 2, [])]
PATCHES = Cluster("pp 2 × 1 thread, 4 patches", 2, 1, ["--pp", "2", "--patches", "4", "--warmup", "1"])
CFG = Cluster("cfg 2 × 1 thread", 2, 1, ["--cfg", "2"])
ULYSSES = Cluster("ulysses 2 × 1 thread", 2, 1, ["--ulysses", "2"])
RING = Cluster("ring 2 × 1 thread, exact", 2, 1, ["--ring", "2"])
DISTRIFUSION = Cluster("ring 2 × 1 thread, DistriFusion of 2 patches", 2, 1,
                       ["--ring", "2", "--method", "distrifusion", "--patches", "2", "--warmup", "1"])


def pixart(folder):
    """The demo's text encoder and VAE around 12 blocks × 384."""
    import torch
    from diffusers import DiffusionPipeline, PixArtTransformer2DModel
    pipe = DiffusionPipeline.from_pretrained(ROOT / "examples/demo/model")
    torch.manual_seed(0)
    pipe.transformer = PixArtTransformer2DModel(
        num_attention_heads=6, attention_head_dim=64, in_channels=4, out_channels=8, num_layers=12, sample_size=64,
        cross_attention_dim=384, patch_size=2, caption_channels=96, norm_type="ada_norm_single",
        norm_elementwise_affine=False, norm_eps=1e-6, attention_bias=True, activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000, interpolation_scale=1, use_additional_conditions=False)
    pipe.save_pretrained(folder)


def flux(folder):
    """FLUX.1-dev's heads and its two single blocks for each double one, 12 blocks of 57, an eighth of the width."""
    import torch
    from diffusers import DiffusionPipeline, FluxTransformer2DModel
    pipe = DiffusionPipeline.from_pretrained(FIXTURES / "tiny-flux")
    small = pipe.transformer.config
    torch.manual_seed(0)
    pipe.transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=small.in_channels, num_layers=4, num_single_layers=8, attention_head_dim=128, num_attention_heads=3,
        joint_attention_dim=small.joint_attention_dim, pooled_projection_dim=small.pooled_projection_dim, guidance_embeds=True,
        axes_dims_rope=(16, 56, 56))
    pipe.save_pretrained(folder)


def sdxl(folder, widths=(64, 128, 256), groups=16):
    """All blocks of SDXL's U-Net at other widths than its 320, 640, 1,280."""
    import torch
    from diffusers import DiffusionPipeline, EulerDiscreteScheduler, UNet2DConditionModel
    sys.path.insert(0, str(ROOT / "tests" / "reference"))
    from common import randomise
    pipe = DiffusionPipeline.from_pretrained(FIXTURES / "tiny-sdxl")
    small = pipe.unet.config
    unet = UNet2DConditionModel(
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), block_out_channels=widths, layers_per_block=2,
        transformer_layers_per_block=[1, 2, 10], attention_head_dim=[1, 2, 4], norm_num_groups=groups,
        cross_attention_dim=small.cross_attention_dim, use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=small.addition_time_embed_dim,
        projection_class_embeddings_input_dim=small.projection_class_embeddings_input_dim, sample_size=128)
    with torch.no_grad():
        pipe.unet = randomise(unet, 61, {"conv_out": 0.5, "to_q": 1.5, "time_emb_proj": 0.7})
    pipe.scheduler = EulerDiscreteScheduler.from_config({**pipe.scheduler.config, "timestep_spacing": "leading", "steps_offset": 1})
    pipe.save_pretrained(folder)


SHAPES = {
    "demo": Shape("examples/demo/model: 8 blocks × 192, 256 tokens", 256, 20, 4.5, None, None, [*ONE, PATCHES, CFG]),
    "pixart": Shape("PixArt, random: 12 blocks × 384, 1,024 tokens", 512, 4, 4.5, None, pixart, [*ONE, PATCHES, CFG]),
    "flux": Shape("FLUX.1, random: 4 + 8 blocks × 384, 1,024 + 128 tokens", 512, 4, 3.5, 128, flux, [*ONE, PATCHES, ULYSSES]),
    "sdxl": Shape("SDXL, random: a fifth of the widths, 64 × 64 latents", 512, 4, 5.0, None, sdxl, [*ONE, CFG, RING, DISTRIFUSION]),
}
# Those that methods.py can take: a DiT with guidance by two branches
GUIDED = ("demo", "pixart")


def folder_of(name, scratch):
    """The folder of a model, which is made under `scratch` if it is not the demo."""
    if not SHAPES[name].make:
        return ROOT / "examples/demo/model"
    folder = scratch / f"{name}-model"
    if not folder.exists():
        SHAPES[name].make(folder)
    return folder
