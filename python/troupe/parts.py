"""What diffusers' pipelines have beside a call. Where nothing of a picture depends on it, it does nothing here; all else is refused
by its name, with the way that is there."""
from __future__ import annotations

import os
import re
import sys
from typing import Any, Dict, List, Optional

from .arguments import Path, path

# Methods on which no picture depends: of the pipeline, and of its components.
_HARMLESS = frozenset({
    "disable_attention_slicing", "disable_freeu", "disable_vae_slicing", "disable_xformers_memory_efficient_attention",
    "enable_attention_slicing", "enable_lora_hotswap", "enable_model_cpu_offload", "enable_vae_slicing",
    "enable_xformers_memory_efficient_attention", "fuse_qkv_projections", "maybe_free_model_hooks", "remove_all_hooks",
    "reset_device_map", "set_attention_slice", "set_lora_device", "set_use_memory_efficient_attention_xformers",
    "unfuse_qkv_projections", "unload_ip_adapter",
})
_HARMLESS_OF_PARTS = frozenset({
    "compile", "compile_repeated_blocks", "disable_attention_slicing", "disable_gradient_checkpointing", "disable_slicing",
    "disable_xformers_memory_efficient_attention", "enable_attention_slicing", "enable_slicing",
    "enable_xformers_memory_efficient_attention", "eval", "fuse_qkv_projections", "requires_grad_", "set_attention_slice",
    "set_default_attn_processor", "set_use_memory_efficient_attention_xformers", "unfuse_qkv_projections",
})
# Arguments of from_pretrained that say how a folder is fetched or held in this process's memory.
_HOLDING = frozenset({
    "cache_dir", "device_map", "force_download", "local_files_only", "low_cpu_mem_usage", "max_memory", "offload_folder",
    "offload_state_dict", "proxies", "requires_safety_checker", "token",
})
# Components that no served model has: None is what reading gives, and what may be set.
_NONE = {name: "none is used here; None is taken" for name in ("feature_extractor", "image_encoder", "safety_checker")}

_TEXT = "prompts go to the cluster as text; prompt_embeds=… takes what an encoder of your own makes of them"
_DENOISER = "it computes in the cluster's actors; dtype=…, offload=…, method=…, step_cache=… of a call or of connect() say how"
_ADAPTERS = "IP-Adapters are not computed; load_lora_weights() and image=… are there"
PARTS = {
    "transformer": _DENOISER, "transformer_2": _DENOISER, "unet": _DENOISER,
    "vae": "it computes in the cluster's actors; enable_vae_tiling(), vae=… (actors that decode together) and output_type=\"latent\" are there",
    **{f"{kind}{number}": _TEXT for kind in ("text_encoder", "tokenizer") for number in ("", "_2", "_3")},
}
_REFUSED = {
    "scheduler": 'it is the cluster\'s; sampler="euler", … here, of a call or of connect(), chooses another: '
                 "pipe.client.options()[\"samplers\"] lists them",
    "components": "they are in the cluster's actors; another TroupePipeline needs the address alone",
    "config": "the model's folder is on the cluster's hosts, and its settings are there",
    "enable_freeu": "FreeU is not computed",
    "enable_group_offload": "enable_sequential_cpu_offload() is what needs less memory",
    "encode_prompt": _TEXT,
    "image_processor": "image=… takes pictures of any kind, and output_type=… says what comes back",
    "load_ip_adapter": _ADAPTERS, "set_ip_adapter_scale": _ADAPTERS,
    "progress_bar": "set_progress_bar_config() is there",
    "save_lora_weights": "a LoRA's file is on the cluster's hosts already",
    "save_pretrained": "the model's folder is on the cluster's hosts already",
}
# Arguments of from_pretrained that would change what is computed.
_OF_FOLDERS = {
    "add_watermarker": "no watermark is added",
    "custom_pipeline": "a pipeline's own code is not run; families are computed by the cluster's actors",
    "quantization_config": 'weight_dtype="int8" (CPU) or "fp8" (GPU) keeps the weights smaller',
    "revision": "the folder is one on the cluster's hosts, as it is",
}


def settings_for_requests(given: Dict[str, Any]) -> Dict[str, Any]:
    """Of the further arguments of diffusers' from_pretrained those that are fields of a request."""
    kept = {}
    for name, value in given.items():
        if name in _HOLDING or not value and (name in _OF_FOLDERS or name in _NONE):
            continue
        instead = _OF_FOLDERS.get(name) or PARTS.get(name) or _REFUSED.get(name) or _NONE.get(name)
        if instead and not (name == "vae" and isinstance(value, int)):  # a request's degree has that name
            raise ValueError(f"{name}: {instead}")
        kept[name] = value
    return kept


def embedding_files(paths: Any, weight_name: Optional[Path], subfolder: Optional[Path], settings: Dict[str, Any]) -> List[str]:
    """The files that diffusers' load_textual_inversion would read of such arguments, on the cluster's hosts."""
    if settings.get("use_safetensors") is False:
        raise ValueError("use_safetensors: pickled files are read by their names; leave it out")
    for name, value in settings.items():
        if value and name in _OF_FOLDERS:
            raise ValueError(f"{name}: {_OF_FOLDERS[name]}")
        if name not in _OF_FOLDERS and name not in _HOLDING and name not in ("hf_token", "mirror", "use_safetensors"):
            raise TypeError(f"{name}: load_textual_inversion has no such argument")
    files = []
    for one in paths if isinstance(paths, list) else [paths]:
        if not isinstance(one, (str, os.PathLike)):
            raise TypeError("pretrained_model_name_or_path: tensors do not travel; save them as a safetensors file on the cluster's hosts")
        file = path("pretrained_model_name_or_path", one).rstrip("/")
        for part in (subfolder, weight_name):
            file = file if part is None else f"{file}/{path('weight_name', part)}"
        files.append(file if re.search(r"\.(safetensors|pt|bin)$", file) else f"{file}/learned_embeds.safetensors")
    return files


def lora_in(folder: str) -> Optional[str]:
    """The file that diffusers' load_lora_weights would read of a folder without a name for it; None where there is no such folder
    here. Raises ValueError where there are several."""
    if not os.path.isdir(folder):
        return None
    files = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors")
                   and not any(part in name for part in ("scheduler", "optimizer", "checkpoint")))
    usual = [name for name in files if name.endswith("pytorch_lora_weights.safetensors")]
    found = usual or files
    if len(found) > 1:
        raise ValueError(f"pretrained_model_name_or_path: {folder} has several files, {', '.join(found)}: weight_name=… names one")
    if not found:
        raise ValueError(f"pretrained_model_name_or_path: {folder} has no safetensors file of a LoRA")
    return found[0]


def nothing(*args: Any, **kwargs: Any) -> None:
    """What a call does on which no picture depends."""


def torch_or_text(kind: str, name: str) -> Any:
    """torch.device("cpu"), torch.float16, … for a program that uses torch; else the name."""
    torch = sys.modules.get("torch")
    if torch is None:
        return name
    return torch.device(name) if kind == "device" else getattr(torch, name)


def dtype_in(args: Any, kwargs: Dict[str, Any]) -> Optional[Any]:
    """The torch.dtype among the arguments of a `to(device, dtype)`."""
    return next((one for one in (*args, kwargs.get("dtype"), kwargs.get("torch_dtype")) if str(one).startswith("torch.")), None)


class Part:
    """A component of `pipe`, which diffusers' programs set up, and which only the cluster's actors have."""

    def __init__(self, name: str, pipe: Any) -> None:
        self.__dict__.update(_name=name, _pipe=pipe)

    def __repr__(self) -> str:
        return f"<the {self._name} of a TroupePipeline, in the cluster's actors>"

    def to(self, *args: Any, **kwargs: Any) -> "Part":
        """Does nothing with a device or a memory format. A dtype is refused: it is the request's."""
        if dtype_in(args, kwargs) is not None:
            raise ValueError(f"{self._name}.to: dtype=… of a call or of connect() is the type of all that is computed")
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._name}: {PARTS[self._name]}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("device", "dtype"):
            return getattr(self._pipe, name)
        if self._name == "vae" and name in ("enable_tiling", "disable_tiling"):
            return self._pipe.enable_vae_tiling if name == "enable_tiling" else self._pipe.disable_vae_tiling
        if name in _HARMLESS_OF_PARTS:
            return nothing
        raise AttributeError(f"{self._name}.{name}: {PARTS[self._name]}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self._name}.{name}: {PARTS[self._name]}")


class Parts:
    """The attributes of diffusers' pipelines that a pipeline here has no use for."""

    def __getattr__(self, name: str) -> Any:
        if name in _HARMLESS:
            return nothing
        if name in PARTS:
            return Part(name, self)
        if name in _NONE:
            return None
        raise AttributeError(f"{name}: {_REFUSED[name]}" if name in _REFUSED
                             else f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        instead = _REFUSED.get(name) or PARTS.get(name) or (None if value is None else _NONE.get(name))
        if instead:
            raise AttributeError(f"{name}: {instead}")
        object.__setattr__(self, name, value)
