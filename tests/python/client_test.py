"""The package against a fake server: arguments, outputs, callbacks, errors, streams that break, the asynchronous twin.

Needs numpy and pillow (requirements.txt).
"""
import asyncio
import base64
import contextlib
import io
import json
import os
import sys
import threading
import time
import types
import unittest
from unittest import mock

import numpy as np
from PIL import Image

import troupe
from fake_server import FakeServer, npy, png
from troupe import TroupePipeline, images
from troupe.client import Client
from troupe.pipeline import make_request
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

    def test_latents_and_images_travel_as_files(self):
        latents = np.arange(6, dtype=np.float64).reshape(1, 1, 2, 3)
        self.pipe("a cat", latents=latents, image=Image.new("L", (4, 2), 7), strength=0.5, mask_image=np.eye(2))
        back = images.latents_from_npy(base64.b64decode(self.request()["init_latents"]))
        self.assertEqual((back.dtype, back.tolist()), (np.float32, latents.tolist()))
        picture = images.to_pil(base64.b64decode(self.request()["init_image"]))
        self.assertEqual((picture.size, picture.getpixel((0, 0))), ((4, 2), (7, 7, 7)))
        mask = images.to_pil(base64.b64decode(self.request()["mask_image"]))
        self.assertEqual([mask.getpixel((x, 0)) for x in (0, 1)], [(255, 255, 255), (0, 0, 0)])
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
                                   (dict(prompt="a", image=np.zeros((4, 2)), mask_image=np.zeros((4, 2, 1))), "mask_image: an array"),
                                   (dict(prompt="a", callback_on_step_end_tensor_inputs=["latents"]), "latents")):
            with self.assertRaisesRegex(ValueError, message):
                self.pipe(**arguments)
        self.assertEqual(self.server.jobs, [])

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

    def test_the_scheduler_is_the_clusters(self):
        with self.assertRaisesRegex(AttributeError, 'sampler="euler"'):
            self.pipe.scheduler = object()


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
        output = self.pipe("a cat", num_frames=3, num_images_per_prompt=2)
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
        self.assertEqual(job.report(), {"seed": self.request()["seed"]})
        self.assertEqual(job.logs(), "-- process 1 began")
        job.picture(0, "jpeg", 90)
        self.assertEqual(self.server.queries[-1], "format=jpeg&quality=90")
        again = self.pipe.client.job(job.id)
        self.assertEqual(again.result("png"), [png(100)])
        self.assertEqual([entry.id for entry in self.pipe.client.jobs()], [job.id])
        self.assertEqual(self.pipe.client.parameters(png(1))["seed"], 5)

    def test_notebooks_show_pictures(self):
        self.assertEqual(self.pipe("a", num_images_per_prompt=2)._repr_html_().count("data:image/png;base64,"), 2)
        job = self.pipe.submit("a")
        self.assertIn("queued", job._repr_html_())
        job.wait()
        self.assertIn("data:image/png", job._repr_html_())


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

    def test_interrupt_from_a_callback(self):
        def callback(pipe, step, timestep, kwargs):
            if step == 1:
                pipe._interrupt = True
            return kwargs

        with self.assertRaises(troupe.JobCancelledError) as caught:
            self.pipe("slow", callback_on_step_end=callback)
        self.assertEqual((caught.exception.job.state, self.pipe.interrupt), ("cancelled", True))
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
            self.pipe.client.job("99")
        with self.assertRaisesRegex(troupe.InternalServerError, "502"):
            self.pipe.client.get("/api/v1/garbage")

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
        began = time.monotonic()
        with self.assertRaises(troupe.APITimeoutError):
            self.pipe("slow", timeout=0.3)
        self.assertLess(time.monotonic() - began, 60)  # the job itself takes 200 s
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
