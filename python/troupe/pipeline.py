"""diffusers' interface to a cluster."""
from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

from . import images
from .arguments import (Path, Prompt, argument_of, dtype_name, make_request, number, path, plain, texts,
                        with_defaults)
from .client import Client, Job, check_output_type
from .errors import APIStatusError, BadRequestError
from .parts import Part, Parts, dtype_in, embedding_files, lora_in, settings_for_requests, torch_or_text
from .progress import Bar

Callback = Callable[["TroupePipeline", int, Optional[float], Dict[str, Any]], Optional[Dict[str, Any]]]


@dataclass
class TroupePipelineOutput:
    """What a call returns. `images` is as `output_type` says; notebooks show it.

    `job` is the job's handle, as for `job.report()`, and `seed` the seed that was used, or a list of them.
    """

    images: Any
    job: Job
    seed: Union[int, List[int]]
    videos: int = field(default=0, repr=False)  # 0: these are pictures

    @property
    def frames(self) -> Any:
        """Of videos: the frames of each, a list of lists, or an array [videos, frames, height, width, 3]."""
        if not self.videos or len(self.images) == self.videos:
            return self.images
        each = len(self.images) // self.videos
        if hasattr(self.images, "reshape"):
            return self.images.reshape(self.videos, each, *self.images.shape[1:])
        return [self.images[first:first + each] for first in range(0, len(self.images), each)]

    def to_tuple(self) -> Tuple[Any, ...]:
        return (self.frames if self.videos else self.images,)

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, key) if isinstance(key, str) else self.to_tuple()[key]

    def _repr_html_(self) -> str:
        first = next(iter(self.images), None)
        if isinstance(first, bytes):
            return images.html(self.images)
        return images.html([images.to_png(image) for image in self.images]) if hasattr(first, "save") else repr(self)


@dataclass
class _Adapter:
    path: str
    weight: float = 1.0
    second: bool = False  # of the second of two transformers

    def scaled(self, scale: float) -> "_Adapter":
        return _Adapter(self.path, self.weight * scale, self.second)

    def field(self) -> Dict[str, Any]:
        """As requests have it."""
        return {"path": self.path, "scale": self.weight, **({"transformer_2": True} if self.second else {})}


class TroupePipeline(Parts):
    """A pipeline that computes on a cluster. Arguments, outputs and callbacks are those of diffusers' pipelines.

        pipe = TroupePipeline.connect("http://127.0.0.1:7480")
        picture = pipe("a lighthouse in a storm", generator=torch.Generator().manual_seed(0)).images[0]
    """

    def __init__(self, client: Client, model: Optional[Path] = None, **defaults: Any) -> None:
        self.client = client
        self.model = None if model is None else path("model", model)
        self.defaults = defaults
        self._adapters: Dict[str, _Adapter] = {}
        self._active: List[str] = []
        self._fused: Dict[str, _Adapter] = {}
        self._lora_enabled = True
        self._embeddings: List[Tuple[str, Optional[str]]] = []  # files with their words
        self._bar: Dict[str, Any] = {}
        self._jobs: Set[Job] = set()
        self._interrupted = False
        self._num_timesteps = 0

    def __repr__(self) -> str:
        loras = [f"{name} × {adapter.weight:g}" for name, adapter in self._loras({}).items()]
        told = [f"model {self.model or 'of the cluster'}", *(f"{name}={value!r}" for name, value in self.defaults.items()),
                *(["LoRAs " + ", ".join(loras)] if loras else [])]
        return f"<{type(self).__name__} at {self.client.url}: {'; '.join(told)}>"

    @classmethod
    def connect(cls, url: Optional[str] = None, model: Optional[Path] = None, api_key: Optional[str] = None,
                **defaults: Any) -> "TroupePipeline":
        """A pipeline for the server at `url` (default: TROUPE_URL, else http://127.0.0.1:7480).

        `model`: a folder as the cluster's hosts see it; default: the cluster's. `defaults` are fields of every request
        that the call does not set, as `dtype="bfloat16"` or `parallel="auto"`. Raises APIConnectionError,
        AuthenticationError.
        """
        client = Client(url, api_key)
        client.models()  # fails now, if the server or the key is wrong
        pipe = cls(client, model, **defaults)
        pipe._check_defaults()
        return pipe

    def _check_defaults(self) -> None:
        """Has the server look at the fields of every request. It refuses one without a prompt, but names before it what it does not
        know or take."""
        given = {name: value for name, value in self.defaults.items() if value is not None and "prompt" not in name}
        if not given:
            return
        request = make_request("", given)
        del request["prompts"]
        try:
            self.client.submit(request)
        except BadRequestError as error:
            if error.param != "prompt":
                self._say_argument(error, given, request)
                raise

    @classmethod
    def from_pretrained(cls, model: Path, url: Optional[str] = None, torch_dtype: Any = None, api_key: Optional[str] = None,
                        variant: Optional[str] = None, use_safetensors: Optional[bool] = None,
                        **defaults: Any) -> "TroupePipeline":
        """As diffusers' of that name, with a folder that the cluster's hosts see: `connect` with its arguments.

        `torch_dtype` becomes the `dtype` of every request. `variant` chooses nothing: of each component the cluster reads
        the plain files, where there are none those of the variants fp16 and bf16; others are refused.
        Pickled weights are read where there are no safetensors, so `use_safetensors=False` is refused. What says how a folder
        is fetched or held in memory does nothing; components are refused.
        """
        if variant not in (None, "fp16", "bf16"):
            raise ValueError(f'variant: "{variant}" is not read; where a folder has no plain files, "fp16" and "bf16" are')
        if use_safetensors is False:
            raise ValueError("use_safetensors: pickled weights are read only where there are no safetensors; leave it out")
        if torch_dtype is not None:
            defaults["dtype"] = dtype_name("torch_dtype", torch_dtype)
        return cls.connect(url, model, api_key, **settings_for_requests(defaults))

    @classmethod
    def from_single_file(cls, *args: Any, **kwargs: Any) -> "TroupePipeline":
        """Refused: a cluster is started with a file."""
        raise ValueError("from_single_file: `troupe serve --model FILE --base DIR` serves a file, "
                         "and so does troupe.local(FILE, arguments=['--base', DIR])")

    def __call__(self, prompt: Optional[Prompt] = None, *, output_type: str = "pil", return_dict: bool = True,
                 callback_on_step_end: Optional[Callback] = None,
                 callback_on_step_end_tensor_inputs: Sequence[str] = (), timeout: Optional[float] = None,
                 **arguments: Any) -> Any:
        """Makes pictures, or a video; the arguments are those of `submit` and:

        output_type: "pil", "np", "pt" (a tensor of torch's), "png" (files' bytes) or "latent" (numpy, float32), see `Job.result`.
        return_dict: False returns the tuple (images,) instead of a TroupePipelineOutput.
        callback_on_step_end: called as callback(pipe, step, timestep, kwargs) after each step, in order. `timestep` is
            the sampler's, a float, or None of a step that was so quick that nothing came of it. Latents stay on the
            cluster: kwargs is empty, or has "preview", the newest rough picture (PIL, or None), if
            callback_on_step_end_tensor_inputs is ["preview"].
        timeout: seconds, after which the job is cancelled; default: none as long as the server is there.

        Whatever ends the call before the job ends cancels the job: Ctrl-C, an exception in a callback,
        `pipe._interrupt = True`. Raises BadRequestError, JobFailedError, JobCancelledError, APITimeoutError, ….
        """
        if callback_on_step_end is not None and not callable(callback_on_step_end):
            raise TypeError(f"callback_on_step_end: {type(callback_on_step_end).__name__} cannot be called")
        inputs = getattr(callback_on_step_end, "tensor_inputs", callback_on_step_end_tensor_inputs)
        wanted = set(texts("callback_on_step_end_tensor_inputs", inputs) if inputs else ())
        timeout = None if timeout is None else number("timeout", timeout)
        if wanted - {"preview"}:
            raise ValueError(f'callback_on_step_end_tensor_inputs: {sorted(wanted - {"preview"})} stay on the cluster; '
                             'there is "preview"')
        check_output_type(output_type)
        if wanted:
            arguments.setdefault("preview_every", 1)
        if output_type == "latent":
            arguments["output_type"] = "latent"
            if arguments.get("image") is None:
                arguments.setdefault("vae", None)  # of the pipeline's defaults: nothing is decoded together
        self._interrupted = False
        job, request = self._submit(prompt, arguments)
        self._follow(job, callback_on_step_end, wanted, timeout)
        done = job.result(output_type)
        asked = len(request["prompts"]) * int(request.get("images_per_prompt", 1))
        videos = asked if len(done) > asked else 0
        output = TroupePipelineOutput(done, job, request["seed"] if "seed" in request else request["picture_seeds"],
                                       videos)
        return output if return_dict else output.to_tuple()

    def submit(self, prompt: Optional[Prompt] = None, *, negative_prompt: Optional[Prompt] = None,
               height: Optional[int] = None, width: Optional[int] = None, num_frames: Optional[int] = None,
               num_inference_steps: Optional[int] = None, guidance_scale: Optional[float] = None,
               num_images_per_prompt: Optional[int] = None, generator: Any = None, seed: Union[int, Sequence[int], None] = None,
               latents: Any = None, image: Any = None, strength: Optional[float] = None, mask_image: Any = None,
               last_image: Any = None, guidance_scale_2: Optional[float] = None, control_image: Any = None,
               controlnet: Union[str, Sequence[str], None] = None,
               controlnet_conditioning_scale: Union[float, Sequence[float], None] = None,
               control_guidance_start: Union[float, Sequence[float], None] = None,
               control_guidance_end: Union[float, Sequence[float], None] = None, **options: Any) -> Job:
        """Hands a job in and returns its handle at once. What is None is the model's own, as in diffusers' pipeline of its class.

        generator: a torch.Generator on the CPU that has drawn nothing yet: its seed gives diffusers' picture; a list has
            one for each picture. `seed` says it as a number, or a list. Without either the seed is a random one.
        latents: noise of unit variance instead of the seed's, [n, channels, h, w]: a numpy array or a tensor.
        image: what the model's pipeline takes: a picture to begin with, with `strength`; a picture to edit, or a list of them;
            a video's first frame. A PIL image, an array [height, width, 3], a tensor [3, height, width], or a PNG, JPEG or
            WebP file: its path, its bytes or a data URI.
        last_image: with image: a video's last frame.
        guidance_scale_2: the guidance scale in the steps of a second transformer; default: guidance_scale.
        control_image: a picture of edges, depth, a pose, …, or a list of one for each ControlNet, as image has them. Where the
            model's own pipeline has ControlNets and no control_image is given, image is it, as in diffusers.
        controlnet: folders of ControlNets on the cluster's hosts, or names on the hub, beside the model's own.
        controlnet_conditioning_scale, control_guidance_start, control_guidance_end: how much each ControlNet counts, and from
            which part of the steps until which; one number for all, or a list.
        prompt_embeds, negative_prompt_embeds, pooled_prompt_embeds, negative_pooled_prompt_embeds, prompt_attention_mask,
            negative_prompt_attention_mask: instead of prompts what the text encoders would make of them, numpy arrays or
            tensors, as diffusers' pipeline of the model takes and `encode_prompt` returns them.
        mask_image: with image: it is painted anew where this is white, and kept elsewhere. What image takes, or an array
            [height, width].
        options: further fields of a request (docs/http.md), such as method="pipefusion", num_pipeline_patch=4, pp=2,
            parallel="auto", dtype="bfloat16", preview_every=2, priority=10. The server refuses what it does not know.
        """
        named = dict(negative_prompt=negative_prompt, height=height, width=width, num_frames=num_frames,
                     num_inference_steps=num_inference_steps, guidance_scale=guidance_scale,
                     num_images_per_prompt=num_images_per_prompt, generator=generator, seed=seed, latents=latents,
                     image=image, strength=strength, mask_image=mask_image, last_image=last_image,
                     guidance_scale_2=guidance_scale_2, control_image=control_image, controlnet=controlnet,
                     controlnet_conditioning_scale=controlnet_conditioning_scale,
                     control_guidance_start=control_guidance_start, control_guidance_end=control_guidance_end)
        given = {name: value for name, value in named.items() if value is not None}
        return self._submit(prompt, {**given, **options})[0]

    def _submit(self, prompt: Optional[Prompt], arguments: Dict[str, Any]) -> Tuple[Job, Dict[str, Any]]:
        given = with_defaults(self.defaults, arguments)
        loras = self._loras(given)
        request = make_request(prompt, given)
        if self.model is not None:
            request.setdefault("model", self.model)
        if loras:
            request.setdefault("loras", [lora.field() for lora in loras.values()])
        if self._embeddings:
            request.setdefault("embeddings", [{"path": file, "token": token} for file, token in self._embeddings])
        try:
            return self.client.submit(request), request
        except APIStatusError as error:
            self._say_argument(error, {"prompt": prompt, **given}, request)
            raise

    def _say_argument(self, error: APIStatusError, given: Dict[str, Any], request: Dict[str, Any]) -> None:
        """A refusal names the argument that the caller gave, and how a LoRA is taken away."""
        field, argument = error.param, argument_of(error.param, given)
        first = error.message.split(" ")[0].rstrip(":")
        if field and argument and first not in given:
            rest = error.message[len(field):] if first == field else f": {error.message}"
            error.message = argument + rest
        for ours, theirs in (("image", "images"), ("image", "init_image"), ("latents", "init_latents")):
            error.message = re.sub(rf"\b{theirs}\b", ours, error.message)
        error.param = argument
        about = field == "loras" or any(lora["path"] in error.message for lora in request.get("loras", ())
                                        if isinstance(lora, dict))
        if about and "is a folder" in error.message:
            error.message += "; weight_name=… of load_lora_weights() names the file in it"
        if self._adapters and about:
            error.message += "; unload_lora_weights() takes all LoRAs away, delete_adapters(NAME) one of " + \
                ", ".join(self._adapters)
        if self._fused and about:
            error.message += "; unfuse_lora() takes the fused ones away: " + ", ".join(self._fused)
        if self._embeddings and (field == "embeddings" or any(file in error.message for file, _ in self._embeddings)):
            error.message += "; unload_textual_inversion() takes all textual inversions away"
        error.args = (error.message,)

    def _follow(self, job: Job, callback: Optional[Callback], wanted: Set[str], timeout: Optional[float]) -> None:
        """Until the job's end, which is never left open: the job is cancelled where an exception comes first."""
        bar = Bar(**self._bar)
        preview: Optional[bytes] = None
        done = 0
        self._jobs.add(job)
        try:
            if self._interrupted:
                job.cancel()
            for event in job.events(timeout):
                preview = event.preview or preview
                bar.show(event.info, preview)
                self._num_timesteps = event.info.steps
                # Events of steps that are quick may be left out; a callback sees each step.
                last = event.info.steps if event.kind == "succeeded" else event.info.step
                while callback and done < last:
                    kwargs = {"preview": images.to_pil(preview, "a preview") if preview else None} if wanted else {}
                    timestep = event.info.timestep if done + 1 == event.info.step else None
                    changed = callback(self, done, timestep, kwargs)
                    if not isinstance(changed, (dict, type(None))):
                        raise TypeError(f"callback_on_step_end: returned {type(changed).__name__}, not its kwargs, or None")
                    if changed and set(changed) - wanted:
                        raise ValueError(f"callback_on_step_end: {sorted(set(changed) - wanted)} cannot be changed from here")
                    done += 1
        except BaseException:
            try:
                job.cancel()
            except Exception:  # what ended the call matters more
                pass
            raise
        finally:
            self._jobs.discard(job)
            bar.close()
        job.raise_for_state()

    @property
    def num_timesteps(self) -> int:
        """Steps of the newest call, as in diffusers: those that the job computes, for callbacks."""
        return self._num_timesteps

    @property
    def interrupt(self) -> bool:
        return self._interrupted

    @property
    def _interrupt(self) -> bool:
        return self._interrupted

    @_interrupt.setter
    def _interrupt(self, value: bool) -> None:
        """As in diffusers: True, set by a callback or another thread, ends the call, here with JobCancelledError."""
        self._interrupted = value
        if value:
            for job in list(self._jobs):
                job.cancel()

    def _loras(self, given: Dict[str, Any]) -> Dict[str, _Adapter]:
        """Those of the next job, by their names. Takes diffusers' `cross_attention_kwargs={"scale": …}` out of `given`."""
        scale = 1.0
        for name in ("attention_kwargs", "cross_attention_kwargs", "joint_attention_kwargs"):
            settings = given.pop(name, None) or {}
            if not isinstance(settings, dict) or set(settings) - {"scale"}:
                raise ValueError(f'{name}: {settings!r} is not {{"scale": …}}, of the LoRAs; attention has no other settings here')
            if settings and given.get("loras"):
                raise ValueError(f"{name}: loras=[…] have scales of their own")
            scale *= number(name, settings.get("scale", 1))
        active = {name: self._adapters[name].scaled(scale) for name in self._active if self._lora_enabled and name not in self._fused}
        return {**self._fused, **active}

    def load_lora_weights(self, pretrained_model_name_or_path: Path, adapter_name: Optional[str] = None,
                          weight_name: Optional[str] = None, load_into_transformer_2: bool = False) -> None:
        """Adds a LoRA file to the jobs that follow, to the second of a model's two transformers with `load_into_transformer_2`. The path is one on the cluster's hosts; of a folder `weight_name`
        names the file; without it a folder that this program sees has its only one read. The newest one is active, until `set_adapters`
        says which are. Whether the file is there and fits shows at the next call, which raises BadRequestError;
        `unload_lora_weights()` takes it away again."""
        folder = path("pretrained_model_name_or_path", pretrained_model_name_or_path)
        weight_name = weight_name or lora_in(folder)
        name = adapter_name or f"default_{len(self._adapters)}"
        if name in self._adapters:
            raise ValueError(f'adapter_name: "{name}" is loaded already')
        self._adapters[name] = _Adapter(f"{folder.rstrip('/')}/{weight_name}" if weight_name else folder,
                                        second=plain("load_into_transformer_2", load_into_transformer_2) is True)
        self._active = [name]

    def fuse_lora(self, components: Any = None, lora_scale: float = 1.0, safe_fusing: bool = False,
                  adapter_names: Optional[Sequence[str]] = None, **kwargs: Any) -> None:
        """The active LoRAs, or those named, go on as they are now, with their scales × `lora_scale`, in all jobs that follow, until
        `unfuse_lora`; `unload_lora_weights` leaves them, as in diffusers."""
        names = self._active if adapter_names is None else texts("adapter_names", adapter_names)
        self._check_adapters(names)
        scale = number("lora_scale", lora_scale)
        self._fused.update({name: self._adapters[name].scaled(scale) for name in names})

    def unfuse_lora(self, *args: Any, **kwargs: Any) -> None:
        """Undoes `fuse_lora`."""
        self._fused.clear()

    def set_adapters(self, adapter_names: Union[str, Sequence[str]],
                     adapter_weights: Union[None, float, Sequence[float]] = None) -> None:
        """Which loaded LoRAs the jobs that follow use, and their scales (1 where none is given)."""
        names = texts("adapter_names", adapter_names)
        one = 1.0 if adapter_weights is None else plain("adapter_weights", adapter_weights)
        weights = list(one) if isinstance(one, list) else [one] * len(names)
        if len(weights) != len(names):
            raise ValueError(f"set_adapters: {len(names)} names and {len(weights)} weights")
        self._check_adapters(names)
        for name, weight in zip(names, weights):
            self._adapters[name].weight = 1.0 if weight is None else number("adapter_weights", weight)
        self._active = names

    def delete_adapters(self, adapter_names: Union[str, Sequence[str]]) -> None:
        names = texts("adapter_names", adapter_names)
        self._check_adapters(names)
        for name in names:
            del self._adapters[name]
        self._active = [name for name in self._active if name in self._adapters]

    def _check_adapters(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self._adapters]
        if unknown:
            raise ValueError(f"adapter_names: {unknown} are not loaded; there are {list(self._adapters)}")

    def get_active_adapters(self) -> List[str]:
        return list(self._active)

    def get_list_adapters(self) -> Dict[str, List[str]]:
        """The loaded LoRAs, as diffusers lists them by component; which of them a file is for, it says itself."""
        return {"model": list(self._adapters)} if self._adapters else {}

    def unload_lora_weights(self) -> None:
        self._adapters.clear()
        self._active = []

    def enable_lora(self) -> None:
        self._lora_enabled = True

    def disable_lora(self) -> None:
        self._lora_enabled = False

    def load_textual_inversion(self, pretrained_model_name_or_path: Union[Path, List[Path]],
                               token: Union[None, str, List[Optional[str]]] = None, tokenizer: Any = None,
                               text_encoder: Any = None, weight_name: Optional[Path] = None,
                               subfolder: Optional[Path] = None, **kwargs: Any) -> None:
        """Prompts of the jobs that follow may have the word of a textual inversion: `token`, or the one that the file names.
        Paths are of safetensors files on the cluster's hosts, or of folders with `weight_name`, else learned_embeds.safetensors.
        A file says itself which text encoders it is for. Whether it is there and fits shows at the next call, which raises
        BadRequestError; `unload_textual_inversion()` takes it away again."""
        for name, part in (("tokenizer", tokenizer), ("text_encoder", text_encoder)):
            if part is not None and not (isinstance(part, Part) and part._name == name):
                raise ValueError(f"{name}: a file says itself which text encoders it is for; of SDXL it has clip_l and clip_g")
        files = embedding_files(pretrained_model_name_or_path, weight_name, subfolder, kwargs)
        tokens = token if isinstance(token, list) else [token] * (len(files) if token is None else 1)
        for one in tokens:
            if not isinstance(one, (str, type(None))):
                raise TypeError(f"token: {one!r} is no text")
        if len(tokens) != len(files):
            raise ValueError(f"token: {len(files)} files and {len(tokens)} tokens")
        known = [one for one in (*tokens, *(word for _, word in self._embeddings)) if one is not None]
        if len(set(known)) < len(known):
            raise ValueError(f"token: {known} has one of them twice")
        self._embeddings += zip(files, tokens)

    def unload_textual_inversion(self, tokens: Union[None, str, Sequence[str]] = None, tokenizer: Any = None,
                                 text_encoder: Any = None) -> None:
        """Takes textual inversions away: those with these tokens, which `load_textual_inversion` was given, or all."""
        wanted = None if tokens is None else set(texts("tokens", tokens))
        kept = [] if wanted is None else [one for one in self._embeddings if one[1] not in wanted]
        if wanted is not None and len(kept) == len(self._embeddings):
            raise ValueError(f"tokens: none of {sorted(wanted)} was given to load_textual_inversion(…, token=…)")
        self._embeddings = kept

    def enable_vae_tiling(self) -> None:
        """Decodes in overlapping tiles: less memory, a slightly different picture."""
        self.defaults["vae_tiling"] = True

    def disable_vae_tiling(self) -> None:
        self.defaults.pop("vae_tiling", None)

    def enable_sequential_cpu_offload(self, *args: Any, **kwargs: Any) -> None:
        """The jobs that follow have `offload="blocks"`: an actor keeps two of its blocks and reads each when its turn comes."""
        self.defaults["offload"] = "blocks"

    def set_progress_bar_config(self, **config: Any) -> None:
        """`disable=True` shows none; `desc` is a text before it. tqdm's other settings have no effect."""
        self._bar = {"disable": bool(config.get("disable", False)), "description": config.get("desc") or ""}

    def to(self, *args: Any, **kwargs: Any) -> "TroupePipeline":
        """A dtype becomes that of the jobs that follow. With a device it does nothing: the devices are the cluster's."""
        dtype = dtype_in(args, kwargs)
        if dtype is not None:
            self.defaults["dtype"] = dtype_name("dtype", dtype)
        return self

    @property
    def device(self) -> Any:
        """Where generators and tensors of the program's own belong: the CPU."""
        return torch_or_text("device", "cpu")

    @property
    def dtype(self) -> Any:
        """The type that the jobs that follow compute in."""
        return torch_or_text("dtype", dtype_name("dtype", self.defaults.get("dtype") or "float32"))
