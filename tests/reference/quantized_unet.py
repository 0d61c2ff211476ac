"""Pictures of Stable Diffusion's pipelines with products in 8 bits, as quantized.py has them: those of tokens in the U-Net's transformer blocks, the projections before and after
these, and convolutions of side 3 but for the first and the last."""
import re

import torch

from common import SCHEDULER, Book
from quantized import ONE_STEP, WIDE, ByteLinear
from unet_jobs import DEFAULTS, draw, load

CONVOLUTIONS = re.compile(r"\.(resnets\.\d+\.conv[12]|(down|up)samplers\.0\.conv)$")
PRODUCTS = re.compile(r"\.attentions\.\d+\.(proj_in|proj_out|transformer_blocks\.\d+\..*(to_q|to_k|to_v|to_out\.0|net\.0\.proj|net\.2))$")


class Pointwise(torch.nn.Module):
    """A convolution of side 1 as a product."""

    def __init__(self, convolution):
        super().__init__()
        linear = torch.nn.Linear(convolution.in_channels, convolution.out_channels)
        linear.weight.copy_(convolution.weight[:, :, 0, 0])
        linear.bias.copy_(convolution.bias)
        self.product = ByteLinear(linear)

    def forward(self, x):
        return self.product(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Windows(torch.nn.Module):
    """A convolution of side 3 as a product, of which every window of inputs is a row."""

    def __init__(self, convolution):
        super().__init__()
        linear = torch.nn.Linear(9 * convolution.in_channels, convolution.out_channels)
        linear.weight.copy_(convolution.weight.flatten(1))
        linear.bias.copy_(convolution.bias)
        self.product, self.stride = ByteLinear(linear), convolution.stride

    def forward(self, x):
        rows = torch.nn.functional.unfold(x, 3, padding=1, stride=self.stride).transpose(1, 2)
        return self.product(rows).transpose(1, 2).unflatten(2, [(size - 1) // step + 1 for size, step in zip(x.shape[2:], self.stride)])


def kind_of(name, module):
    if CONVOLUTIONS.search(name):
        return Windows
    return Pointwise if isinstance(module, torch.nn.Conv2d) else ByteLinear


def quantize(unet):
    names = [name for name, _ in unet.named_modules() if PRODUCTS.search(name) or CONVOLUTIONS.search(name)]
    for name in names:
        parent, leaf = name.rsplit(".", 1)
        module = unet.get_submodule(name)
        setattr(unet.get_submodule(parent), leaf, kind_of(name, module)(module))
    return names


def make():
    book = Book("quantized_unet", "As quantized, of Stable Diffusion's pipelines.", beta=SCHEDULER)
    for family in ("sdxl", "sd15"):
        for kind, changes in (("one_step", ONE_STEP), ("wide", WIDE)):
            case = {**DEFAULTS, "image": False, "checkpoint": f"tiny-{family}", **changes, "width": 48, "height": 64}
            pipe = load(case["checkpoint"])
            plain = draw(pipe, case)
            count = len(quantize(pipe.unet))
            latents = draw(pipe, case)
            away = ((latents - plain).abs().max() / (plain.max() - plain.min())).item()
            print(f"  {family}_{kind}: {count} layers, {away:.2g} of the range away", flush=True)
            assert away > 5e-5 and torch.isfinite(latents).all()
            book.case(f"{family}_{kind}", case, {"latents": latents, "float32": plain})
    book.save()
