"""Makes tests/fixtures: `python make_fixtures.py` for all, or name parts: checkpoints, tokens, clip, text_encoder, transformer,
samplers, vae, unet, unet_pipeline, unet_jobs, pipeline, pipefusion, distrifusion,
captions, binning, demo."""
import importlib
import sys

import common

PARTS = ["checkpoints", "tokens", "clip", "text_encoder", "transformer", "samplers", "vae", "unet", "unet_pipeline", "unet_jobs", "pipeline", "families", "families_transformer", "wan", "wan_patches", "bert", "joint_patches", "lora", "init_image", "guidance_rescale", "pipefusion", "distrifusion", "step_cache", "step_cache_patches", "quantized", "captions", "binning", "demo"]

if __name__ == "__main__":
    wanted = sys.argv[1:] or PARTS
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        sys.exit(f"[make_fixtures] unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    common.settle()
    for part in wanted:
        importlib.import_module(part).make()
