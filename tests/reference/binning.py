"""Resolution binning: sizes, the way back to the size asked for, and whole pictures."""
import torch
from diffusers.image_processor import PixArtImageProcessor
from diffusers.pipelines.hunyuandit import pipeline_hunyuandit as hunyuan
from diffusers.pipelines.pixart_alpha import pipeline_pixart_alpha as pixart
from diffusers.pipelines.pixart_alpha import pipeline_pixart_sigma as sigma

import families
from checkpoints import load
from common import PROMPT, SCHEDULER, Book, generator
from pipeline import SCHEDULERS

BINS = {32: pixart.ASPECT_RATIO_256_BIN, 64: pixart.ASPECT_RATIO_512_BIN, 128: pixart.ASPECT_RATIO_1024_BIN, 256: sigma.ASPECT_RATIO_2048_BIN}
SIDES = [1, 8, 100, 256, 333, 480, 512, 600, 720, 768, 1000, 1024, 1080, 1280, 1920, 2048, 4096]
# height and width in, then out: up, down, one side, odd margins; none that diffusers rounds a pixel short
RESIZES = [((16, 16), (16, 16)), ((16, 16), (24, 32)), ((16, 24), (8, 8)), ((12, 20), (13, 9)), ((20, 12), (31, 40)), ((10, 10), (10, 7)),
           ((7, 9), (14, 18)), ((32, 8), (5, 5))]
DEFAULTS = dict(prompts=[PROMPT], negative_prompt="", guidance=4.5, n=1, seed=0, max_sequence_length=120, scheduler="DPMSolverMultistepScheduler",
                config=dict(solver_order=2, algorithm_type="dpmsolver++"))
CASES = {
    "wide": dict(checkpoint="tiny-pixart", sample_size=32, height=72, width=120, steps=4),
    "tall_odd": dict(checkpoint="tiny-pixart", sample_size=32, height=151, width=37, steps=3, n=2, seed=1),
    "exact": dict(checkpoint="tiny-pixart", sample_size=32, height=208, width=304, steps=3, guidance=1.0, seed=2),
    "native_256": dict(checkpoint="tiny-pixart", sample_size=32, height=48, width=48, steps=3, seed=3),
    "sigma": dict(checkpoint="tiny-sigma", sample_size=32, height=60, width=78, steps=3, n=2, seed=5, max_sequence_length=16),
    "ms": dict(checkpoint="tiny-pixart-1024", sample_size=128, height=60, width=104, steps=2, seed=4),
}


def sizes(book):
    for sample_size, bins in BINS.items():
        for height in SIDES:
            rows = [[width, *PixArtImageProcessor.classify_height_width_bin(height, width, bins)] for width in SIDES]
            book.case(f"size/{sample_size}/{height}", {"sample_size": sample_size, "height": height, "width_bin_height_bin_width": rows}, {})


def shapes(book):
    sides = sorted([*SIDES, 864, 900, 960, 1100, 1152])
    for height in sides:
        rows = []
        for width in sides:
            if (height, width) in hunyuan.SUPPORTED_SHAPE:
                rows.append([width, height, width])
                continue
            w, h = hunyuan.map_to_standard_shapes(width, height)
            rows.append([width, int(h), int(w)])
        book.case(f"shape/{height}", {"height": height, "width_shape_height_shape_width": rows}, {})


def resizes(book):
    for k, (before, after) in enumerate(RESIZES):
        picture = torch.randn(2, 3, *before, generator=generator(k))
        out = PixArtImageProcessor.resize_and_crop_tensor(picture, after[1], after[0])
        assert list(out.shape[2:]) == list(after)
        book.case(f"resize/{k}", {"height": after[0], "width": after[1]}, {"in": picture, "out": out})


def pictures(book):
    for name, changes in CASES.items():
        case = {**DEFAULTS, **changes}
        pipe = families.load(case["checkpoint"]) if case["checkpoint"] == "tiny-sigma" else load(case["checkpoint"])
        if pipe.transformer.config.sample_size != case["sample_size"]:
            config = {**pipe.transformer.config, "sample_size": case["sample_size"]}
            other = type(pipe.transformer).from_config(config)
            other.load_state_dict(pipe.transformer.state_dict())
            pipe.transformer = other.eval()
        pipe.scheduler = SCHEDULERS[case["scheduler"]](**SCHEDULER, **case["config"])
        bin_size = PixArtImageProcessor.classify_height_width_bin(case["height"], case["width"], BINS[case["sample_size"]])
        image = pipe(case["prompts"], negative_prompt=case["negative_prompt"], height=case["height"], width=case["width"],
                     num_inference_steps=case["steps"], guidance_scale=case["guidance"], num_images_per_prompt=case["n"],
                     generator=generator(case["seed"]), max_sequence_length=case["max_sequence_length"], use_resolution_binning=True,
                     clean_caption=False, output_type="pt").images
        pixels = (image.permute(0, 2, 3, 1) * 255).round().to(torch.uint8)
        print(f"  {name}: computed at {bin_size}, mean {pixels.float().mean():.0f} std {pixels.float().std():.0f}", flush=True)
        book.case(f"picture/{name}", {**case, "computed_height": bin_size[0], "computed_width": bin_size[1]}, {"image": pixels})


def make():
    book = Book("binning", "size/S/H: PixArtImageProcessor.classify_height_width_bin with the table of sample_size S, a row a width. shape/H: the same by HunyuanDiT's map_to_standard_shapes. resize/K: "
                "resize_and_crop_tensor of `in` [2,3,h,w] to height × width. picture/NAME: the folder's pipeline (use_resolution_binning=True), `image` "
                "uint8 [n,height,width,3]; the checkpoint's transformer under another sample_size where `sample_size` says so.", beta=SCHEDULER)
    sizes(book)
    shapes(book)
    resizes(book)
    pictures(book)
    book.save()
