"""Paths, weights and files that every fixture shares."""
import hashlib
import json
import os
import pathlib
import struct

import diffusers
import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Parts that are made when tests run say in which folder.
FIXTURES = pathlib.Path(os.environ.get("TROUPE_MADE_FIXTURES", ROOT / "tests" / "fixtures"))
EXPECTED = FIXTURES / "expected"
# Milder than the usual 0.02: an untrained model under the usual one has latents in the hundreds
SCHEDULER = dict(num_train_timesteps=1000, beta_start=1e-4, beta_end=0.006, beta_schedule="linear")
PROMPT = "a red circle above a blue square on a white background"


def settle():
    """One thread, float32, no drift between runs."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    diffusers.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()


def generator(seed):
    return torch.Generator("cpu").manual_seed(seed)


def randomise(module, seed, gains=None):
    """Weights that leave nothing degenerate: matrices 1/sqrt(fan in), norms near 1, biases and tables not zero."""
    g = generator(seed)
    for name, p in sorted(module.named_parameters()):
        gain = next((v for key, v in (gains or {}).items() if key in name), 1.0)
        noise = torch.randn(p.shape, generator=g)
        if "scale_shift_table" in name:
            p.copy_(0.3 * noise)
        elif "relative_attention_bias" in name or name.startswith(("shared", "encoder.embed_tokens")):
            p.copy_(noise)
        elif p.ndim == 1:
            p.copy_(1 + 0.1 * noise if "norm" in name and name.endswith("weight") else 0.1 * noise)
        else:
            p.copy_(gain * noise / p[0].numel() ** 0.5)
    return module.eval()


def halve(folder):
    """Stores the weights under `folder` in bfloat16: half the bytes. from_pretrained widens them again, to the same float32 numbers everywhere."""
    for file in folder.rglob("*.safetensors"):
        save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})


def share():
    """Of equal files of checkpoints, from 1 KiB, only the first stays one; the others become links to it."""
    first = {}
    for file in sorted(p for p in FIXTURES.glob("tiny-*/**/*") if p.is_file() and not p.is_symlink() and p.stat().st_size >= 1024):
        original = first.setdefault(hashlib.sha256(file.read_bytes()).digest(), file)
        if original != file:
            file.unlink()
            file.symlink_to(os.path.relpath(original, file.parent))


class Book:
    """One pair expected/NAME.safetensors + NAME.json: tensors and what they mean."""

    def __init__(self, name, about, **shared):
        self.name, self.tensors, self.cases = name, {}, []
        self.head = {"about": about, "made_by": f"scripts/fixtures {name}", "diffusers": diffusers.__version__,
                     "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], **shared}

    def put(self, key, tensor):
        self.tensors[key] = tensor.detach().contiguous().clone()

    def case(self, name, fields, tensors):
        """Adds a case; its tensors are stored as `name.key`."""
        for key, tensor in tensors.items():
            self.put(f"{name}.{key}", tensor)
        self.cases.append({"name": name, **fields})

    def save(self):
        EXPECTED.mkdir(parents=True, exist_ok=True)
        document = {**self.head, "cases": self.cases}
        if self.tensors:
            save_file(self.tensors, EXPECTED / f"{self.name}.safetensors")
            document["tensors"] = {key: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}
                                   for key, t in sorted(self.tensors.items())}
        write_json(EXPECTED / f"{self.name}.json", document)
        size = sum(os.path.getsize(EXPECTED / f"{self.name}{end}") for end in (".json", ".safetensors")
                   if (EXPECTED / f"{self.name}{end}").exists())
        print(f"{self.name}: {len(self.cases)} cases, {len(self.tensors)} tensors, {size / 1024:.0f} KiB", flush=True)


def float32(value):
    """The shortest double that prints a float32 exactly."""
    return struct.unpack("f", struct.pack("f", float(value)))[0]


def write_json(path, document):
    """One case a line, and one tensor a line, so that the file stays readable and small."""
    compact = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    lists = {name: document.pop(name) for name in ("tensors", "cases") if name in document}
    text = json.dumps(document, indent=1, ensure_ascii=False)[:-2]
    if tensors := lists.get("tensors"):
        text += ',\n "tensors": {\n' + ",\n".join(f"  {json.dumps(name)}:{compact(one)}" for name, one in tensors.items()) + "\n }"
    if "cases" in lists:
        text += ',\n "cases": [\n' + ",\n".join("  " + compact(case) for case in lists["cases"]) + "\n ]"
    pathlib.Path(path).write_text(text + "\n}\n", encoding="utf-8")
