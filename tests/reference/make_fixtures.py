"""Makes tests/fixtures: `python make_fixtures.py` for all, or name PARTS of them; `--made FOLDER` makes what tests make when they run."""
import importlib
import os
import sys

if sys.argv[1:2] == ["--made"]:
    os.environ["TROUPE_MADE_FIXTURES"] = os.path.abspath(sys.argv[2])

import common

# In the order of what needs what. `scripts/fixtures --help` shows this list.
PARTS = ["checkpoints", "tokens", "clip", "families", "added_tokens", "text_encoder", "transformer", "samplers", "vae", "unet", "unet_pipeline", "unet_jobs",
         "pipeline", "families_transformer", "wan", "wan_patches", "bert", "joint_patches", "lora", "textual_inversion", "init_image", "pictures", "inpaint", "guidance_rescale", "given", "pipelines", "pipefusion",
         "distrifusion", "step_cache", "step_cache_patches", "step_cache_unet", "quantized", "quantized_unet", "captions", "binning", "demo"]

# Not stored: the ctest `made_fixtures` makes these, each when it is needed.
MADE = ["qwen_text", "zimage", "qwen_image", "flux2", "krea2", "kontext", "qwen_edit", "controlnet", "flux_tools", "unet_inpaint", "chroma", "ovis", "longcat", "wan22", "wan22_a14b", "wan_image", "original_files", "lora_kinds", "torch_files"]

if __name__ == "__main__":
    if sys.argv[1:2] == ["--made"]:
        wanted = PARTS = MADE
    else:
        wanted = sys.argv[1:] or PARTS
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        sys.exit(f"[make_fixtures] unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    common.settle()
    for part in wanted:
        importlib.import_module(part).make()
    common.share()
