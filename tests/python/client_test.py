"""The package against a fake server: arguments, outputs, callbacks, errors, streams that break, the asynchronous twin.

Needs numpy and pillow (requirements.txt).
"""
import asyncio
import base64
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import types
import unittest
import warnings
from unittest import mock

import numpy as np
from PIL import Image

import troupe
from fake_server import FakeServer, npy, png
from troupe import TroupePipeline, images
from troupe.client import Client
from troupe.arguments import make_request
from troupe.progress import Bar


class WithServer(unittest.TestCase):
    def setUp(self):
        self.server = FakeServer()
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)
        self.pipe = TroupePipeline.connect(self.server.url)
        self.pipe.set_progress_bar_config(disable=True)

    def request(self):
        """The last one that came in."""
        return self.server.jobs[-1].request


class Arguments(WithServer):
    def test_diffusers_names_become_the_requests(self):
        self.pipe("a cat", negative_prompt=["a dog"], height=64, width=96, num_inference_steps=3, guidance_scale=2.5,
                  num_images_per_prompt=2, seed=9, use_resolution_binning=True, method="pipefusion", num_pipeline_patch=4, pp=2)
        self.assertEqual(self.request(), {
            "prompts": ["a cat"], "negative_prompts": ["a dog"], "height": 64, "width": 96, "steps": 3, "guidance_scale": 2.5,
            "images_per_prompt": 2, "seed": 9, "resolution_binning": True, "method": "pipefusion", "num_pipeline_patch": 4,
            "pp": 2})

    def test_what_is_left_out_is_the_clusters(self):
        output = self.pipe(["a cat", "a dog"])
        self.assertEqual(self.request(), {"prompts": ["a cat", "a dog"], "seed": output.seed})
        self.assertNotEqual(self.pipe("a cat").seed, output.seed)

    def test_defaults_and_model(self):
        pipe = TroupePipeline.from_pretrained("/models/pixart", self.server.url, torch_dtype="torch.bfloat16", parallel="auto")
        pipe.submit("a cat", seed=1)
        self.assertEqual(self.request(), {"prompts": ["a cat"], "seed": 1, "model": "/models/pixart", "dtype": "bfloat16",
                                          "parallel": "auto"})
        class Float16:
            def __str__(self):
                return "torch.float16"

        pipe.submit("a cat", seed=1, dtype=Float16())
        self.assertEqual(self.request()["dtype"], "float16")
        pipe.defaults["num_inference_steps"] = 7
        pipe.submit("a cat", seed=1)
        self.assertEqual(self.request()["steps"], 7)
        pipe.enable_vae_tiling()
        self.assertIs(pipe.to("cuda"), pipe)
        pipe.submit("a cat", seed=1, parallel=None, dtype="float32")
        self.assertEqual(self.request()["dtype"], "float32")
        self.assertTrue(self.request()["vae_tiling"])

    def test_what_diffusers_users_type(self):
        pipe = TroupePipeline.from_pretrained("/m", self.server.url, torch_dtype="torch.float16", variant="fp16",
                                              use_safetensors=True)
        pipe.enable_model_cpu_offload()
        pipe.submit("a cat", seed=1)
        self.assertEqual(self.request(), {"prompts": ["a cat"], "seed": 1, "model": "/m", "dtype": "float16"})
        pipe.enable_sequential_cpu_offload(gpu_id=0)
        pipe.submit("a cat")
        self.assertEqual(self.request()["offload"], "blocks")
        for wrong in (dict(variant="ema"), dict(use_safetensors=False)):
            with self.assertRaisesRegex(ValueError, f"{next(iter(wrong))}: .* read"):
                TroupePipeline.from_pretrained("/m", self.server.url, **wrong)

    def test_two_names_of_one_field(self):
        with self.assertRaisesRegex(TypeError, "num_inference_steps: says the same as steps|steps: says the same as num_inf"):
            self.pipe("a cat", steps=3, num_inference_steps=2)
        pipe = TroupePipeline.connect(self.server.url, steps=3)
        pipe.submit("a cat", num_inference_steps=2)
        self.assertEqual(self.request()["steps"], 2)

    def test_latents_and_images_travel_as_files(self):
        latents = np.arange(6, dtype=np.float64).reshape(1, 1, 2, 3)
        self.pipe("a cat", latents=latents, image=Image.new("L", (4, 2), 7), strength=0.5, mask_image=np.eye(2))
        back = images.latents_from_npy(base64.b64decode(self.request()["init_latents"]))
        self.assertEqual((back.dtype, back.tolist()), (np.float32, latents.tolist()))
        picture = images.to_pil(base64.b64decode(self.request()["image"][0]))
        self.assertEqual((picture.size, picture.getpixel((0, 0))), ((4, 2), (7, 7, 7)))
        mask = images.to_pil(base64.b64decode(self.request()["mask_image"]))
        self.assertEqual([mask.getpixel((x, 0)) for x in (0, 1)], [(255, 255, 255), (0, 0, 0)])
        self.pipe("a cat", control_image=png(1), controlnet="org/canny", controlnet_conditioning_scale=0.5,
                  control_guidance_end=0.75, guess_mode=False)
        self.assertEqual([base64.b64decode(one) for one in self.request()["control_images"]], [png(1)])
        self.assertEqual((self.request()["controlnets"], self.request()["control_scale"], self.request()["control_until"]),
                         ("org/canny", 0.5, 0.75))
        with self.assertRaisesRegex(ValueError, "guess_mode"):
            self.pipe("a cat", guess_mode=True)
        self.pipe("a cat", image=[png(1), png(2)], last_image=png(3), guidance_scale_2=2)
        self.assertEqual([base64.b64decode(one) for one in self.request()["image"]], [png(1), png(2)])
        self.assertEqual(base64.b64decode(self.request()["last_image"]), png(3))
        self.assertEqual(self.request()["guidance_scale_2"], 2)
        self.assertEqual(len(images.to_pngs(np.zeros((3, 2, 4, 3)))), 3)
        floats = images.to_pil(images.to_png(np.full((1, 2, 4, 3), 0.5)))
        self.assertEqual((floats.size, floats.getpixel((3, 1))), ((4, 2), (128, 128, 128)))
        self.assertEqual(images.to_png(png(1)), png(1))

    def test_prompt_embeds_travel_as_a_file(self):
        class Tensor:  # as far as torch's is asked
            shape = (2, 3)
            detach = float = cpu = flatten = lambda self: self

            def tolist(self):
                return [1, 1, 0, 1, 0, 0]

        embeds = np.arange(12, dtype=np.float64).reshape(2, 3, 2).transpose(0, 2, 1)
        call = dict(prompt_embeds=embeds, prompt_attention_mask=Tensor(), negative_pooled_prompt_embeds=np.ones((2, 1), np.int64),
                    num_images_per_prompt=2, seed=1)
        output = self.pipe(**call)
        request = self.request()
        self.assertEqual((request["prompts"], len(output.images)), (["", ""], 4))
        file = base64.b64decode(request["prompt_embeds"])
        length = int.from_bytes(file[:8], "little")
        seen = {name: (entry["dtype"], np.frombuffer(file[8 + length:], "<f4")[slice(*(at // 4 for at in entry["data_offsets"]))]
                       .reshape(entry["shape"]).tolist()) for name, entry in json.loads(file[8:8 + length]).items()}
        self.assertEqual(seen, {"prompt_embeds": ("F32", embeds.tolist()), "prompt_attention_mask": ("F32", [[1, 1, 0], [1, 0, 0]]),
                                "negative_pooled_prompt_embeds": ("F32", [[1], [1]])})
        self.assertEqual(length % 8, 0)

        async def twin():
            return await (await troupe.AsyncTroupePipeline.connect(self.server.url))(**call)

        asyncio.run(twin())
        self.assertEqual(self.request(), request)
        for wrong, message in ((dict(call, prompt="a"), "prompt and prompt_embeds"), (dict(prompt="a", negative_prompt_embeds=embeds), "prompt and"),
                               (dict(pooled_prompt_embeds=embeds), "needs prompt_embeds"), (dict(prompt_embeds=[1.0]), "neither a numpy")):
            with self.assertRaisesRegex((ValueError, TypeError), message):
                self.pipe(**wrong)

    def test_a_generator_is_its_seed(self):
        class State(list):
            def __eq__(self, other):
                return np.array([a == b for a, b in zip(self, other)])

        class Generator:
            def __init__(self, device="cpu"):
                self.device = types.SimpleNamespace(type=device)
                self.seed, self.drawn = 0, 0

            def manual_seed(self, seed):
                self.seed, self.drawn = seed, 0
                return self

            def initial_seed(self):
                return self.seed

            def get_state(self):
                return State([self.seed, self.drawn])

        generator = Generator().manual_seed(41)
        self.assertEqual(make_request("a", {"generator": generator})["seed"], 41)
        self.assertEqual(make_request("a", {"generator": [Generator().manual_seed(3), generator]}),
                         {"prompts": ["a"], "picture_seeds": [3, 41]})
        generator.drawn = 1
        for wrong, message in ((generator, "drawn numbers already"), (Generator("cuda"), "CPU"), ([generator], "drawn numbers already"),
                               (7, "seed=")):
            with self.assertRaisesRegex((ValueError, TypeError), message):
                make_request("a", {"generator": wrong})
        with self.assertRaisesRegex(ValueError, "either"):
            make_request("a", {"generator": Generator(), "seed": 1})

    def test_what_cannot_be_said_is_refused_here(self):
        for arguments, message in ((dict(prompt=None), "prompt"),
                                   (dict(prompt="a", output_type="tensor"), "output_type"),
                                   (dict(prompt="a", callback=print), "callback: callback_on_step_end"),
                                   (dict(prompt="a", callback_steps=2), "callback_steps: callback_on_step_end"),
                                   (dict(prompt="a", image=np.zeros(4)), "image: an array of shape"),
                                   (dict(prompt="a", image=np.zeros((4, 2)), mask_image=np.zeros((4, 2, 2))), "mask_image: an array"),
                                   (dict(prompt="a", callback_on_step_end_tensor_inputs=["latents"]), "latents")):
            with self.assertRaisesRegex(ValueError, message):
                self.pipe(**arguments)
        self.assertEqual(self.server.jobs, [])

    def test_scalars_of_every_type(self):
        class Tensor:  # of no dimensions, as far as torch's is asked
            def tolist(self):
                return 5

            def __index__(self):
                return 5

        self.pipe.submit(("a cat", "a dog"), num_inference_steps=Tensor(), height=np.int64(64), width=64.0, guidance_scale=np.float32(2.5),
                         seed=np.array([3, 4]), timesteps=np.array([9.0, 1.0]), sigmas=(np.float64(1), 0), clean_caption=np.bool_(True),
                         loras=[{"path": pathlib.Path("/l"), "scale": np.float32(0.5)}])
        self.assertEqual(self.request(), {
            "prompts": ["a cat", "a dog"], "steps": 5, "height": 64, "width": 64.0, "guidance_scale": 2.5, "picture_seeds": [3, 4],
            "timesteps": [9.0, 1.0], "sigmas": [1.0, 0], "clean_caption": True, "loras": [{"path": "/l", "scale": 0.5}]})
        self.pipe.submit("a", seed=Tensor())
        self.assertEqual(self.request()["seed"], 5)
        self.pipe.client.submit({"prompts": ["a"], "steps": np.int32(3)})
        self.assertEqual(self.request()["steps"], 3)

    def test_types_that_mean_nothing_are_refused_by_name(self):
        fine = np.zeros((1, 4, 2, 2), np.float32)
        for arguments, message in ((dict(prompt=3), r"prompt: 3 \(int\)"), (dict(prompt={"a": 1}), "prompt: .*dict"),
                                   (dict(prompt=["a", None]), "prompt"), (dict(prompt=[]), "prompt: the list is empty"),
                                   (dict(prompt=b"a"), "prompt: .*bytes"), (dict(negative_prompt=[1]), "negative_prompt"),
                                   (dict(seed=1.5), "seed: 1.5"), (dict(seed="7"), "seed: '7'"), (dict(seed=True), "seed: True"),
                                   (dict(seed=[]), "seed: the list"), (dict(generator=[]), "generator: the list"),
                                   (dict(guidance_scale=float("nan")), "guidance_scale: nan"), (dict(height={1: 2}), "height: 1"),
                                   (dict(sampler=object()), "sampler: <object"), (dict(dtype=np.float16), "dtype: <class"),
                                   (dict(latents=[[1.0]]), "latents: list"), (dict(latents=np.array(["a"])), "latents: an array of <U1"),
                                   (dict(prompt=None, prompt_embeds=np.array([[["a"]]])), "prompt_embeds: an array of <U1"),
                                   (dict(callback_on_step_end=3), "callback_on_step_end: int"), (dict(timeout="1"), "timeout: '1'"),
                                   (dict(callback_on_step_end_tensor_inputs=3), "callback_on_step_end_tensor_inputs: 3"),
                                   (dict(latents=fine, steps=1j), "steps: 1j")):
            with self.subTest(arguments), self.assertRaisesRegex((ValueError, TypeError), message):
                self.pipe(**{"prompt": "a", **arguments})
        for call, message in ((lambda: self.pipe.client.submit({"prompts": ["a"], "steps": object()}), "steps: "),
                              (lambda: TroupePipeline(self.pipe.client, 3), "model: 3"), (lambda: Client(timeout="1"), "timeout: '1'"),
                              (lambda: troupe.local("/m", allow_models=[3], executable="troupe"), "allow_models: 3"),
                              (lambda: troupe.local("/m", arguments=[3], executable="troupe"), "arguments: ")):
            with self.assertRaisesRegex(TypeError, message):
                call()
        self.assertEqual(self.server.jobs, [])

    def test_diffusers_arguments_without_a_field(self):
        self.pipe.submit("a", negative_prompt="b", seed=1, prompt_2="a", negative_prompt_2="b", clip_skip=0, crops_coords_top_left=(0, 0),
                         skip_layer_guidance_scale=2.8, aesthetic_score=6, cross_attention_kwargs={}, ip_adapter_image=None)
        self.assertEqual(self.request(), {"prompts": ["a"], "negative_prompt": "b", "seed": 1})
        self.pipe.submit("a", seed=1, height=64, width=96, original_size=(64, 96), target_size=[64, 96])
        self.assertEqual(self.request(), {"prompts": ["a"], "seed": 1, "height": 64, "width": 96})
        for name, value in dict(prompt_2="b", clip_skip=2, original_size=(512, 512), target_size=(0, 0), ip_adapter_image=png(1), denoising_end=0.8,
                                skip_guidance_layers=[7], padding_mask_crop=32, cross_attention_kwargs={"x": 1},
                                joint_attention_kwargs={"scale": "a"}).items():
            with self.subTest(name), self.assertRaisesRegex((ValueError, TypeError), f"^{name}: "):
                self.pipe.submit("a", **{name: value})

    def test_refusals_speak_of_arguments(self):
        for arguments, argument, message in (
                (dict(num_inference_steps=77777), "num_inference_steps", "num_inference_steps: is 77777; see pp=2"),
                (dict(steps=77777), "steps", "steps: is 77777; see pp=2"),
                (dict(num_pipeline_patch=7), "num_pipeline_patch", "num_pipeline_patch is 7: at most 4, with image and latents")):
            with self.assertRaises(troupe.BadRequestError) as caught:
                self.pipe("a", **arguments)
            self.assertEqual((caught.exception.param, str(caught.exception)), (argument, message))

    def test_loras(self):
        self.pipe.load_lora_weights("/loras/style.safetensors")
        self.pipe.load_lora_weights("/loras/", adapter_name="detail", weight_name="detail.safetensors")
        self.assertEqual(self.pipe.get_active_adapters(), ["detail"])
        self.pipe.submit("a")
        self.assertEqual(self.request()["loras"], [{"path": "/loras/detail.safetensors", "scale": 1.0}])
        self.pipe.set_adapters(["default_0", "detail"], adapter_weights=[0.8, -0.3])
        self.pipe.submit("a")
        self.assertEqual(self.request()["loras"], [{"path": "/loras/style.safetensors", "scale": 0.8},
                                                   {"path": "/loras/detail.safetensors", "scale": -0.3}])
        self.pipe.load_lora_weights("/loras/low.safetensors", adapter_name="low", load_into_transformer_2=True)
        self.pipe.set_adapters("low", 0.5)
        self.pipe.submit("a")
        self.assertEqual(self.request()["loras"], [{"path": "/loras/low.safetensors", "scale": 0.5, "transformer_2": True}])
        self.pipe.delete_adapters("low")
        self.pipe.set_adapters(["default_0", "detail"])
        self.pipe.disable_lora()
        self.pipe.submit("a")
        self.assertNotIn("loras", self.request())
        self.pipe.enable_lora()
        self.pipe.delete_adapters("detail")
        self.assertEqual(self.pipe.get_active_adapters(), ["default_0"])
        with self.assertRaisesRegex(ValueError, "loaded already"):
            self.pipe.load_lora_weights("/loras/other.safetensors", adapter_name="default_0")
        with self.assertRaisesRegex(ValueError, "not loaded"):
            self.pipe.set_adapters("nobody")
        with self.assertRaisesRegex(ValueError, "1 names and 2 weights"):
            self.pipe.set_adapters(["default_0"], [1, 2])
        self.pipe.load_lora_weights("/loras/none.safetensors")
        with self.assertRaisesRegex(troupe.BadRequestError, r"no such file; unload_lora_weights\(\) takes"):
            self.pipe.submit("a")
        self.pipe.unload_lora_weights()
        self.pipe.submit("a")
        self.assertNotIn("loras", self.request())

    def test_a_folder_of_a_lora_has_one_file(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a.safetensors", "optimizer.safetensors", "a.bin"):
                pathlib.Path(folder, name).touch()
            self.pipe.load_lora_weights(folder)
            self.pipe.submit("a")
            self.assertEqual(self.request()["loras"], [{"path": f"{folder}/a.safetensors", "scale": 1.0}])
            pathlib.Path(folder, "b.safetensors").touch()
            with self.assertRaisesRegex(ValueError, "a.safetensors, b.safetensors: weight_name="):
                self.pipe.load_lora_weights(folder)
            pathlib.Path(folder, "pytorch_lora_weights.safetensors").touch()
            self.pipe.load_lora_weights(folder, adapter_name="usual")
            self.pipe.submit("a")
            self.assertEqual(self.request()["loras"][0]["path"], f"{folder}/pytorch_lora_weights.safetensors")
        self.assertEqual(self.pipe.get_list_adapters(), {"model": ["default_0", "usual"]})

    def test_a_lora_that_does_not_fit_is_taken_away_as_the_refusal_says(self):
        self.pipe.load_lora_weights("/loras/none", adapter_name="bad")
        self.pipe.fuse_lora()
        self.pipe.unload_lora_weights()
        self.assertEqual(self.pipe.get_list_adapters(), {})
        with self.assertRaisesRegex(troupe.BadRequestError, r"; unfuse_lora\(\) takes the fused ones away: bad"):
            self.pipe.submit("a")
        self.pipe.unfuse_lora()
        self.pipe.submit("a")
        self.assertNotIn("loras", self.request())

    def test_textual_inversions(self):
        self.pipe.load_textual_inversion("/words/cat.safetensors")
        self.pipe.load_textual_inversion(pathlib.Path("/words/dog"), token="<dog>", text_encoder=self.pipe.text_encoder, tokenizer=self.pipe.tokenizer)
        self.pipe.load_textual_inversion(["/words", "/more"], token=["a1", "b1"], weight_name="w.pt", cache_dir="/tmp", local_files_only=True)
        self.pipe.submit("a")
        first = [{"path": "/words/cat.safetensors", "token": None}, {"path": "/words/dog/learned_embeds.safetensors", "token": "<dog>"}]
        self.assertEqual(self.request()["embeddings"], [*first, {"path": "/words/w.pt", "token": "a1"}, {"path": "/more/w.pt", "token": "b1"}])
        self.pipe.unload_textual_inversion(["a1", "b1"])
        self.pipe.submit("a")
        self.assertEqual(self.request()["embeddings"], first)
        self.pipe.load_textual_inversion("/words/none.safetensors")
        with self.assertRaisesRegex(troupe.BadRequestError, r"no such file; unload_textual_inversion\(\) takes"):
            self.pipe.submit("a")
        self.pipe.unload_textual_inversion()
        self.pipe.submit("a")
        self.assertNotIn("embeddings", self.request())
        self.pipe.load_textual_inversion("/words/cat.safetensors", token="<cat>")
        load = self.pipe.load_textual_inversion
        for call, message in ((lambda: load({"<cat>": np.zeros(4)}), "pretrained_model_name_or_path: tensors do not travel"),
                              (lambda: load("/a", token="<cat>"), "token: .* twice"), (lambda: load(["/a", "/b"], token="c"), "2 files and 1 tokens"),
                              (lambda: load("/a", token=3), "token: 3 is no text"), (lambda: load("/a", text_encoder=self.pipe.text_encoder_2), "text_encoder: "),
                              (lambda: load("/a", use_safetensors=False), "use_safetensors: pickled"), (lambda: load("/a", revision="x"), "revision: "),
                              (lambda: load("/a", something=1), "something: "), (lambda: self.pipe.unload_textual_inversion("<dog>"), "tokens: none of")):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                call()

    def test_fused_loras_stay(self):
        self.pipe.load_lora_weights("/a", adapter_name="a")
        self.pipe.set_adapters("a", np.float32(0.5))
        self.pipe.submit("a", cross_attention_kwargs={"scale": 0.5})
        self.assertEqual(self.request()["loras"], [{"path": "/a", "scale": 0.25}])
        self.pipe.fuse_lora(lora_scale=2)
        self.pipe.unload_lora_weights()
        self.pipe.load_lora_weights("/b", adapter_name="b")
        self.pipe.submit("a", joint_attention_kwargs={"scale": 0.5})
        self.assertEqual(self.request()["loras"], [{"path": "/a", "scale": 1.0}, {"path": "/b", "scale": 0.5}])
        self.pipe.unfuse_lora()
        self.pipe.submit("a")
        self.assertEqual(self.request()["loras"], [{"path": "/b", "scale": 1.0}])
        for call, message in ((lambda: self.pipe.load_lora_weights({"weight": 1}), "pretrained_model_name_or_path"),
                              (lambda: self.pipe.set_adapters("b", {"unet": 1}), "adapter_weights"),
                              (lambda: self.pipe.set_adapters(3), "adapter_names"), (lambda: self.pipe.fuse_lora(lora_scale="a"), "lora_scale"),
                              (lambda: self.pipe.submit("a", loras=[{"path": "/c"}], attention_kwargs={"scale": 2}), "attention_kwargs")):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                call()


class Parts(WithServer):
    def test_what_changes_no_picture_does_nothing(self):
        for pipe in (self.pipe, troupe.AsyncTroupePipeline(self.pipe)):
            self.assertIs(pipe.to("cuda"), pipe)
            for name in ("enable_attention_slicing", "enable_xformers_memory_efficient_attention", "enable_model_cpu_offload",
                         "enable_vae_slicing", "fuse_qkv_projections"):
                self.assertIsNone(getattr(pipe, name)())
            pipe.safety_checker = None
            self.assertIsNone(pipe.safety_checker)
            self.assertIs(pipe.unet.to("cuda").set_default_attn_processor(), None)
            pipe.transformer.compile(mode="max-autotune")
        self.pipe.submit("a", seed=1)
        self.assertEqual(self.request(), {"prompts": ["a"], "seed": 1})
        TroupePipeline.from_pretrained("/m", self.server.url, safety_checker=None, low_cpu_mem_usage=True, device_map="balanced",
                                       add_watermarker=False).submit("a", seed=1)
        self.assertEqual(self.request(), {"prompts": ["a"], "seed": 1, "model": "/m"})

    def test_what_is_set_counts(self):
        class Type:
            def __str__(self):
                return "torch.float16"

        self.assertEqual((self.pipe.device, self.pipe.dtype), ("cpu", "float32"))
        self.pipe.to("cuda", Type())
        self.pipe.vae.enable_tiling()
        self.pipe.submit("a", seed=1)
        self.assertEqual(self.request(), {"prompts": ["a"], "seed": 1, "dtype": "float16", "vae_tiling": True})
        stand_in = types.SimpleNamespace(device=lambda name: ("device", name), float16="half")
        with mock.patch.dict(sys.modules, {"torch": stand_in}):
            self.assertEqual((self.pipe.device, self.pipe.dtype, self.pipe.vae.dtype), (("device", "cpu"), "half", "half"))
        self.pipe.vae.disable_tiling()
        self.pipe.submit("a")
        self.assertNotIn("vae_tiling", self.request())

    def test_all_else_is_refused_by_name(self):
        for pipe in (self.pipe, troupe.AsyncTroupePipeline(self.pipe)):
            for name, words in dict(scheduler='sampler="euler"', unet="actors", vae="enable_vae_tiling", safety_checker="None").items():
                with self.subTest(name), self.assertRaisesRegex(AttributeError, f"^{name}: .*{words}"):
                    setattr(pipe, name, object())
            for name in ("scheduler", "enable_freeu", "encode_prompt", "load_ip_adapter", "save_pretrained", "components"):
                with self.subTest(name), self.assertRaisesRegex(AttributeError, f"^{name}: "):
                    getattr(pipe, name)
            for call in (lambda: pipe.vae.decode(1), lambda: setattr(pipe.unet, "x", 1)):
                with self.assertRaisesRegex(AttributeError, r"^(vae\.decode|unet\.x): "):
                    call()
            with self.assertRaisesRegex(TypeError, "^tokenizer: .*prompt_embeds"):
                pipe.tokenizer("a")
            with self.assertRaisesRegex(AttributeError, "no attribute 'enable_warp'"):
                pipe.enable_warp()
        for name, value in dict(scheduler=object(), text_encoder_3=None, custom_pipeline="x", safety_checker=object(), add_watermarker=True).items():
            with self.subTest(name), self.assertRaisesRegex(ValueError, f"^{name}: "):
                TroupePipeline.from_pretrained("/m", self.server.url, **{name: value})
        with self.assertRaisesRegex(ValueError, "from_single_file: "):
            TroupePipeline.from_single_file("a.safetensors")

    def test_what_is_printed(self):
        pipe = TroupePipeline(Client(self.server.url, "secret"), "/m", dtype="float16")
        pipe.load_lora_weights("/a", adapter_name="style")
        self.assertEqual(repr(pipe), f"<TroupePipeline at {self.server.url}: model /m; dtype='float16'; LoRAs style × 1>")
        self.assertEqual(repr(troupe.AsyncTroupePipeline(pipe)), f"<AsyncTroupePipeline: {pipe!r}>")
        self.assertEqual(repr(pipe.client), f"<troupe.Client of {self.server.url}>")
        self.assertEqual(repr(pipe.submit("a")), "<troupe.Job 0: queued>")


class Pictures(unittest.TestCase):
    """What comes of each type, beside what diffusers' image processor makes of it (the pixel that 0 to 1 are)."""

    def pixel(self, image, mask=False):
        made = Image.open(io.BytesIO(images.to_png(image, "image", mask)))
        self.assertEqual((made.mode, made.info), ("L" if mask else "RGB", {}))
        return made.getpixel((0, 0))

    def test_arrays_and_tensors(self):
        class Tensor:
            def __init__(self, array):
                self.array, self.shape, self.dtype = array, array.shape, array.dtype

            detach = cpu = float = lambda self: self

            def is_floating_point(self):
                return self.array.dtype.kind == "f"

            def __array__(self, *args, **kwargs):
                return self.array

        red = np.zeros((4, 2, 3), np.float32)
        red[..., 0] = 1
        planes = red.transpose(2, 0, 1)
        for image in (red, red.astype(np.float16), red[None], [red], red.astype(bool), (red * 255).astype(np.uint8), Tensor(planes),
                      Tensor(planes[None]), [Tensor(planes)], Tensor((planes * 255).astype(np.uint8)), red + 1e-4):
            self.assertEqual(self.pixel(image), (255, 0, 0))
        self.assertEqual(self.pixel(np.full((4, 2), 0.5)), (128, 128, 128))
        for mask in (np.ones((4, 2)), np.ones((4, 2), bool), np.ones((1, 4, 2), np.uint8), np.full((4, 2), 255, np.int64), np.ones((4, 2, 1)),
                     Tensor(np.ones((1, 4, 2))), Tensor(np.ones((1, 1, 4, 2))), np.full((4, 2), 255.0)):
            self.assertEqual(self.pixel(mask, mask=True), 255)
        self.assertEqual(self.pixel(np.full((4, 2), 0.4, np.float32), mask=True), 102)
        with self.assertWarnsRegex(FutureWarning, "from -1 to 1") as caught:
            self.assertEqual(self.pixel(red * 2 - 1), (255, 0, 0))
        self.assertEqual(caught.filename, __file__)
        for wrong, message in ((red.astype(np.int64) * 255, "int64 with values from 0 to 255"), (red.astype(np.uint16) * 255, "uint16"),
                               (red * 255, "float32 with values from 0 to 255; floats go from 0 to 1"), (red.astype(np.uint8), "uint8 with values from 0 to 1"),
                               (red * np.nan, "nan"), (red.astype(complex), "complex"), (red.astype(object), "object"), (red[:0], "shape"),
                               (np.zeros((4, 2, 4)), "shape"), (Tensor(red), "as tensors are"), (np.stack([red, red]), "2 pictures"),
                               ([red, red], "a list of 2"), (3, "int is no picture"), ({}, "dict is no picture"), ([], "a list of 0")):
            with self.subTest(message), self.assertRaisesRegex((ValueError, TypeError), f"^image: .*{message}"):
                images.to_png(wrong)
        for wrong in (np.full((4, 2), 100, np.uint8), np.full((4, 2), 2.0), np.full((4, 2), -1.0)):
            with self.assertRaisesRegex(ValueError, "^mask_image: "):
                images.to_png(wrong, "mask_image", True)

    def test_pil_in_every_mode(self):
        for mode, colour, wanted in (("1", 1, (255,) * 3), ("L", 7, (7,) * 3), ("LA", (7, 0), (7,) * 3), ("P", 0, (0,) * 3), ("RGB", (1, 2, 3), (1, 2, 3)),
                                     ("RGBA", (1, 2, 3, 0), (1, 2, 3)), ("CMYK", (0, 255, 255, 0), (255, 0, 0)), ("HSV", (0, 255, 255), (255, 0, 0)),
                                     ("F", 127.5, (127,) * 3), ("I", 200, (200,) * 3), ("I;16", 200, (200,) * 3), ("F", 0, (0,) * 3)):
            image = Image.new(mode, (4, 2), colour)
            image.info["transparency"] = 0
            self.assertEqual(self.pixel(image), wanted, mode)
            self.assertEqual(self.pixel(image, mask=True), Image.new("RGB", (1, 1), wanted).convert("L").getpixel((0, 0)), mode)
        for mode, colour in (("F", 1.0), ("F", 300.0), ("F", -1.0), ("I", 65535), ("I;16", 65535)):
            with self.subTest(mode), self.assertRaisesRegex(ValueError, f"^image: .*{mode}"):
                images.to_png(Image.new(mode, (4, 2), colour))

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "a.png")
            file.write_bytes(png(9))
            uri = "data:image/png;base64," + base64.b64encode(png(9)).decode()
            for image in (file, str(file), png(9), bytearray(png(9)), [str(file)], uri):
                self.assertEqual(images.to_png(image), png(9))
            for wrong, message in ((f"{folder}/none.png", "No such file"), (folder, "directory"), ("https://a/b.png", "not fetched"),
                                   ("data:image/png,a", "data URI"), ("data:image/png;base64,a", "data URI")):
                with self.assertRaisesRegex(ValueError, f"^image: .*{message}"):
                    images.to_png(wrong)


class Outputs(WithServer):
    def test_kinds_of_output(self):
        output = self.pipe("a cat", num_images_per_prompt=2)
        self.assertEqual([image.getpixel((0, 0)) for image in output.images], [(100, 0, 0), (101, 0, 0)])
        self.assertIs(output[0], output["images"])
        array = self.pipe("a cat", output_type="np").images
        self.assertEqual((array.shape, array.dtype), ((1, 2, 4, 3), np.float32))
        self.assertAlmostEqual(float(array[0, 0, 0, 0]), 100 / 255)
        self.assertEqual(self.pipe("a cat", output_type="png", return_dict=False), ([png(100)],))
        latents = self.pipe("a cat", output_type="latent").images
        self.assertEqual((latents.tolist(), latents.dtype), ([[[[0.5, -2.0]]]], np.float32))
        self.assertEqual((self.request()["output_type"], self.request().get("want_latents")), ("latent", None))
        self.pipe.defaults["vae"] = 2
        self.pipe("a cat", output_type="latent")
        self.assertNotIn("vae", self.request())
        self.pipe("a cat", image=png(1), output_type="latent")
        self.assertEqual(self.request()["vae"], 2)

    def test_tensors(self):
        class Tensor:
            def __init__(self, array):
                self.array, self.shape = array, array.shape

            def reshape(self, *shape):
                return Tensor(self.array.reshape(*shape))

            def __len__(self):
                return len(self.array)

        with mock.patch.dict(sys.modules, {"torch": types.SimpleNamespace(from_numpy=Tensor)}):
            array = self.pipe("a cat", output_type="pt").images.array
            video = self.pipe("a cat", num_frames=3, output_type="pt")
        self.assertEqual((array.shape, array.dtype, array.flags.c_contiguous), ((1, 3, 2, 4), np.float32, True))
        self.assertAlmostEqual(float(array[0, 0, 1, 3]), 100 / 255)
        self.assertEqual(video.frames.shape, (1, 3, 3, 2, 4))
        jobs = len(self.server.jobs)
        with mock.patch.dict(sys.modules, {"torch": None}), self.assertRaisesRegex(ImportError, '"pt" needs torch: pip install'):
            self.pipe("a cat", output_type="pt")
        self.assertEqual(len(self.server.jobs), jobs, "it is said before anything is computed")

    def test_videos_have_frames(self):
        output = self.pipe("a cat", num_frames=3, num_images_per_prompt=2.0)
        self.assertEqual([[image.getpixel((0, 0))[0] for image in frames] for frames in output.frames],
                         [[100, 101, 102], [101, 102, 103]])
        self.assertEqual(self.pipe("a cat", num_frames=3, output_type="png").frames, [png(100, frames=3)])
        self.assertEqual(self.pipe("a cat", num_frames=3, output_type="np").frames.shape, (1, 3, 2, 4, 3))
        self.assertEqual(len(self.pipe("a cat", num_frames=3, return_dict=False)[0][0]), 3)

    def test_job_handles(self):
        job = self.pipe.submit("a cat", num_inference_steps=4)
        self.assertFalse(job.done())
        self.assertEqual([event.info.step for event in job.events() if event.kind == "progress"], [1, 2, 3, 4])
        self.assertEqual((job.wait().state, job.done(), job.cancel()), ("succeeded", True, False))
        self.assertEqual(job.report(), {"seed": self.request()["seed"], "warnings": []})
        self.assertEqual(job.logs(), "-- process 1 began")
        job.picture(0, "jpeg", 90)
        self.assertEqual(self.server.queries[-1], "format=jpeg&quality=90")
        again = self.pipe.client.job(job.id)
        self.assertEqual(again.result("png"), [png(100)])
        self.assertEqual([entry.id for entry in self.pipe.client.jobs()], [job.id])
        self.assertEqual(self.pipe.client.parameters(png(1))["seed"], 5)
        with tempfile.NamedTemporaryFile(suffix=".png") as file:
            file.write(png(1))
            file.flush()
            self.assertEqual(self.pipe.client.parameters(file.name)["seed"], 5)
        with self.assertRaisesRegex(TypeError, "timeout: 'soon'"):
            self.pipe.submit("a").wait("soon")

    def test_notebooks_show_pictures(self):
        self.assertEqual(self.pipe("a", num_images_per_prompt=2)._repr_html_().count("data:image/png;base64,"), 2)
        job = self.pipe.submit("a")
        self.assertIn("queued", job._repr_html_())
        job.wait()
        self.assertIn("data:image/png", job._repr_html_())


class Warnings(WithServer):
    WORDS = 'the prompt was cut; method="exact", num_pipeline_patch=4 and elastic change nothing, --nothing either'

    def test_they_are_pythons_once(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            output = self.pipe("warns", num_inference_steps=3)
            output.job.refresh()
        self.assertEqual([(str(one.message), one.category, one.filename) for one in caught], [(self.WORDS, troupe.TroupeWarning, __file__)])
        self.assertEqual((output.job.info.warnings, output.job.report()["warnings"]), ([self.WORDS], [self.WORDS]))
        job = self.pipe.submit("warns")
        with self.assertWarns(troupe.TroupeWarning):
            job.wait()
        self.pipe.client.jobs()  # those of others, for example

    def test_they_come_from_the_twin_too(self):
        async def main():
            return await (await troupe.AsyncTroupePipeline.connect(self.server.url))("warns")

        with self.assertWarns(troupe.TroupeWarning):
            asyncio.run(main())


class Callbacks(WithServer):
    def test_each_step_in_order(self):
        for prompt in ("a cat", "quick"):
            seen = []
            self.pipe(prompt, num_inference_steps=7, callback_on_step_end=lambda pipe, step, timestep, kwargs: seen.append(
                (step, timestep, kwargs)))
            # Of a quick job every third step's event comes, and that of the last.
            known = range(7) if prompt == "a cat" else (2, 5, 6)
            self.assertEqual(seen, [(step, 999.5 - step if step in known else None, {}) for step in range(7)])

    def test_previews(self):
        seen = []

        def callback(pipe, step, timestep, kwargs):
            seen.append(kwargs["preview"].getpixel((0, 0))[0])
            return kwargs

        self.pipe("a cat", num_inference_steps=3, callback_on_step_end=callback, callback_on_step_end_tensor_inputs=["preview"])
        self.assertEqual((seen, self.request()["preview_every"]), ([1, 2, 3], 1))

    def test_latents_cannot_be_changed(self):
        with self.assertRaisesRegex(ValueError, "latents.*cannot be changed"):
            self.pipe("slow", callback_on_step_end=lambda *_: {"latents": 1})
        self.assertTrue(self.server.jobs[-1].cancelled.is_set())

    def test_what_a_callback_may_return(self):
        with self.assertRaisesRegex(TypeError, "callback_on_step_end: returned bool"):
            self.pipe("a", callback_on_step_end=lambda *_: True)

    def test_interrupt_from_a_callback(self):
        def callback(pipe, step, timestep, kwargs):
            if step == 1:
                pipe._interrupt = True
            return kwargs

        with self.assertRaises(troupe.JobCancelledError) as caught:
            self.pipe("slow", callback_on_step_end=callback)
        self.assertEqual((caught.exception.job.state, self.pipe.interrupt), ("cancelled", True))
        self.assertEqual(str(caught.exception), "job 0 was cancelled by this program")
        self.pipe("a cat")  # the next call is not interrupted
        self.assertFalse(self.pipe.interrupt)

    def test_interrupt_from_another_thread(self):
        def interrupt():
            # What is set before the call is not for it.
            while not self.server.jobs or self.server.jobs[-1].info["step"] == 0:
                time.sleep(0.01)
            self.pipe._interrupt = True

        other = threading.Thread(target=interrupt, daemon=True)
        other.start()
        with self.assertRaises(troupe.JobCancelledError):
            self.pipe("slow")
        other.join()

    def test_an_exception_cancels_the_job(self):
        def callback(*_):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.pipe("slow", callback_on_step_end=callback)
        self.assertTrue(self.server.jobs[-1].cancelled.is_set())


class Errors(WithServer):
    def test_refusals_have_openais_fields(self):
        with self.assertRaises(troupe.BadRequestError) as caught:
            self.pipe("a cat", height=7)
        error = caught.exception
        self.assertIsInstance(error, ValueError)
        self.assertEqual((error.status_code, error.type, error.param, error.code, error.message),
                         (400, "invalid_request_error", "height", "bad_request", "height: is 7, not a multiple of 16"))
        with self.assertRaises(troupe.RateLimitError):
            self.pipe("full")
        with self.assertRaisesRegex(troupe.NotFoundError, "no job 99"):
            self.pipe.client.job(99)
        with self.assertRaisesRegex(troupe.InternalServerError, "502"):
            self.pipe.client.get("/api/v1/garbage")

    def test_names_of_defaults_are_looked_at_at_once(self):
        for defaults, field in ((dict(stepz=3), "stepz"), (dict(height=7), "height: is 7"), (dict(torch_dtype=3), "torch_dtype")):
            with self.assertRaisesRegex((troupe.BadRequestError, TypeError), field):
                TroupePipeline.from_pretrained("/m", url=self.server.url, **defaults)
        pipe = TroupePipeline.connect(self.server.url, steps=3, negative_prompt="b", dtype=None)
        self.assertEqual(self.server.jobs, [])
        pipe.submit("a", seed=1)
        self.assertEqual(self.request(), {"prompts": ["a"], "steps": 3, "negative_prompt": "b", "seed": 1})

    def test_keys(self):
        self.server.key = "secret"
        with self.assertRaises(troupe.AuthenticationError):
            TroupePipeline.connect(self.server.url)
        TroupePipeline.connect(self.server.url, api_key="secret").submit("a")
        with mock.patch.dict(os.environ, TROUPE_URL=self.server.url + "/", TROUPE_API_KEY="secret"):
            TroupePipeline.connect().submit("a")
        self.assertEqual(len(self.server.jobs), 2)

    def test_nobody_there(self):
        with self.assertRaisesRegex(troupe.APIConnectionError, "troupe serve"):
            TroupePipeline.connect("http://127.0.0.1:1")
        with self.assertRaises(troupe.APITimeoutError):
            Client(self.server.url, timeout=0.2).get("/api/v1/silent")
        with self.assertRaisesRegex(ValueError, "HOST:PORT"):
            Client("127.0.0.1:7480")

    def test_a_job_that_fails_says_why(self):
        with self.assertRaisesRegex(troupe.JobFailedError, "killed by signal 9") as caught:
            self.pipe("fails")
        self.assertEqual(caught.exception.job.state, "failed")

    def test_timeouts(self):
        job = self.pipe.submit("slow")
        with self.assertRaisesRegex(troupe.APITimeoutError, "has not ended within"):
            job.wait(timeout=0.5)
        self.assertFalse(self.server.jobs[-1].cancelled.is_set())
        job.cancel()
        with self.assertRaises(troupe.APITimeoutError):
            self.pipe("slow", timeout=0.3)
        self.assertTrue(self.server.jobs[-1].cancelled.is_set())

    def test_streams_that_break_are_opened_again(self):
        with mock.patch("troupe.client.time.sleep"):
            output = self.pipe("breaks", num_inference_steps=3)
            self.assertEqual((len(output.images), self.server.jobs[-1].streams), (1, 4))
            self.assertEqual(len(self.pipe("errs", num_inference_steps=3).images), 1)
        self.pipe.client.patience = 0
        with self.assertRaisesRegex(troupe.InternalServerError, "the cluster is gone"):
            self.pipe("errs")

    def test_a_server_that_does_not_come_back(self):
        job = self.pipe.submit("a cat")
        self.pipe.client.patience = 0.2
        self.server.__exit__()
        with self.assertRaises(troupe.APIConnectionError):
            job.wait()

    def test_what_to_install(self):
        for missing, kind, package in (("PIL.Image", "pil", "pillow"), ("PIL.Image", "np", "pillow"), ("numpy", "latent", "numpy")):
            with mock.patch.dict(sys.modules, {missing: None}), self.assertRaisesRegex(ImportError, f"pip install {package}"):
                self.pipe("a cat", output_type=kind)
        with mock.patch.dict(sys.modules, {"PIL": None, "PIL.Image": None, "numpy": None}):
            self.assertEqual(self.pipe("a cat", output_type="png").images, [png(100)])


class Progress(WithServer):
    def test_terminal(self):
        class Terminal(io.StringIO):
            def isatty(self):
                return True

        with contextlib.redirect_stderr(Terminal()) as terminal:
            self.pipe.set_progress_bar_config(desc="cat")
            self.pipe("a cat", num_inference_steps=2)
        self.assertIn("cat:  50% |███████████████               | 1/2 denoising, 0.10 s/step, 0 s left", terminal.getvalue())
        self.assertRegex(terminal.getvalue(), r"100%.*2/2 succeeded in 0.0 s *\n$")
        with contextlib.redirect_stderr(io.StringIO()) as file:
            self.pipe("a cat")
        self.assertEqual(file.getvalue(), "")

    def test_notebook(self):
        shown = []
        handle = types.SimpleNamespace(update=shown.append)
        display = types.SimpleNamespace(HTML=str, display=lambda text, display_id: shown.append(text) or handle)
        shell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(config={"IPKernelApp": {}}))
        with mock.patch.dict(sys.modules, {"IPython": shell, "IPython.display": display}):
            self.pipe.set_progress_bar_config()
            self.pipe("a <cat>", num_inference_steps=2, preview_every=2)
        self.assertIn('<progress value="0.5" max="1">', shown[0])
        self.assertIn("data:image/png", shown[-1])
        self.assertEqual(Bar()._handle, None)


class Asynchronous(WithServer):
    def test_calls_side_by_side(self):
        async def main():
            pipe = await troupe.AsyncTroupePipeline.connect(self.server.url)
            outputs = await asyncio.gather(*(pipe("a cat", num_inference_steps=n) for n in range(1, 9)))
            job = await pipe.submit("a dog", num_inference_steps=3)
            kinds = [event.kind async for event in job.events()]
            return [len(output.images) for output in outputs], kinds, await job.result("png"), await job.report()

        counts, kinds, pictures, _ = asyncio.run(main())
        self.assertEqual((counts, kinds, pictures), ([1] * 8, ["progress"] * 3 + ["succeeded"], [png(100)]))

    def test_a_task_that_is_cancelled_cancels_its_job(self):
        async def main():
            pipe = await troupe.AsyncTroupePipeline.connect(self.server.url)
            other = asyncio.create_task(pipe("slow"))
            task = asyncio.create_task(pipe("slow"))
            while len(self.server.jobs) < 2:
                await asyncio.sleep(0.02)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            ended = [job.cancelled.is_set() for job in self.server.jobs]
            other.cancel()
            await asyncio.wait([other])
            return ended

        self.assertEqual(sorted(asyncio.run(main())), [False, True])


class Fake(unittest.TestCase):
    def test_it_writes_what_others_read(self):
        self.assertEqual(images.latents_from_npy(npy([1.5])).tolist(), [[[[1.5]]]])
        self.assertEqual(images.to_pil(png(9)).getpixel((0, 0)), (9, 0, 0))


if __name__ == "__main__":
    unittest.main()
