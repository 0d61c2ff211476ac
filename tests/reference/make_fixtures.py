"""Makes tests/fixtures: `python make_fixtures.py` for all, or name PARTS of them."""
import importlib
import sys

import common

# In the order of what needs what. `scripts/fixtures --help` shows this list.
PARTS = ["checkpoints", "tokens", "clip", "families", "added_tokens", "text_encoder", "transformer", "samplers", "vae", "unet", "unet_pipeline", "unet_jobs",
         "pipeline", "families_transformer", "wan", "wan_patches", "bert", "joint_patches", "lora", "textual_inversion", "init_image", "pictures", "inpaint", "guidance_rescale", "given", "pipelines", "pipefusion",
         "distrifusion", "step_cache", "step_cache_patches", "step_cache_unet", "quantized", "quantized_unet", "captions", "binning", "demo"]

if __name__ == "__main__":
    wanted = sys.argv[1:] or PARTS
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        sys.exit(f"[make_fixtures] unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    common.settle()
    for part in wanted:
        importlib.import_module(part).make()
    common.share()
