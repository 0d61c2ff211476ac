"""The published shapes that are measured on a GPU, and by how much they are cut: a call there has ten minutes."""
import argparse
import collections
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC, FIXTURES = ROOT / "tests" / "spec", ROOT / "tests" / "fixtures"

# network: (component, its config in tests/spec); encoders: component → config; blocks: what the network is cut to; size, frames,
# steps, guidance: what is asked of it; tiny: the fixture that lends tokenizers and scheduler, and is the model of a rehearsal
Shape = collections.namedtuple("Shape", "network vae encoders tiny blocks size frames steps guidance")
T5, CLIP_L, CLIP_G = "kT5XxlConfig", "kClipLConfig", "kClipGConfig"
SHAPES = {
    "pixart": Shape(("transformer", "kPixArtXl1024Config"), "kSdVaeConfig", {"text_encoder": T5}, "tiny-pixart-1024", {}, 1024, 1, 8, 4.5),
    "sd3": Shape(("transformer", "kSd3MediumConfig"), "kFlowVaeConfig", {"text_encoder": CLIP_L, "text_encoder_2": CLIP_G, "text_encoder_3": T5},
                 "tiny-sd3", {}, 1024, 1, 8, 7.0),
    # A quarter of its blocks: 3.1 of 11.9 billion weights
    "flux": Shape(("transformer", "kFluxDevConfig"), "kFlowVaeConfig", {"text_encoder": CLIP_L, "text_encoder_2": T5}, "tiny-flux",
                  {"num_layers": 5, "num_single_layers": 10}, 1024, 1, 8, 3.5),
    "sdxl": Shape(("unet", "kSdxlUNet"), "kKlVaeConfig", {"text_encoder": CLIP_L, "text_encoder_2": CLIP_G}, "tiny-sdxl", {}, 1024, 1, 8, 5.0),
    # 33 frames of the usual 81: 13,520 tokens of 32,760
    "wan": Shape(("transformer", "kWan13bConfig"), "kWanVaeConfig", {"text_encoder": "kUmt5XxlConfig"}, "tiny-wan", {}, 480, 33, 4, 5.0),
}
PROMPT = "a red circle above a blue square on a white background"
# The other side of a picture that is not square
WIDTHS = {"wan": 832}
# What a rehearsal asks of the fixtures
TINY_SIZES = {"pixart": 128, "sd3": 64, "flux": 64, "sdxl": 64, "wan": 64}


def published(name):
    """A config of tests/spec, where the published ones stand once."""
    for header in sorted(SPEC.glob("published_*.h")):
        found = re.search(rf'\b{name}\b[^;]*?R"\((.*?)\)"', header.read_text(encoding="utf-8"), re.DOTALL)
        if found:
            return json.loads(found[1].replace("-Infinity", "null"))
    raise SystemExit(f"shapes: tests/spec has no {name}")


def fixture_config(shape, component):
    return json.loads((FIXTURES / shape.tiny / component / "config.json").read_text(encoding="utf-8"))


def configs(shape, tiny=False, text_layers=None):
    """Component → config, the network's cut as the shape says; `text_layers`: T5's, which has 24."""
    network, config = shape.network
    found = {network: {**published(config), **shape.blocks}, "vae": published(shape.vae),
             **{component: published(name) for component, name in shape.encoders.items()}}
    if tiny:
        return {component: fixture_config(shape, component) for component in found}
    for config in found.values():
        if text_layers and "d_ff" in config:
            config["num_layers"] = text_layers
    return found


def model_options(description):
    """The command line of a program that works on one model's folder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true", help="in the fixture's sizes, on any machine in seconds")
    return parser


def steps_of(name, tiny):
    return 4 if tiny else SHAPES[name].steps


def size_of(name, tiny):
    """Height, width and frames."""
    shape = SHAPES[name]
    if tiny:
        return TINY_SIZES[name], TINY_SIZES[name], 1 if shape.frames == 1 else 5
    return shape.size, WIDTHS.get(name, shape.size), shape.frames
