"""The package with a real cluster (`troupe serve` from a build), beside what diffusers makes of the same arguments.

usage: pipeline_test.py, with TROUPE naming the command
The expected latents and pictures of tests/fixtures were made by diffusers' pipelines; where diffusers can be imported, it also
runs here, with the same call.
"""
import asyncio
import base64
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import warnings

import numpy as np
import troupe
from holds import Holds
from PIL import Image
from troupe import TroupePipeline
from troupe.embeds import to_safetensors
from troupe.images import to_png

warnings.simplefilter("ignore", troupe.TroupeWarning)  # pictures here are small
ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo" / "model"
FIXTURES = ROOT / "tests" / "fixtures"
PROMPT = "a red circle above a blue square on a white background"
PATIENCE = 300.0  # seconds until something that is waited for is taken for lost

try:
    import diffusers
    import torch
except ImportError:
    diffusers = None


def expected(part, name):
    """A case of tests/fixtures/expected/PART: what it was made with, and its tensors by name."""
    case = next(case for case in json.loads((FIXTURES / "expected" / f"{part}.json").read_text())["cases"] if case["name"] == name)
    data = (FIXTURES / "expected" / f"{part}.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    kinds = {"F32": np.float32, "U8": np.uint8, "I64": np.int64}
    tensors = {}
    for key, entry in json.loads(data[8:8 + length]).items():
        if key.startswith(f"{name}.") and entry["dtype"] in kinds:
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[key[len(name) + 1:]] = np.frombuffer(data[begin:end], kinds[entry["dtype"]]).reshape(entry["shape"])
    return case, tensors


def arguments(case):
    """A case as a call of diffusers' has it."""
    return dict(prompt=case["prompts"], negative_prompt=case["negative_prompt"], height=case["height"], width=case["width"],
                num_inference_steps=case["steps"], guidance_scale=case["guidance"], num_images_per_prompt=case["n"],
                max_sequence_length=case["max_sequence_length"])


def pixels(png):
    return Image.open(io.BytesIO(png)).convert("RGB").tobytes()


class WithCluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = troupe.local(DEMO, actors=2, allow_models=FIXTURES)
        cls.pipe = cls.cluster.start()
        cls.addClassCleanup(cls.cluster.stop)
        cls.holds = Holds(os.environ["TROUPE"], cls.pipe.client.cluster()["clusters"][0]["endpoint"])
        cls.pipe.set_progress_bar_config(disable=True)

    def hold(self, at):
        """Lets the next job stand still there, whichever actors it has."""
        self.holds.hold(0, 1, at=at)
        self.addCleanup(self.holds.release, 0, 1)

    def assert_latents(self, got, wanted):
        """As docs/numerics.md promises: within 1e-4 of the range."""
        self.assertEqual((got.shape, got.dtype), (wanted.shape, np.float32))
        self.assertLess(np.abs(got - wanted).max(), 1e-4 * np.abs(wanted).max())


class AsDiffusers(WithCluster):
    def test_a_seed_gives_diffusers_picture(self):
        case, tensors = expected("demo", "small")
        self.assert_latents(self.pipe(**arguments(case), seed=case["seed"], output_type="latent").images, tensors["latents"])
        picture = self.pipe(**arguments(case), seed=case["seed"], cfg=2).images[0]
        wanted = np.asarray(Image.open(FIXTURES / "expected" / case["png"]).convert("RGB"), np.int16)
        self.assertLessEqual(np.abs(np.asarray(picture, np.int16) - wanted).max(), 1)

    @unittest.skipUnless(diffusers, "diffusers is not installed")
    def test_beside_diffusers(self):
        theirs = diffusers.PixArtAlphaPipeline.from_pretrained(DEMO)
        theirs.set_progress_bar_config(disable=True)
        call = dict(prompt=PROMPT, negative_prompt="a dog", height=128, width=96, num_inference_steps=5, guidance_scale=3.0,
                    num_images_per_prompt=2, use_resolution_binning=False, clean_caption=False)
        for kind in ("latent", "np"):
            seen = {}
            for name, pipe in (("theirs", theirs), ("ours", self.pipe)):
                seen[name] = np.asarray(pipe(**call, generator=torch.Generator().manual_seed(11), output_type=kind).images)
            if kind == "latent":
                self.assert_latents(seen["ours"], seen["theirs"])
            else:
                self.assertEqual(seen["ours"].shape, seen["theirs"].shape)
                self.assertLessEqual(np.abs(seen["ours"] - seen["theirs"]).max(), 1.01 / 255)
        used = torch.Generator().manual_seed(1)
        torch.randn(3, generator=used)
        with self.assertRaisesRegex(ValueError, "drawn numbers already"):
            self.pipe(PROMPT, generator=used)

    @unittest.skipUnless(diffusers, "diffusers is not installed")
    def test_pictures_of_every_type_beside_diffusers(self):
        processor = diffusers.image_processor.VaeImageProcessor(do_resize=False)
        masks = diffusers.image_processor.VaeImageProcessor(do_resize=False, do_normalize=False, do_binarize=True, do_convert_grayscale=True)
        noise = np.random.default_rng(1).random((8, 16, 3), np.float32)
        levels = (noise * 255).round().astype(np.uint8)
        tensor = torch.from_numpy(noise.transpose(2, 0, 1))
        for image in (noise, noise[None], [noise], noise.astype(np.float64), noise * 2 - 1, tensor, tensor[None], [tensor], tensor.double(),
                      Image.fromarray(levels), [Image.fromarray(levels)]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of values from -1 on
                theirs = processor.preprocess(image)[0].permute(1, 2, 0).numpy() / 2 + 0.5
                ours = np.asarray(Image.open(io.BytesIO(to_png(image))), np.float32) / 255
            self.assertLessEqual(np.abs(ours - theirs).max(), 0.51 / 255)  # 8 bits
        for image in (tensor.half(), tensor.bfloat16(), tensor.requires_grad_(), (tensor.detach() * 255).round().byte()):
            made = np.asarray(Image.open(io.BytesIO(to_png(image))), np.float32)
            self.assertLessEqual(np.abs(made - levels).max(), 1)
        gray, halves = noise[..., 0], noise[..., 0] > 0.5
        for mask in (gray, gray[None], gray[..., None], gray[None, ..., None], torch.from_numpy(gray), torch.from_numpy(gray)[None],
                     torch.from_numpy(gray)[None, None], halves.astype(np.int64), halves.astype(np.uint8), halves.astype(np.uint8) * 255,
                     halves * 255.0, torch.from_numpy(halves.astype(np.int64)), Image.fromarray(levels), Image.fromarray(halves)):
            theirs = masks.preprocess(mask)[0, 0].numpy()
            ours = np.asarray(Image.open(io.BytesIO(to_png(mask, "mask_image", True)))) >= 128
            self.assertEqual(np.count_nonzero(ours != theirs), 0, type(mask))

    @unittest.skipUnless(diffusers, "diffusers is not installed")
    def test_what_diffusers_programs_set_up(self):
        pipe = TroupePipeline(self.pipe.client)
        pipe.set_progress_bar_config(disable=True)
        theirs = diffusers.PixArtAlphaPipeline.from_pretrained(DEMO)
        for program in (theirs, pipe):
            program.to("cpu").to(torch.float32)
            program.enable_attention_slicing()
            program.transformer.eval()
            program.vae.enable_slicing()
            program.vae.enable_tiling()
            program.vae.disable_tiling()
            self.assertEqual((program.device, program.dtype, program.vae.dtype), (torch.device("cpu"), torch.float32, torch.float32))
            generator = torch.Generator(program.device).manual_seed(3)
            made = program(PROMPT, generator=generator, num_inference_steps=2, height=128, width=128, use_resolution_binning=False, clean_caption=False,
                           output_type="pt").images
            if program is theirs:
                wanted = made
        self.assertLessEqual((made - wanted).abs().max(), 1.01 / 255)
        begun = pipe(PROMPT, image=made, strength=torch.tensor(0.5), num_inference_steps=np.int64(4), height=128, width=128)
        self.assertEqual(begun.images[0].size, (128, 128))

    def test_warnings_are_pythons_and_the_reports(self):
        with self.assertWarnsRegex(troupe.TroupeWarning, "negative prompt is unused") as caught:
            output = self.pipe(PROMPT, negative_prompt="a dog", guidance_scale=1, num_inference_steps=2, height=128, width=128)
        self.assertEqual(caught.filename, __file__)
        self.assertEqual(output.job.report()["warnings"], [str(caught.warning)])
        self.assertEqual(output.job.info.warnings, [str(caught.warning)])

    def test_loras(self):
        pipe = TroupePipeline(self.pipe.client, str(FIXTURES / "tiny-pixart"))
        pipe.set_progress_bar_config(disable=True)
        case, tensors = expected("lora", "pixart_both")
        plain = pipe(**arguments(case), seed=case["seed"], output_type="latent").images
        self.assert_latents(plain, tensors["plain"])
        for number, lora in enumerate(case["loras"]):
            pipe.load_lora_weights(FIXTURES / "lora", weight_name=lora["file"], adapter_name=str(number))
        pipe.set_adapters(["0", "1"], [lora["scale"] for lora in case["loras"]])
        self.assert_latents(pipe(**arguments(case), seed=case["seed"], output_type="latent").images, tensors["latents"])

    def test_own_noise_and_a_picture_to_begin_with(self):
        pipe = TroupePipeline(self.pipe.client, str(FIXTURES / "tiny-pixart"))
        pipe.set_progress_bar_config(disable=True)
        case, tensors = expected("pipeline", "plain")
        self.assert_latents(pipe(**arguments(case), latents=tensors["noise"], output_type="latent").images, tensors["latents"])
        begin = Image.open(FIXTURES / "expected" / "demo_small.png")
        def difference(strength):
            picture = self.pipe(PROMPT, image=begin, strength=strength, num_inference_steps=10, height=128, width=128,
                                seed=1).images[0]
            return np.abs(np.asarray(picture, np.int16) - np.asarray(begin.convert("RGB"), np.int16)).mean()

        self.assertGreater(difference(0.2), 0)
        self.assertGreater(difference(0.9), difference(0.2))

    def test_latents_are_not_decoded(self):
        report = self.pipe(PROMPT, num_inference_steps=2, output_type="latent").job.report()
        self.assertEqual(report["request"]["output_type"], "latent")
        self.assertEqual([actor["vae"] for actor in report["plan"]["memory"]], [0])
        report = self.pipe(PROMPT, num_inference_steps=2).job.report()
        self.assertGreater(report["plan"]["memory"][0]["vae"], 0)


class PromptEmbeds(WithCluster):
    def test_the_picture_is_the_commands(self):
        case, tensors = expected("given", "embeds_pixart")
        wanted = tensors.pop("latents")
        call = dict(num_inference_steps=case["steps"], guidance_scale=case["guidance"], height=case["height"], width=case["width"],
                    num_images_per_prompt=case["n"], seed=case["seed"])
        model = str(FIXTURES / case["checkpoint"])
        pipe = TroupePipeline(self.pipe.client, model)
        pipe.set_progress_bar_config(disable=True)
        self.assert_latents(pipe(**tensors, **call, output_type="latent").images, wanted)
        pictures = pipe(**tensors, **call, output_type="png")
        again = self.pipe.client.parameters(pictures.images[0], bring=["prompt_embeds"])
        with self.assertRaisesRegex(troupe.BadRequestError, "prompt_embeds"):
            self.pipe.client.parameters(pictures.images[0])
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "embeds.safetensors"
            file.write_bytes(to_safetensors(tensors))
            subprocess.run([os.environ["TROUPE"], "run", "--model", model, "--prompt-embeds", file, "--steps", str(case["steps"]),
                            "--guidance", str(case["guidance"]), "--height", str(case["height"]), "--width", str(case["width"]),
                            "--n", str(case["n"]), "--seed", str(case["seed"]), "--output", f"{folder}/{{}}.png"],
                           check=True, capture_output=True)
            again["prompt_embeds"] = base64.b64encode(file.read_bytes()).decode()
            for number, png in enumerate(pictures.images):
                self.assertEqual(pixels(png), pixels((pathlib.Path(folder) / f"{number}.png").read_bytes()))
        again.update(model=model, images_per_prompt=case["n"])  # a PNG has the folder's last name, and all four as its prompt's
        self.assertEqual([pixels(png) for png in self.pipe.client.submit(again).result("png")],
                         [pixels(png) for png in pictures.images])

    def test_what_a_model_does_not_take_is_refused_by_its_name(self):
        pipe = TroupePipeline(self.pipe.client, str(FIXTURES / "tiny-pixart"))
        for embeds, message in ((dict(prompt_embeds=np.zeros((1, 9, 7))), "prompt_embeds has the shape"),
                                (dict(prompt_embeds=np.full((1, 9, 24), np.nan)), "not finite"),
                                (dict(prompt_embeds=np.zeros((1, 9, 24)), prompt_embeds_2=np.zeros(1)), "prompt_embeds_2")):
            with self.assertRaisesRegex(troupe.BadRequestError, message) as caught:
                pipe(**embeds)
            self.assertEqual(caught.exception.param, "prompt_embeds")


class Videos(WithCluster):
    def test_frames_and_files(self):
        pipe = TroupePipeline(self.pipe.client, str(FIXTURES / "tiny-wan"))
        pipe.set_progress_bar_config(disable=True)
        video = pipe("a cat", num_frames=9, height=64, width=96, num_inference_steps=2, seed=1)
        self.assertEqual([[frame.size for frame in frames] for frames in video.frames], [[(96, 64)] * 9])
        first, last = (np.asarray(frame, np.int16) for frame in (video.frames[0][0], video.frames[0][8]))
        self.assertGreater(np.abs(first - last).max(), 0)
        self.assertEqual(video.job.picture(0, "mp4")[4:12], b"ftypisom")
        self.assertEqual(video.job.picture(0, "webm")[:4], b"\x1a\x45\xdf\xa3")


class OnARealCluster(WithCluster):
    def test_callbacks_and_previews(self):
        steps, timesteps, previews = [], [], []

        def callback(pipe, step, timestep, kwargs):
            steps.append(step)
            timesteps.append(timestep)
            previews.append(kwargs["preview"])
            if step == 0:
                self.holds.release(0, 1)  # what comes of a job that has ended already has no previews
            return kwargs

        self.hold("step 3")
        output = self.pipe(PROMPT, num_inference_steps=6, height=128, width=128, callback_on_step_end=callback,
                           callback_on_step_end_tensor_inputs=["preview"])
        self.assertEqual(steps, list(range(6)))
        told = [timestep for timestep in timesteps if timestep is not None]
        self.assertTrue(told)
        self.assertEqual(told, sorted(told, reverse=True))
        self.assertTrue([preview for preview in previews if preview])
        self.assertEqual(output.images[0].size, (128, 128))

    def test_interrupt(self):
        def callback(pipe, step, timestep, kwargs):
            pipe._interrupt = step >= 2
            return kwargs

        self.hold("step 5")
        with self.assertRaises(troupe.JobCancelledError) as caught:
            self.pipe(PROMPT, num_inference_steps=20, callback_on_step_end=callback)
        self.assertEqual(caught.exception.job.refresh().state, "cancelled")

    def test_refusals_name_the_field(self):
        with self.assertRaises(troupe.BadRequestError) as caught:
            self.pipe(PROMPT, steps="many")
        self.assertEqual((caught.exception.status_code, caught.exception.param), (400, "steps"))
        with self.assertRaisesRegex(troupe.BadRequestError, "^height"):
            self.pipe(PROMPT, height=250)
        for arguments, words in ((dict(num_inference_steps=0), "^num_inference_steps"), (dict(num_images_per_prompt=0), "^num_images_per_prompt: "),
                                 (dict(latents=np.zeros((1, 1, 32, 32))), "^latents"), (dict(num_pipeline_patch=4000), "^num_pipeline_patch is 4000")):
            with self.assertRaisesRegex(troupe.BadRequestError, words) as caught:
                self.pipe(PROMPT, **arguments)
            self.assertEqual(caught.exception.param, next(iter(arguments)))
            self.assertNotIn("--", str(caught.exception))
        for arguments in (dict(prompt="a\0b"), dict(prompt=PROMPT, negative_prompt="\ud800")):
            with self.assertRaisesRegex(ValueError, f"^{list(arguments)[-1]}: "):
                self.pipe(**arguments)
        elsewhere = TroupePipeline(self.pipe.client, "/elsewhere")
        with self.assertRaisesRegex(troupe.BadRequestError, r"troupe.local\(…, allow_models=\[DIR\]\)"):
            elsewhere(PROMPT)
        with self.assertRaises(troupe.BadRequestError) as caught:
            self.pipe(PROMPT, timestep=[1])
        self.assertEqual(caught.exception.param, "timestep")
        with self.assertRaises(troupe.NotFoundError):
            self.pipe.client.job("nobody")

    def test_handles(self):
        job = self.pipe.submit(PROMPT, num_inference_steps=4, height=128, width=128, seed=3)
        self.assertEqual([event.kind for event in job.events()][-1], "succeeded")
        self.assertFalse(job.cancel())
        same = self.pipe.client.job(job.id)
        self.assertEqual(Image.open(io.BytesIO(same.picture(0, "webp", 80))).size, (128, 128))
        self.assertEqual(same.report()["request"]["seed"], 3)
        self.assertTrue(same.timeline())
        again = self.pipe.client.parameters(same.picture(0))
        self.assertEqual(self.pipe.client.submit(again).result("png"), same.result("png"))
        self.assertIn(job.id, [entry.id for entry in self.pipe.client.jobs()])
        self.assertTrue(self.pipe.client.models())
        self.assertIn(self.pipe.client.health()["status"], ("ok", "starting"))
        self.assertTrue(self.pipe.client.options())
        self.assertTrue(self.pipe.client.cluster())

    def test_asynchronous(self):
        async def main():
            pipe = await troupe.AsyncTroupePipeline.connect(self.cluster.url)
            one, two = await asyncio.gather(*(pipe(PROMPT, seed=seed, num_inference_steps=2, height=128, width=128) for seed in (1, 2)))
            self.hold("step 3")
            long = asyncio.create_task(pipe(PROMPT, num_inference_steps=20))
            await asyncio.to_thread(self.holds.held, 0, 1)
            long.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await long
            self.assertEqual((await asyncio.to_thread(pipe.client.jobs))[0].state, "cancelled")
            return one.images[0], two.images[0]

        one, two = asyncio.run(main())
        self.assertNotEqual(one.tobytes(), two.tobytes())


class Local(unittest.TestCase):
    def test_it_ends_with_its_block(self):
        cluster = troupe.local(DEMO)
        with self.assertRaises(ZeroDivisionError), cluster as pipe:
            self.assertIn(pipe.client.health()["status"], ("ok", "starting"))
            1 / 0
        self.assertEqual(cluster.process.returncode, 0)
        with self.assertRaises(troupe.APIConnectionError):
            pipe.client.health()

    def test_it_ends_with_a_program_that_is_killed(self):
        program = ("import time, troupe\ncluster = troupe.local(" + repr(str(DEMO)) + ")\ncluster.start()\n"
                   "print(cluster.process.pid, flush=True)\ntime.sleep(600)\n")
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
            served = int(parent.stdout.readline())
            parent.kill()
        until = time.monotonic() + PATIENCE
        while pathlib.Path(f"/proc/{served}").exists():
            self.assertLess(time.monotonic(), until, "the server goes on")
            time.sleep(0.05)

    def test_what_does_not_start_says_why(self):
        with self.assertRaisesRegex(troupe.TroupeError, "nobody"):
            troupe.local("/nobody").start()
        with self.assertRaisesRegex(troupe.BadRequestError, "actor: neither .* did you mean actors"):
            troupe.local(DEMO, actor=1).start()
        with self.assertRaisesRegex(troupe.TroupeError, "(?<!-)actors"):
            troupe.local(DEMO, actors=0).start()
        with self.assertRaisesRegex(TypeError, "actors: 'two'"):
            troupe.local(DEMO, actors="two")

    def test_the_notebook(self):
        notebook = json.loads((ROOT / "examples" / "python" / "troupe.ipynb").read_text())
        names, before = {}, os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "demo").symlink_to(DEMO.parent)
            (pathlib.Path(folder) / "python").mkdir()
            os.chdir(pathlib.Path(folder) / "python")
            try:
                for cell in notebook["cells"]:
                    if cell["cell_type"] == "code":
                        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
            finally:
                os.chdir(before)
                names["cluster"].stop()
        self.assertEqual(names["latents"].shape[1], 4)


if __name__ == "__main__":
    unittest.main()
