"""Nodes for ComfyUI that compute on a Troupe cluster: connect, add a LoRA, an embedding or a ControlNet, generate."""
import contextvars
import json
import re
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import comfy.model_management
import comfy.utils
import torch
from troupe import Client, TroupePipeline

CATEGORY = "Troupe"
MAX_PREVIEW = 512  # pixels


class Cluster(NamedTuple):
    client: Client
    model: str
    loras: list
    embeddings: list
    options: dict
    controlnets: list = []


class TroupeConnect:
    """A cluster. Its key, if it asks for one, is TROUPE_API_KEY's, so that no workflow's file contains it."""

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"url": ("STRING", {"default": "http://127.0.0.1:7480"})},
            "optional": {
                "model": ("STRING", {"default": "", "tooltip": "A folder on the cluster's hosts; empty: the cluster's own"}),
                "options": ("STRING", {"default": "", "multiline": True, "tooltip": "Further fields of a request as JSON, such as "
                                       '{"parallel": "auto", "dtype": "bfloat16"}'}),
            },
        }

    RETURN_TYPES = ("TROUPE",)
    FUNCTION = "connect"
    CATEGORY = CATEGORY

    def connect(self, url, model="", options=""):
        try:
            fields = json.loads(options) if options.strip() else {}
        except ValueError as error:
            raise ValueError(f"options: no JSON: {error}") from error
        if not isinstance(fields, dict):
            raise ValueError('options: a JSON object is expected, such as {"parallel": "auto"}')
        client = Client(url)
        client.models()  # says now if nobody is there
        return (Cluster(client, model, [], [], fields),)


class TroupeLora:
    """Adds a LoRA file; several add up."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {
            "cluster": ("TROUPE",),
            "path": ("STRING", {"default": "", "tooltip": "A safetensors file on the cluster's hosts"}),
            "scale": ("FLOAT", {"default": 1.0, "min": -1000.0, "max": 1000.0, "step": 0.05}),
        }, "optional": {
            "transformer_2": ("BOOLEAN", {"default": False, "tooltip": "For the second of a model's two transformers"}),
        }}

    RETURN_TYPES = ("TROUPE",)
    FUNCTION = "add"
    CATEGORY = CATEGORY

    def add(self, cluster, path, scale, transformer_2=False):
        lora = {"path": path, "scale": scale, **({"transformer_2": True} if transformer_2 else {})}
        return (cluster._replace(loras=[*cluster.loras, lora]),)


class TroupeEmbedding:
    """Adds a textual inversion's file; prompts use it by its word."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {
            "cluster": ("TROUPE",),
            "path": ("STRING", {"default": "", "tooltip": "A safetensors file on the cluster's hosts"}),
            "token": ("STRING", {"default": "", "tooltip": "Its word in prompts; empty: the one that the file names"}),
        }}

    RETURN_TYPES = ("TROUPE",)
    FUNCTION = "add"
    CATEGORY = CATEGORY

    def add(self, cluster, path, token):
        return (cluster._replace(embeddings=[*cluster.embeddings, {"path": path, "token": token}]),)


class ControlNet(NamedTuple):
    path: str  # "": the next of the model's own
    scale: float
    start: float
    end: float


class TroupeControlNet:
    """Adds a ControlNet, or says how much the next of the model's own counts; several add up."""

    @classmethod
    def INPUT_TYPES(cls):
        part = {"min": 0.0, "max": 1.0, "step": 0.01}
        return {"required": {
            "cluster": ("TROUPE",),
            "path": ("STRING", {"default": "", "tooltip": "A folder on the cluster's hosts or a name on the hub; empty: the next of "
                                "the model's own"}),
            "scale": ("FLOAT", {"default": 1.0, "min": -100.0, "max": 100.0, "step": 0.05}),
            "start": ("FLOAT", {"default": 0.0, **part, "tooltip": "Part of the steps after which it begins to count"}),
            "end": ("FLOAT", {"default": 1.0, **part, "tooltip": "Part of the steps after which it counts no longer"}),
        }}

    RETURN_TYPES = ("TROUPE",)
    FUNCTION = "add"
    CATEGORY = CATEGORY

    def add(self, cluster, path, scale, start, end):
        own_is_late = not path and any(net.path for net in cluster.controlnets)
        if own_is_late:
            raise ValueError("path: is empty after a ControlNet that has one; the model's own ones come first")
        return (cluster._replace(controlnets=[*cluster.controlnets, ControlNet(path, scale, start, end)]),)


class TroupeGenerate:
    """Makes pictures, [batch, height, width, 3] from 0 to 1. The queue's cancel button cancels the job on the cluster."""

    @classmethod
    def INPUT_TYPES(cls):
        size = {"default": 0, "min": 0, "max": 16384, "step": 8, "tooltip": "Pixels; 0: the model's native size"}
        return {
            "required": {
                "cluster": ("TROUPE",),
                "prompt": ("STRING", {"multiline": True, "dynamicPrompts": True}),
                "negative_prompt": ("STRING", {"multiline": True, "dynamicPrompts": True, "tooltip": "Empty: none"}),
                "seed": ("INT", {"default": 0, "min": 0, "max": 2**63 - 1, "control_after_generate": True}),
                "steps": ("INT", {"default": 0, "min": 0, "max": 10000, "tooltip": "0: the model's own number"}),
                "guidance_scale": ("FLOAT", {"default": -1.0, "min": -1.0, "max": 100.0, "step": 0.1, "tooltip": "-1: the model's own"}),
                "width": ("INT", size),
                "height": ("INT", size),
                "batch_size": ("INT", {"default": 1, "min": 1, "max": 4096}),
            },
            "optional": {
                "image": ("IMAGE", {"tooltip": "To begin with, or to edit, as the model takes it; of a batch all"}),
                "mask": ("MASK", {"tooltip": "What of the image is painted anew; without one all of it"}),
                "last_image": ("IMAGE", {"tooltip": "With image: the video's last frame; the first of the batch"}),
                "control_image": ("IMAGE", {"tooltip": "Edges, depth, a pose, …: of a batch one for each ControlNet"}),
                "guidance_scale_2": ("FLOAT", {"default": -1.0, "min": -1.0, "max": 100.0, "step": 0.1,
                                               "tooltip": "Of a second transformer; -1: as guidance_scale"}),
                "strength": ("FLOAT", {"default": 0.0, "min": 0.0, "max": 1.0, "step": 0.01, "tooltip": "0: the model's own"}),
            },
        }

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "generate"
    CATEGORY = CATEGORY

    def generate(self, cluster, prompt, negative_prompt, seed, steps, guidance_scale, width, height, batch_size, image=None,
                 mask=None, strength=0.0, last_image=None, guidance_scale_2=-1.0, control_image=None):
        for name, text in (("prompt", prompt), ("negative_prompt", negative_prompt)):
            if found := re.search(r"\bembedding:\S+", text):
                raise ValueError(f'{name}: has "{found[0]}"; the node "Troupe: embedding" adds its file, and its word stands in the prompt')
        pipe = TroupePipeline(cluster.client, cluster.model or None, **cluster.options)
        pipe.set_progress_bar_config(disable=True)
        bar = comfy.utils.ProgressBar(steps or 1)

        def step_ended(pipe, step, timestep, kwargs):
            preview = kwargs["preview"]
            bar.update_absolute(step + 1, pipe.num_timesteps, ("JPEG", preview, MAX_PREVIEW) if preview else None)

        arguments = dict(
            negative_prompt=negative_prompt or None, seed=seed, num_inference_steps=steps or None,
            guidance_scale=None if guidance_scale < 0 else guidance_scale,
            width=width or None, height=height or None, num_images_per_prompt=batch_size, loras=cluster.loras or None,
            embeddings=cluster.embeddings or None,
            image=None if image is None else [one.cpu().numpy().clip(0, 1) for one in image],
            control_image=None if control_image is None else [one.cpu().numpy().clip(0, 1) for one in control_image],
            controlnet=[net.path for net in cluster.controlnets if net.path] or None,
            controlnet_conditioning_scale=[net.scale for net in cluster.controlnets] or None,
            control_guidance_start=[net.start for net in cluster.controlnets] or None,
            control_guidance_end=[net.end for net in cluster.controlnets] or None,
            last_image=None if last_image is None else last_image[0].cpu().numpy().clip(0, 1),
            guidance_scale_2=None if guidance_scale_2 < 0 else guidance_scale_2, strength=None if image is None else strength or None,
            mask_image=None if mask is None else mask[0].cpu().numpy().clip(0, 1), output_type="np", callback_on_step_end=step_ended,
            callback_on_step_end_tensor_inputs=["preview"])
        # In a thread, since a step may take long and the cancel button should not. ComfyUI knows by the context which node
        # the progress is of.
        with ThreadPoolExecutor(1) as thread:
            call = thread.submit(contextvars.copy_context().run, lambda: pipe(prompt, **arguments))
            while not wait([call], timeout=0.1).done:
                if comfy.model_management.processing_interrupted():
                    pipe._interrupt = True
        comfy.model_management.throw_exception_if_processing_interrupted()
        return (torch.from_numpy(call.result().images),)


NODE_CLASS_MAPPINGS = {"TroupeConnect": TroupeConnect, "TroupeLora": TroupeLora, "TroupeEmbedding": TroupeEmbedding,
                       "TroupeControlNet": TroupeControlNet, "TroupeGenerate": TroupeGenerate}
NODE_DISPLAY_NAME_MAPPINGS = {"TroupeConnect": "Troupe: connect", "TroupeLora": "Troupe: LoRA",
                              "TroupeEmbedding": "Troupe: embedding", "TroupeControlNet": "Troupe: ControlNet",
                               "TroupeGenerate": "Troupe: generate"}
