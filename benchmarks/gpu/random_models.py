"""Writes a model folder of a published shape with random weights, for Troupe and diffusers alike.

    python3 benchmarks/gpu/random_models.py pixart FOLDER --device cuda

Tokenizers and scheduler are a fixture's: random weights need no real ones. Weights are drawn on the device, by the rule of the
fixtures (tests/reference/common.py), so that states and latents stay of ordinary size."""
import json
import shutil
import struct
import sys
import time

from shapes import FIXTURES, ROOT, SHAPES, configs, model_options

GAINS = {"pixart": {"adaln_single": 0.7, "to_q": 1.5, "proj_out": 0.1}, "sdxl": {"conv_out": 0.5, "to_q": 1.5, "time_emb_proj": 0.7},
         "wan": {"to_q": 1.5, "text_embedder": 2.0, "time_proj": 0.5, "proj_out": 0.6}}
JOINT = {"to_q": 1.5, "add_q": 1.5, "context_embedder": 2.0, "proj_out.weight": 0.6}
# Wide states need smaller queries: attention of random weights is sharp
TEXT = {"SelfAttention.q": 0.1, "embedding": 1.0}


def options():
    parser = model_options(__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--text-layers", type=int, help="of T5, instead of 24")
    parser.add_argument("--holes", action="store_true", help="weights of the right names and sizes without bytes, for plans")
    return parser.parse_args()


def kind_of(name, component):
    """The class that the fixture's index names."""
    import importlib
    index = json.loads((FIXTURES / SHAPES[name].tiny / "model_index.json").read_text(encoding="utf-8"))
    library, kind = index[component]
    return getattr(importlib.import_module(library), kind)


def build(name, component, config, device):
    import torch
    kind = kind_of(name, component)
    with torch.device(device):
        if hasattr(kind, "config_class") and kind.config_class is not None:
            known = {key: value for key, value in config.items() if key not in ("torch_dtype", "dtype", "architectures", "transformers_version")}
            return kind(kind.config_class(**known)).eval()
        return kind.from_config(config).eval()


def fill(name, component, model, seed):
    sys.path.insert(0, str(ROOT / "tests" / "reference"))
    from common import randomise
    gains = TEXT if "text" in component else {"decoder.conv_out": 1.0} if component == "vae" else GAINS.get(name, JOINT)
    randomise(model, seed, gains)
    if component == "vae" and name == "wan":
        for key, weight in model.named_parameters():
            if key.endswith("gamma"):
                weight.fill_(1)
    if component == "transformer" and name == "pixart":
        from checkpoints import towards_noise
        towards_noise(model)
    return model


def write_holes(model, file, dtype):
    header, end = {}, 0
    for key, tensor in model.state_dict().items():
        bytes_ = tensor.numel() * dtype.itemsize
        header[key] = {"dtype": "BF16" if dtype.itemsize == 2 else "F32", "shape": list(tensor.shape), "data_offsets": [end, end + bytes_]}
        end += bytes_
    text = json.dumps(header).encode()
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)


def write(args, component, config, seed):
    import torch
    model = build(args.name, component, config, "meta" if args.holes else args.device)
    folder, dtype = args.folder / component, getattr(torch, args.dtype)
    if not args.holes:
        fill(args.name, component, model, seed).to(dtype).save_pretrained(folder)
        return
    (model.save_config if hasattr(model, "save_config") else model.config.save_pretrained)(folder)
    write_holes(model, folder / ("model.safetensors" if "text" in component else "diffusion_pytorch_model.safetensors"), dtype)


def make(args):
    shape = SHAPES[args.name]
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    base = FIXTURES / shape.tiny
    for entry in sorted(base.iterdir()):
        if entry.name.startswith(("tokenizer", "scheduler")):
            shutil.copytree(entry, args.folder / entry.name)
    for seed, (component, config) in enumerate(sorted(configs(shape, args.tiny, args.text_layers).items())):
        begun = time.monotonic()
        write(args, component, config, 71 + seed)
        size = sum(path.stat().st_size for path in (args.folder / component).iterdir())
        print(f"{args.name}/{component}: {size / 1e9:.2f} GB, {time.monotonic() - begun:.1f} s", flush=True)
    # Last: a folder without it is not taken for a whole one
    shutil.copy(base / "model_index.json", args.folder)


if __name__ == "__main__":
    ARGS = options()
    import torch
    with torch.no_grad():
        make(ARGS)
