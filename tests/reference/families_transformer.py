"""Single calls of the other families' transformers, on random text states."""
import shutil

import torch
from diffusers import FluxTransformer2DModel, HunyuanDiT2DModel, SD3Transformer2DModel
from diffusers.models.embeddings import get_2d_rotary_pos_embed
from diffusers.pipelines.hunyuandit.pipeline_hunyuandit import get_resize_crop_region_for_grid
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline

from common import FIXTURES, Book, generator, halve, randomise

# name, checkpoint, batch, latent height and width, timestep
CASES = [("sd3_square", "tiny-sd3", 1, 8, 8, 981.0), ("sd3_wide", "tiny-sd3", 2, 6, 14, 333.25), ("sd35_tall", "tiny-sd35", 2, 14, 6, 999.0), ("sd35_large", "tiny-sd35", 1, 24, 20, 40.5),
         ("flux_square", "tiny-flux", 1, 8, 8, 1000.0), ("flux_wide", "tiny-flux", 2, 6, 14, 512.125), ("schnell_tall", "tiny-flux-schnell", 2, 10, 4, 250.0),
         ("hunyuan_square", "tiny-hunyuan-short", 1, 8, 8, 981.0), ("hunyuan_wide", "tiny-hunyuan-short", 2, 6, 14, 40.0), ("hunyuan_sizes_tall", "tiny-hunyuan-sizes", 2, 14, 6, 500.0)]
TEXT, GUIDANCE = 9, 3.5


def make_hunyuan():
    for name, sizes in (("tiny-hunyuan-short", False), ("tiny-hunyuan-sizes", True)):
        model = HunyuanDiT2DModel(num_attention_heads=3, attention_head_dim=8, in_channels=4, patch_size=2, sample_size=16, hidden_size=24, num_layers=6, mlp_ratio=3.3,
                                  learn_sigma=True, cross_attention_dim=16, cross_attention_dim_t5=24, pooled_projection_dim=16, text_len=7, text_len_t5=TEXT,
                                  use_style_cond_and_image_meta_size=sizes)
        randomise(model, 31, {"to_q": 1.5})
        model.text_embedding_padding.copy_(torch.randn(model.text_embedding_padding.shape, generator=generator(32)))
        shutil.rmtree(FIXTURES / name, ignore_errors=True)
        model.save_pretrained(FIXTURES / name / "transformer")
        halve(FIXTURES / name)


def draw(r, *shape):
    return torch.randn(*shape, generator=r)


def call(checkpoint, batch, height, width, timestep, r):
    """The call's inputs, as a pipeline's text encoders would give them, and the output."""
    kind = {"tiny-sd3": SD3Transformer2DModel, "tiny-sd35": SD3Transformer2DModel, "tiny-flux": FluxTransformer2DModel, "tiny-flux-schnell": FluxTransformer2DModel}.get(checkpoint, HunyuanDiT2DModel)
    model = kind.from_pretrained(FIXTURES / checkpoint / "transformer").eval()
    time = torch.full((batch,), timestep)
    if kind is SD3Transformer2DModel:
        x, l, g, t5 = draw(r, batch, 16, height, width), draw(r, batch, 7, 8), draw(r, batch, 7, 12), draw(r, batch, TEXT, 24)
        pl, pg = draw(r, batch, 8), draw(r, batch, 12)
        clip = torch.nn.functional.pad(torch.cat([l, g], -1), (0, 4))
        out = model(x, torch.cat([clip, t5], 1), torch.cat([pl, pg], -1), time, return_dict=False)[0]
        return {"hidden": x, "states0": l, "pooled0": pl, "states1": g, "pooled1": pg, "states2": t5, "output": out}
    if kind is FluxTransformer2DModel:
        x, pooled, t5 = draw(r, batch, 4, height, width), draw(r, batch, 16), draw(r, batch, TEXT, 24)
        packed = FluxPipeline._pack_latents(x, batch, 4, height, width)
        ids = FluxPipeline._prepare_latent_image_ids(batch, height // 2, width // 2, "cpu", torch.float32)
        guidance = torch.full((batch,), GUIDANCE) if model.config.guidance_embeds else None
        out = model(packed, t5, pooled, time / 1000, ids, torch.zeros(TEXT, 3), guidance, return_dict=False)[0]
        return {"hidden": x, "pooled0": pooled, "states1": t5, "output": FluxPipeline._unpack_latents(out, height * 8, width * 8, 8)}
    x, bert, t5 = draw(r, batch, 4, height, width), draw(r, batch, 7, 16), draw(r, batch, TEXT, 24)
    lengths = [torch.tensor([n - k for k in range(batch)]) for n in (5, TEXT - 2)]
    masks = [(torch.arange(n)[None] < own[:, None]).long() for n, own in zip((7, TEXT), lengths)]
    grid = (height // 2, width // 2)
    rotary = get_2d_rotary_pos_embed(8, get_resize_crop_region_for_grid(grid, 32), grid, output_type="pt")
    sizes = torch.tensor([[1024.0, 1024.0, height * 8, width * 8, 0, 0]] * batch)
    out = model(x, time, encoder_hidden_states=bert, text_embedding_mask=masks[0], encoder_hidden_states_t5=t5, text_embedding_mask_t5=masks[1], image_meta_size=sizes,
                style=torch.zeros(batch, dtype=torch.long), image_rotary_emb=rotary, return_dict=False)[0]
    return {"hidden": x, "states0": bert, "lengths0": lengths[0], "states1": t5, "lengths1": lengths[1], "output": out[:, :4]}


def make():
    make_hunyuan()
    book = Book("families_transformer", f"Checkpoint `checkpoint`/transformer on latents `hidden` at `timestep`, guidance {GUIDANCE}: statesN, pooledN and lengthsN are "
                "what text encoder N gave, as the pipelines join them; output [B,C,h,w] without a learned variance.")
    for k, (name, checkpoint, batch, height, width, timestep) in enumerate(CASES):
        tensors = call(checkpoint, batch, height, width, timestep, generator(100 + k))
        out = tensors["output"]
        assert torch.isfinite(out).all() and (batch == 1 or not torch.allclose(out[0], out[1], atol=1e-2))
        print(f"  {name}: {out.min():.2f} to {out.max():.2f}", flush=True)
        book.case(name, {"checkpoint": checkpoint, "timestep": timestep, "guidance": GUIDANCE}, tensors)
    book.save()
