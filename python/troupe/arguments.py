"""A call's arguments as a request: the one place that looks at their types, and knows diffusers' names of what a request calls
otherwise."""
from __future__ import annotations

import contextlib
import math
import operator
import os
import reprlib
import secrets
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from . import images
from .embeds import take_embeds, to_safetensors

Path = Union[str, "os.PathLike[str]"]
Prompt = Union[str, Sequence[str]]

# The request's fields for arguments that have another name; those of the second table travel in another form, too.
_NAMES = {"num_images_per_prompt": "images_per_prompt", "num_inference_steps": "steps", "num_videos_per_prompt": "images_per_prompt",
          "use_resolution_binning": "resolution_binning", "controlnet": "controlnets",
          "controlnet_conditioning_scale": "control_scale", "control_guidance_start": "control_from",
          "control_guidance_end": "control_until"}
_FORMS = {"control_image": "control_images", "generator": "picture_seeds", "image": "images", "latents": "init_latents", "negative_prompt": "negative_prompts",
          "prompt": "prompts", "seed": "picture_seeds"}

# Arguments of diffusers' calls that Troupe has no field for: the values that change nothing, and the way that is there instead.
_ONE_PROMPT = ((), "one prompt goes to all text encoders; prompt_embeds=… takes what they make of several")
_NO_ADAPTER = ((), "IP-Adapters are not computed; load_lora_weights() and image=… are there")
_OWN_SIZE = ((), "the size that the model is told is the picture's own, (height, width)")
_NO_CROP = (((0, 0), [0, 0]), "the model is told that the picture is not cropped")
_NO_SKIPPING = ((), "guidance by skipped layers is not computed; guidance_scale=… is there")
_NO_ENSEMBLE = ((), "a job does all of its steps; strength=…, with image=…, leaves the first ones out")
_ABSENT = {
    "aesthetic_score": ((6.0,), "the score that the model is told is 6"),
    "negative_aesthetic_score": ((2.5,), "the score that the model is told is 2.5"),
    "callback": ((), "callback_on_step_end=… takes its place, as in diffusers; it is called as callback(pipe, step, timestep, kwargs) "
                     "after each step"),
    "callback_steps": ((), "callback_on_step_end=…, which is called after each step, takes its place"),
    "clip_skip": ((0,), "prompt_embeds=… takes what the text encoder makes with it"),
    "guess_mode": ((False,), "ControlNets are not guessed with: they count in both branches of guidance alike"),
    "denoising_end": _NO_ENSEMBLE, "denoising_start": _NO_ENSEMBLE,
    "ip_adapter_image": _NO_ADAPTER, "ip_adapter_image_embeds": _NO_ADAPTER,
    "negative_ip_adapter_image": _NO_ADAPTER, "negative_ip_adapter_image_embeds": _NO_ADAPTER,
    "masked_image_latents": ((), "mask_image=… is enough"),
    "original_size": _OWN_SIZE, "target_size": _OWN_SIZE, "crops_coords_top_left": _NO_CROP,
    "negative_original_size": _OWN_SIZE, "negative_target_size": _OWN_SIZE, "negative_crops_coords_top_left": _NO_CROP,
    "padding_mask_crop": ((), "image=… and mask_image=… can be cropped before the call"),
    "prompt_2": _ONE_PROMPT, "prompt_3": _ONE_PROMPT, "negative_prompt_2": _ONE_PROMPT, "negative_prompt_3": _ONE_PROMPT,
    "skip_guidance_layers": _NO_SKIPPING,
}


def argument_of(field: Optional[str], given: Mapping[str, Any]) -> Optional[str]:
    """The argument among those of a call that a field of the request comes of; the field's own name where there is none."""
    wanted = _FORMS.get(field or "", field)
    return next((name for name in given if {**_NAMES, **_FORMS}.get(name, name) == wanted), field)


def with_defaults(defaults: Mapping[str, Any], arguments: Mapping[str, Any]) -> Dict[str, Any]:
    """A call's arguments, and the defaults of what they leave open. Raises TypeError where two arguments are one field."""
    names: Dict[str, str] = {}
    for name, value in arguments.items():
        field = _NAMES.get(name, name)
        if value is not None and names.setdefault(field, name) != name:
            raise TypeError(f"{name}: says the same as {names[field]}: give one of them")
    return {**{name: value for name, value in defaults.items() if _NAMES.get(name, name) not in names}, **arguments}


def plain(name: str, value: Any) -> Any:
    """A value as JSON has it: scalars, arrays and tensors become numbers and lists of them, paths texts. Raises TypeError or
    ValueError that names the argument."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{name}: {value} is not a finite number")
        return float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [plain(name, entry) for entry in value]
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _unfit(name, key, "a name"): plain(name, entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):
        return plain(name, value.tolist())
    return _unfit(name, value, "a number, a text, or a list of them")


def _unfit(name: str, value: Any, wanted: str) -> Any:
    raise TypeError(f"{name}: {reprlib.repr(value)} ({type(value).__name__}) is not {wanted}")


def texts(name: str, value: Any) -> List[str]:
    """A text, or a list of texts, as a list."""
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, str) for entry in entries):
        _unfit(name, value, "a text or a list of texts")
    if not entries:
        raise ValueError(f"{name}: the list is empty")
    for entry in entries:
        if "\0" in entry or any("\ud800" <= letter <= "\udfff" for letter in entry):
            raise ValueError(f"{name}: {reprlib.repr(entry)} has a zero character or half of a surrogate pair in it")
    return list(entries)


def path(name: str, value: Any) -> str:
    """A path, as a text or an os.PathLike."""
    return os.fspath(value if isinstance(value, (str, os.PathLike)) else _unfit(name, value, "a path"))


def number(name: str, value: Any) -> float:
    """A finite number, whatever type it has."""
    value = plain(name, value)
    return float(value) if isinstance(value, (int, float)) else float(_unfit(name, value, "a number"))


def whole(name: str, value: Any) -> int:
    """A whole number, whatever type it has."""
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return operator.index(value)
    return int(_unfit(name, value, "a whole number"))


def dtype_name(name: str, value: Any) -> str:
    """A torch.dtype, or its name."""
    text = str(value)
    if not isinstance(value, str) and not text.startswith("torch."):
        _unfit(name, value, "a torch.dtype or its name")
    return text.replace("torch.", "")


def make_request(prompt: Optional[Prompt], arguments: Mapping[str, Any]) -> Dict[str, Any]:
    """The body of POST /api/v1/jobs for a call's arguments, those that are None left out."""
    given = {name: value for name, value in arguments.items() if value is not None}
    _drop_absent(prompt, given)
    if "dtype" in given:
        given["dtype"] = dtype_name("dtype", given["dtype"])
    embeds = take_embeds(given)
    prompts = [] if prompt is None else texts("prompt", prompt)
    if not prompts and not embeds:
        raise ValueError("prompt: there is none")
    request: Dict[str, Any] = {"prompts": prompts}
    if embeds:
        request["prompts"] = _embedded_prompts(prompts, embeds)
        request["prompt_embeds"] = images.base64_text(to_safetensors(embeds))
    if "negative_prompt" in given:
        negative = given.pop("negative_prompt")
        entries = texts("negative_prompt", negative)
        request.update({"negative_prompt": negative} if isinstance(negative, str) else {"negative_prompts": entries})
    request.update(_seeds(given.pop("generator", None), given.pop("seed", None)))
    if "latents" in given:
        request["init_latents"] = images.base64_text(images.latents_to_npy(given.pop("latents")))
    if "image" in given:
        request["image"] = [images.base64_text(png) for png in images.to_pngs(given.pop("image"))]
    if "control_image" in given:
        request["control_images"] = [images.base64_text(png)
                                     for png in images.to_pngs(given.pop("control_image"), "control_image")]
    for name, is_mask in (("last_image", False), ("mask_image", True)):
        if name in given:
            request[name] = images.base64_text(images.to_png(given.pop(name), name, is_mask))
    for name, value in given.items():
        request[_NAMES.get(name, name)] = plain(name, value)
    return request


def _drop_absent(prompt: Optional[Prompt], given: Dict[str, Any]) -> None:
    """Drops arguments that change nothing, and refuses those that would."""
    if "skip_guidance_layers" not in given:
        for name in ("skip_layer_guidance_scale", "skip_layer_guidance_start", "skip_layer_guidance_stop"):
            given.pop(name, None)
    for name, (harmless, instead) in _ABSENT.items():
        if name not in given:
            continue
        value = given.pop(name)
        if instead is _ONE_PROMPT[1]:
            changes_nothing = value == (given.get("negative_prompt") if name.startswith("negative_prompt") else prompt)
        elif instead is _OWN_SIZE[1]:
            changes_nothing = isinstance(value, (list, tuple)) and list(value) == [given.get("height"), given.get("width")]
        else:
            changes_nothing = isinstance(value, (int, float, list, tuple)) and value in harmless
        if not changes_nothing:
            raise ValueError(f"{name}: {instead}")


def _seeds(generator: Any, seed: Any) -> Dict[str, Any]:
    """The field for a generator, a seed, or a list of one of them; without any a random seed."""
    if generator is not None and seed is not None:
        raise ValueError("generator and seed: either says it all")
    if generator is None and seed is None:
        return {"seed": secrets.randbits(32)}
    given = seed if generator is None else generator
    if getattr(given, "ndim", 0) > 0:
        given = given.tolist()

    def read(one: Any) -> int:
        return whole("seed", one) if generator is None else seed_of(one)

    if not isinstance(given, (list, tuple)):
        return {"seed": read(given)}
    if not given:
        raise ValueError(f"{'seed' if generator is None else 'generator'}: the list is empty")
    return {"picture_seeds": [read(one) for one in given]}


def _embedded_prompts(prompts: List[str], embeds: Dict[str, Any]) -> List[str]:
    """An empty text for each prompt that `embeds` stand for."""
    first = next(iter(embeds))
    if prompts:
        raise ValueError(f"prompt and {first}: embeds stand for the prompts, so there is no text beside them")
    if "prompt_embeds" not in embeds:
        raise ValueError(f"{first}: needs prompt_embeds")
    shape: Any = getattr(embeds["prompt_embeds"], "shape", ())
    return [""] * int(shape[0] if len(shape) else 0)


def seed_of(generator: Any) -> int:
    """The seed of a torch.Generator, where that says what it will draw."""
    if not hasattr(generator, "initial_seed"):
        raise TypeError(f"generator: {type(generator).__name__} is no torch.Generator; numbers are said as seed=…")
    if generator.device.type != "cpu":
        raise ValueError(f'generator: it is on "{generator.device}", and Troupe draws what one on the CPU draws; '
                         "use torch.Generator().manual_seed(…)")
    seed = generator.initial_seed()
    fresh = type(generator)().manual_seed(seed)
    if not bool((fresh.get_state() == generator.get_state()).all()):
        raise ValueError("generator: it has drawn numbers already, and Troupe takes its seed only; "
                         f"generator.manual_seed({seed}) begins it anew")
    return int(seed)
