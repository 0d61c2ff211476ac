"""Single calls of the transformer, and what each block hands on."""
import torch

from checkpoints import load
from common import FIXTURES, Book, generator

# name, checkpoint, batch, latent height and width, tokens of each caption (rest is masked), timesteps, blocks too
CASES = [("square", "tiny-pixart", 1, 16, 16, [9], [981], False), ("wide", "tiny-pixart", 2, 8, 12, [12, 3], [500, 500], True),
         ("tall_odd", "tiny-pixart", 2, 14, 6, [1, 12], [999, 0], False), ("single_token", "tiny-pixart", 1, 2, 2, [4], [250], False),
         ("float_time", "tiny-pixart", 1, 10, 8, [12], [333.25], False), ("large", "tiny-pixart", 1, 24, 20, [7], [40], False),
         ("ms_square", "tiny-pixart-1024", 1, 8, 8, [6], [981], True), ("ms_wide", "tiny-pixart-1024", 2, 6, 14, [5, 11], [640, 640], False),
         ("ms_tall_odd", "tiny-pixart-1024", 1, 18, 10, [12], [20], False)]


def make():
    book = Book("transformer", "One call: hidden [b,4,h,w], caption [b,12,24], mask [b,12] (float, 1 = token), timestep [b] → output [b,8,h,w]. "
                "resolution [b,2] (pixels: height, width) and aspect_ratio [b,1] where the model takes them. With `blocks`: embedded [b,tokens,width] "
                "(patches + positions), block0, block1, … (after each block), modulation [b,6*width] and embedded_timestep [b,width] of adaln_single, "
                "projected_caption [b,12,width].")
    models = {name: load(name).transformer for name in ("tiny-pixart", "tiny-pixart-1024")}
    for seed, (name, checkpoint, batch, height, width, lengths, times, blocks) in enumerate(CASES):
        model, g, kept = models[checkpoint], generator(100 + seed), {}
        hidden = torch.randn(batch, 4, height, width, generator=g)
        caption = torch.randn(batch, 12, 24, generator=g)
        mask = (torch.arange(12)[None] < torch.tensor(lengths)[:, None]).float()
        timestep = torch.tensor(times)
        extra = {"resolution": None, "aspect_ratio": None}
        inputs = {"hidden": hidden, "caption": caption, "mask": mask, "timestep": timestep}
        if model.use_additional_conditions:
            extra = {"resolution": torch.tensor([[8.0 * height, 8.0 * width]] * batch), "aspect_ratio": torch.tensor([[height / width]] * batch)}
            inputs.update(extra)
        hooks = []
        if blocks:
            def keep(key, pick=lambda out: out):
                return lambda module, args, out: kept.__setitem__(key, pick(out))
            hooks = [model.pos_embed.register_forward_hook(keep("embedded")), model.caption_projection.register_forward_hook(keep("projected_caption")),
                     model.adaln_single.register_forward_hook(lambda m, a, out: kept.update(modulation=out[0], embedded_timestep=out[1]))]
            hooks += [block.register_forward_hook(keep(f"block{k}")) for k, block in enumerate(model.transformer_blocks)]
        output = model(hidden, encoder_hidden_states=caption, encoder_attention_mask=mask, timestep=timestep, added_cond_kwargs=extra).sample
        for hook in hooks:
            hook.remove()
        assert torch.isfinite(output).all() and output.std() > 0.1
        book.case(name, {"checkpoint": checkpoint, "blocks": blocks}, {**inputs, **kept, "output": output})
    variants(book)
    book.save()


def variants(book):
    """Outputs of tiny-variants, computed in float32 from the weights as stored (half precision widened)."""
    from diffusers import PixArtTransformer2DModel
    g = generator(200)
    hidden, caption, timestep = torch.randn(1, 4, 8, 6, generator=g), torch.randn(1, 5, 24, generator=g), torch.tensor([700])
    for folder in ("float32", "sharded", "bfloat16", "float16"):
        model = PixArtTransformer2DModel.from_pretrained(FIXTURES / "tiny-variants" / folder, torch_dtype=torch.float32)
        output = model(hidden, encoder_hidden_states=caption, encoder_attention_mask=torch.ones(1, 5), timestep=timestep,
                       added_cond_kwargs={"resolution": None, "aspect_ratio": None}).sample
        book.case(f"variant_{folder}", {"checkpoint": f"tiny-variants/{folder}", "transformer_only": True, "blocks": False},
                  {"hidden": hidden, "caption": caption, "mask": torch.ones(1, 5), "timestep": timestep, "output": output})
