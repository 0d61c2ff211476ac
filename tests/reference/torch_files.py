"""Files of torch.save in both forms, and what torch.load(weights_only=True) makes of them; folders whose weights are such files."""
import collections
import json
import shutil

import torch
from safetensors.torch import load_file, save_file

from common import FIXTURES, ROOT, generator

OUT = FIXTURES / "torch-files"


def everything():
    """Tensors of every type, that share storages, begin within them, are empty, have no side, or lie transposed."""
    g = generator(81)
    base = torch.randn(6, 8, generator=g)
    tensors = collections.OrderedDict(base=base, rows=base[2:5], same=base, scalar=torch.tensor(3.5), empty=torch.empty(0, 4), transposed=torch.randn(3, 5, generator=g).t(),
                                      one=base[1:2, 3:4], parameter=torch.nn.Parameter(torch.randn(4, generator=g)))
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        tensors[str(kind)] = torch.randn(3, 3, generator=g).to(kind)
    for kind in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool):
        tensors[str(kind)] = torch.randint(0, 2, (5,), generator=g).to(kind)
    return tensors


def save(name, content, **form):
    torch.save(content, OUT / name, **form)
    return torch.load(OUT / name, weights_only=True)


def plain(tensors):
    return {name: value.detach().contiguous().clone() for name, value in tensors.items()}


def folders():
    """tiny-sd15 with .bin files: whole, in shards, and of the authors' names as one .ckpt."""
    folder = OUT / "tiny-sd15"
    shutil.copytree(ROOT / "tests/fixtures/tiny-sd15", folder, copy_function=shutil.copyfile)
    for component, name in (("unet", "diffusion_pytorch_model"), ("vae", "diffusion_pytorch_model"), ("text_encoder", "pytorch_model")):
        (file,) = (folder / component).glob("*.safetensors")
        tensors = load_file(file)
        file.unlink()
        if component != "text_encoder":
            torch.save(tensors, folder / component / f"{name}.bin", _use_new_zipfile_serialization=component == "unet")
            continue
        names, where = sorted(tensors), {}
        for number, part in enumerate((names[::2], names[1::2])):
            shard = f"{name}-0000{number + 1}-of-00002.bin"
            torch.save({key: tensors[key] for key in part}, folder / component / shard)
            where |= dict.fromkeys(part, shard)
        (folder / component / f"{name}.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    whole = load_file(next((FIXTURES / "original-files/tiny-sd15/unet").glob("*.safetensors")))
    torch.save({"state_dict": whole, "epoch": 3, "global_step": 7}, OUT / "whole.ckpt")


def make():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    tensors = everything()
    loaded = save("zip.pt", {**tensors, "torch.float8_e4m3fn": torch.randn(3, 3, generator=generator(82)).to(torch.float8_e4m3fn)})
    save_file(plain(loaded), OUT / "zip.safetensors")
    save_file(plain(save("before_zip.pt", tensors, _use_new_zipfile_serialization=False)), OUT / "before_zip.safetensors")
    loaded = save("nested.ckpt", {"epoch": 3, "state_dict": tensors, "optimizer_states": [{"state": {0: {"step": 4}}}], "name": "x", "rate": 0.5})
    save_file(plain(loaded["state_dict"]), OUT / "nested.safetensors")
    folders()
    word = torch.randn(2, 24, generator=generator(83))
    torch.save({"string_to_token": {"*": 265}, "string_to_param": {"*": word}, "name": "cat", "step": 5}, OUT / "cat.pt")
    torch.save({"<cat>": word}, OUT / "cat.bin")
    save_file({"emb_params": word}, OUT / "cat.safetensors")
