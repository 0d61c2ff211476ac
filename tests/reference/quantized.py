"""Pictures and a video with the products of tokens in 8 bits: diffusers' own blocks, whose linear layers multiply integers, in float64 sums."""
import re

import torch

import families
import wan
from common import Book

BLOCKS = re.compile(r"^(transformer_blocks|single_transformer_blocks|blocks)\.\d+\.")
PRODUCTS = re.compile(r"\.(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out|net\.0\.proj|net\.2|proj_mlp|proj_out)$")


def byte_rows(x):
    """Integers from -127 to 127, and what one of them is, a row at a time."""
    largest = x.abs().amax(-1, keepdim=True)
    return torch.where(largest > 0, x * (127 / largest), 0).round(), largest / 127


class ByteLinear(torch.nn.Module):
    def __init__(self, linear, cut=None):
        """`cut`: the inputs before and after it are quantized each by themselves, as two products with one weight's scales."""
        super().__init__()
        weight = linear.weight.detach()
        self.scale = weight.abs().amax(1) / 127
        self.bytes = (weight / self.scale.unsqueeze(1)).round()
        self.bias, self.cut, self.out_features = linear.bias, cut, linear.out_features

    def forward(self, x):
        total = 0
        for part, weight in [(x, self.bytes)] if self.cut is None else zip(x.tensor_split([self.cut], -1), self.bytes.tensor_split([self.cut], -1)):
            rows, steps = byte_rows(part)
            total = total + (rows.double() @ weight.double().T).float() * (steps * self.scale)
        return total if self.bias is None else total + self.bias


class Fp8Linear(torch.nn.Module):
    """Weights and rows of inputs in e4m3, of which each output and each row has a scale to its largest number, 448."""

    def __init__(self, linear, cut=None):
        super().__init__()
        weight = linear.weight.detach()
        self.scale = weight.abs().amax(1) / 448
        self.values = e4m3(weight / torch.where(self.scale > 0, self.scale, 1).unsqueeze(1))
        self.bias, self.cut = linear.bias, cut

    def forward(self, x):
        total = 0
        for part, weight in [(x, self.values)] if self.cut is None else zip(x.tensor_split([self.cut], -1), self.values.tensor_split([self.cut], -1)):
            largest = part.abs().amax(-1, keepdim=True)
            rows = e4m3(part * torch.where(largest > 1e-35, 448 / largest, 0))
            total = total + (rows @ weight.T) * (largest / 448 * self.scale)
        return total if self.bias is None else total + self.bias


def e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def quantize(model, kind=ByteLinear):
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and BLOCKS.match(name) and PRODUCTS.search(name)]
    for name in names:
        parent, leaf = name.rsplit(".", 1)
        linear = getattr(model.get_submodule(parent), leaf)
        cut = linear.out_features if name.startswith("single") and leaf == "proj_out" else None
        setattr(model.get_submodule(parent), leaf, kind(linear, cut))
    return names


WIDE = dict(width=96, height=80, prompts=["a cat"], negative_prompt="a dog", guidance=3.0, seed=1, steps=4)
ONE_STEP = dict(steps=1, seed=4)
FAMILIES = ["sigma", "sd3", "sd35", "flux", "hunyuan", "wan"]


def load(family):
    return wan.load() if family == "wan" else families.load(f"tiny-{family}")


def draw(pipe, case):
    return wan.tall(wan.draw(pipe, case)) if case["checkpoint"] == wan.NAME else families.draw(pipe, case)


def make():
    book = Book("quantized", "Whole pictures with int8 weights: final latents [n,C,h/8,w/8] (of a video frame below frame) with (latents) and without (float32) them. Each weight's outputs have a "
                "scale, and each row of inputs; products are integers.")
    for family in FAMILIES:
        for kind, changes in (("one_step", ONE_STEP), ("wide", WIDE)):
            defaults = (wan if family == "wan" else families).DEFAULTS
            case = {**defaults, "image": False, "checkpoint": f"tiny-{family}", **changes}
            if family == "hunyuan":
                case["max_sequence_length"] = 256
            pipe = load(family)
            plain = draw(pipe, case)
            count = len(quantize(pipe.transformer))
            latents = draw(pipe, case)
            away = ((latents - plain).abs().max() / (plain.max() - plain.min())).item()
            print(f"  {family}_{kind}: {count} layers, {away:.2g} of the range away", flush=True)
            assert away > 5e-5 and torch.isfinite(latents).all()
            book.case(f"{family}_{kind}", case, {"latents": latents, "float32": plain})
    book.save()
