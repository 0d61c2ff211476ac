#!/usr/bin/env python3
"""Tries `troupe serve`, with a cluster of its own, with clients that others wrote: openai-python, httpx, webuiapi.

usage: clients_test.py TROUPE
"""
import base64
import concurrent.futures
import io
import json
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import zlib

import httpx
import openai
import PIL.Image
import PIL.ImageChops
import webuiapi
from holds import Holds

ROOT = pathlib.Path(__file__).resolve().parents[2]
TROUPE = ""
WAN = str(ROOT / "tests/fixtures/tiny-wan")
SMALL = {"steps": 2}
PATIENCE = 120  # seconds, for what must come
# Is always held, and then cancelled or lost.
HELD = {"steps": 20, "height": 256, "width": 256}


def png_size(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n", png[:16]
    return struct.unpack(">II", png[16:24])


def png_of(kind, width, height, pixels):
    """A PNG; kind 0 is gray, 2 RGB, 6 RGBA."""
    row = len(pixels) // height
    rows = b"".join(b"\0" + pixels[at:at + row] for at in range(0, len(pixels), row))
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def one_pixel(kind, pixel):
    return png_of(kind, 1, 1, pixel)


class Gateway:
    def __init__(self, *options, stderr=None):
        self.process = subprocess.Popen(
            [TROUPE, "serve", "--http", "127.0.0.1:0", "--json", *options], stdout=subprocess.PIPE, stderr=stderr, text=True)
        text = ""
        for line in self.process.stdout:
            text += line
            if line == "}\n":
                break
        self.ready = json.loads(text)
        self.url = self.ready["url"]

    def connected(self, http):
        """Waits until it is connected to its cluster."""
        until = time.monotonic() + PATIENCE
        while http.get(self.url + "/health").status_code != 200:
            assert time.monotonic() < until, "it is not connected to its cluster"
            time.sleep(0.05)
        return self

    def end(self):
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(timeout=PATIENCE)
        self.process.stdout.close()
        return status


class ClientsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.gateway = Gateway("--model", str(ROOT / "examples/demo/model"), "--actors", "1", "--allow-models", WAN)
        cls.http = httpx.Client(base_url=cls.gateway.url, timeout=PATIENCE)
        cls.gateway.connected(cls.http)
        cls.holds = Holds(TROUPE, cls.gateway.ready["clusters"][0])
        cls.openai = openai.OpenAI(base_url=cls.gateway.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.http.close()
        cls.openai.close()
        assert cls.gateway.end() == 0

    def wait_for(self, condition):
        until = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), until, "it did not come")
            time.sleep(0.05)

    def hold(self, at):
        """Lets the only actor stand still when the next job comes there."""
        self.holds.hold(0, at=at)
        self.addCleanup(self.holds.release, 0)

    def job(self, body):
        answer = self.http.post("/api/v1/jobs", json=body)
        self.assertEqual(answer.status_code, 202, answer.text)
        return answer.json()["id"]

    def state(self, job):
        return self.http.get(f"/api/v1/jobs/{job}").json()["state"]

    def test_health_and_models(self):
        self.wait_for(lambda: self.http.get("/health").json()["status"] == "ok")
        self.assertEqual([model.id for model in self.openai.models.list()], ["model"])
        self.assertEqual(self.openai.models.retrieve("model").id, "model")

    def test_openai_images(self):
        made = self.openai.images.generate(prompt="a red circle", model="model", n=2, size="96x64", extra_body=SMALL)
        self.assertEqual(len(made.data), 2)
        self.assertTrue(made.warnings[0].endswith("there may be little to be seen"), made.warnings)
        for picture in made.data:
            self.assertEqual(png_size(base64.b64decode(picture.b64_json)), (96, 64))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.images.generate(prompt="a", background="transparent")
        self.assertEqual(caught.exception.param, "background")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.images.generate(prompt="a", size="64x64", extra_body={**SMALL, "patches": 2, "method": "exact"})
        self.assertIn("patches is 2", str(caught.exception))
        self.assertNotEqual(made.data[0].b64_json, made.data[1].b64_json)
        for kind, beginning in (("jpeg", b"\xff\xd8\xff"), ("webp", b"RIFF")):
            made = self.openai.images.generate(prompt="a", size="64x64", output_format=kind, output_compression=80, extra_body=SMALL)
            self.assertTrue(base64.b64decode(made.data[0].b64_json).startswith(beginning))

    def test_openai_stream(self):
        self.hold("step 7")
        events = []
        for event in self.openai.images.generate(prompt="a red circle", size="64x64", stream=True, partial_images=2,
                                                 extra_body={"steps": 9, "seed": 5}):
            events.append(event)
            if len(events) == 2:
                self.holds.release(0)
        self.assertEqual([event.type for event in events],
                         ["image_generation.partial_image"] * 2 + ["image_generation.completed"])
        self.assertEqual([event.partial_image_index for event in events[:2]], [0, 1])
        self.assertNotEqual(events[0].b64_json, events[1].b64_json)
        for event in events[:2]:
            png_size(base64.b64decode(event.b64_json))
        self.assertEqual(png_size(base64.b64decode(events[2].b64_json)), (64, 64))
        again = self.openai.images.generate(prompt="a red circle", size="64x64", extra_body={"steps": 9, "seed": 5})
        self.assertEqual(again.data[0].b64_json, events[2].b64_json, "the same seed, the same picture")

    def test_openai_url_and_edit(self):
        made = self.openai.images.generate(prompt="a", size="64x64", response_format="url", extra_body=SMALL)
        fetched = httpx.get(made.data[0].url)
        self.assertEqual(png_size(fetched.content), (64, 64))
        self.assertEqual(httpx.get(made.data[0].url[:-1] + "x").status_code, 404)
        for kind in ("png", "jpeg", "webp"):
            picture = self.http.get(made.data[0].url) if kind == "png" else None
            if kind != "png":
                job = self.http.get("/api/v1/jobs", params={"limit": 1}).json()["jobs"][0]["id"]
                picture = self.http.get(f"/api/v1/jobs/{job}/pictures/0", params={"format": kind})
            edited = self.openai.images.edit(image=("begin", picture.content), prompt="a cat", size="64x64",
                                             extra_body={"steps": "4", "strength": "0.5", "seed": "1"})
            self.assertEqual(png_size(base64.b64decode(edited.data[0].b64_json)), (64, 64))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.images.edit(image=("begin", b"no picture"), prompt="a")
        self.assertEqual(caught.exception.param, "image")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.images.edit(image=("a", fetched.content), mask=("m", b"no mask"), prompt="a")
        self.assertEqual(caught.exception.param, "mask")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.images.edit(image=[("a", fetched.content), ("b", fetched.content)], prompt="a")
        self.assertEqual(caught.exception.param, "image[]")

    def test_files_that_begin_a_picture(self):
        """What their files show counts, as the table of tests/fixtures/pictures has it."""
        fixtures = ROOT / "tests" / "fixtures"
        table = json.loads((fixtures / "expected" / "pictures.json").read_text())["cases"]

        def edited(file):
            made = self.openai.images.edit(image=("begin", file), prompt="a", size="64x64", extra_body={"steps": "2", "seed": "1"})
            return self.pixels_of(base64.b64decode(made.data[0].b64_json))

        for name in ("exif6.webp", "cmyk.jpg", "rgb16.png"):
            shown = table[name]
            plain = png_of(2, shown["width"], shown["height"], bytes.fromhex(shown["rgb"]))
            self.assertEqual(edited((fixtures / "pictures" / name).read_bytes()), edited(plain), name)
        animated = base64.b64encode((fixtures / "pictures" / "animated.webp").read_bytes()).decode()
        job = self.http.post("/api/v1/jobs", json={"prompt": "a", "steps": 2, "width": 64, "height": 64, "init_image": animated}).json()
        self.assertIn("init_image is animated: its first frame is taken", job["warnings"])
        self.assertIn("init_image is animated: its first frame is taken", str(self.http.get(f"/api/v1/jobs/{job['id']}").json()["warnings"]))
        refused = self.http.post("/api/v1/jobs", json={"prompt": "a", "init_image": base64.b64encode(b"GIF89a").decode()})
        self.assertIn("is a GIF: PNG, JPEG and WebP are taken", refused.json()["error"]["message"])

    def test_masks(self):
        """Where nothing is painted, the prompt does not matter."""
        picture = base64.b64decode(self.openai.images.generate(prompt="a", size="64x64", extra_body=SMALL).data[0].b64_json)

        def edited(prompt, mask):
            made = self.openai.images.edit(image=("begin", picture), mask=("mask", mask), prompt=prompt, size="64x64",
                                           extra_body={"steps": "3", "seed": "1"})
            return made.data[0].b64_json

        def repainted(prompt, mask, inverted=0):
            return self.http.post("/sdapi/v1/img2img", json={
                "prompt": prompt, "steps": 3, "width": 64, "height": 64, "seed": 1, "init_images": [picture_text], "mask": mask,
                "inpainting_fill": 1, "inpainting_mask_invert": inverted}).json()["images"][0]

        picture_text = base64.b64encode(picture).decode()
        pixels = lambda png: self.pixels_of(base64.b64decode(png))
        kept = pixels(edited("a red circle", one_pixel(6, b"\0\0\0\xff")))
        self.assertEqual(kept, pixels(edited("a blue square", one_pixel(6, b"\xff\xff\xff\xff"))))
        self.assertEqual(kept, pixels(edited("a blue square", one_pixel(2, b"\0\0\0"))))
        self.assertEqual(kept, pixels(repainted("a blue square", base64.b64encode(one_pixel(0, b"\0")).decode())))
        painted = pixels(edited("a red circle", one_pixel(6, b"\0\0\0\0")))
        self.assertNotEqual(painted, kept)
        self.assertEqual(painted, pixels(edited("a red circle", one_pixel(0, b"\xff"))))
        self.assertEqual(kept, pixels(repainted("a blue square", base64.b64encode(one_pixel(0, b"\xff")).decode(), 1)))

    @staticmethod
    def pixels_of(png):
        """Of a PNG of ours: what its parameters say differs."""
        pixels, at = b"", 8
        while at < len(png):
            size, name = struct.unpack(">I4s", png[at:at + 8])
            pixels += png[at + 8:at + 8 + size] if name == b"IDAT" else b""
            at += size + 12
        return pixels

    def test_report_timeline_latents_logs_parameters(self):
        body = {"prompt": "a house", "height": 64, "width": 64, "steps": 4, "seed": 11, "guidance_scale": 3.5, "want_latents": True}
        job = self.job(body)
        self.wait_for(lambda: self.state(job) == "succeeded")
        self.assertEqual(self.http.get(f"/api/v1/jobs/{job}/report").json()["seed"], 11)
        self.assertIn("traceEvents", self.http.get(f"/api/v1/jobs/{job}/timeline").json())
        self.assertIn("controller\n", self.http.get(f"/api/v1/jobs/{job}/logs").text)
        npy = self.http.get(f"/api/v1/jobs/{job}/latents").content
        self.assertTrue(npy.startswith(b"\x93NUMPY\x01\x00"))
        header = npy[10:10 + struct.unpack("<H", npy[8:10])[0]].decode()
        self.assertIn("'shape': (1, 4, 8, 8, )", header)
        self.assertEqual((10 + len(header)) % 64, 0)
        self.assertEqual(len(npy) - 10 - len(header), 4 * 4 * 8 * 8)
        png = self.http.get(f"/api/v1/jobs/{job}/pictures/0").content
        again = self.http.post("/api/v1/parameters", content=png).json()
        for field in ("prompt", "height", "width", "steps", "seed", "guidance_scale"):
            self.assertEqual(again[field], body[field], field)
        twin = self.job(again)
        self.wait_for(lambda: self.state(twin) == "succeeded")
        self.assertEqual(self.http.get(f"/api/v1/jobs/{twin}/pictures/0").content, png)
        self.assertEqual(self.http.post("/api/v1/parameters", content=b"x").status_code, 400)
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a.png").write_bytes(png)
            done = subprocess.run([TROUPE, "submit", "--connect", self.gateway.ready["clusters"][0], "--from", f"{folder}/a.png",
                                   "--output", f"{folder}/b.png"], capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(pathlib.Path(folder, "b.png").read_bytes(), png)

    def test_a_picture_of_several_is_made_again_by_its_own_seed_or_with_those_of_one(self):
        small = {"prompts": ["a", "b"], "height": 64, "width": 64, "steps": 1}
        for seeds, made, said in (({"picture_seeds": [1, 2]}, None, ""), ({"seed": 5}, 2, "number 1, counted from 0, of the 2 pictures")):
            job = self.job({**small, **seeds})
            self.wait_for(lambda: self.state(job) == "succeeded")
            png = self.http.get(f"/api/v1/jobs/{job}/pictures/1").content
            again = self.http.post("/api/v1/parameters", content=png).json()
            self.assertEqual((again["prompt"], again["seed"]), ("b", seeds.get("seed", 2)))
            self.assertEqual(again.get("images_per_prompt"), made)
            with tempfile.TemporaryDirectory() as folder:
                pathlib.Path(folder, "a.png").write_bytes(png)
                done = subprocess.run([TROUPE, "submit", "--connect", self.gateway.ready["clusters"][0], "--from", f"{folder}/a.png",
                                       "--output", f"{folder}/b.png"], capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(len(list(pathlib.Path(folder).glob("b*.png"))), made or 1)
                self.assertTrue(said in done.stderr if said else "counted from 0" not in done.stderr, done.stderr)

    def events(self, path, wanted):
        """The data of the first event of that stream for which WANTED holds. Who is held is released when it has begun."""
        with self.http.stream("GET", path, timeout=PATIENCE) as answer:
            self.holds.release(0)
            for line in answer.iter_lines():
                if line.startswith("data: ") and wanted(json.loads(line[6:])):
                    return json.loads(line[6:])
        self.fail("the stream ended")

    def test_cluster_pipeline_and_metrics(self):
        cluster = self.events("/api/v1/cluster/events", lambda data: data["actors"])
        self.assertEqual(cluster["models"], ["model"])
        self.assertEqual(cluster["actors"][0]["id"], 0)
        self.hold("text")
        job = self.job({"prompt": "sliced", "height": 64, "width": 64, "steps": 4})
        kinds = set()
        def seen(data):
            kinds.update(each["kind"] for each in data["slices"] if each["job"] == job)
            return {"text", "step", "decode"} <= kinds
        self.events("/api/v1/pipeline/events", seen)
        text = self.http.get("/metrics").text
        self.assertIn('troupe_http_answers_total{route="/api/v1/jobs",status="202"}', text)
        self.assertIn("troupe_tasks_total", text)
        options = self.http.get("/api/v1/options").json()
        self.assertEqual(options["models"][0]["id"], "model")
        self.assertIn("steps", [field["name"] for field in options["fields"]])
        self.assertIn("prompt", [field["name"] for field in options["job"]])

    def test_web_ui_clients(self):
        answer = self.http.post("/sdapi/v1/txt2img", json={
            "prompt": "a", "negative_prompt": "", "seed": -1, "steps": 2, "cfg_scale": 7, "width": 64, "height": 64,
            "sampler_name": "Euler a", "batch_size": 2, "n_iter": 1, "restore_faces": False, "denoising_strength": 0}).json()
        self.assertEqual(len(answer["images"]), 2)
        self.assertEqual(png_size(base64.b64decode(answer["images"][0])), (64, 64))
        self.assertEqual(json.loads(answer["info"])["sampler_name"], "euler-ancestral")
        again = self.http.post("/sdapi/v1/img2img", json={"prompt": "a", "steps": 4, "width": 64, "height": 64,
                                                          "init_images": [answer["images"][0]], "denoising_strength": 0.5,
                                                          "sampler_name": "DPM++ 2M Karras"}).json()
        self.assertEqual(len(again["images"]), 1)
        self.assertEqual(json.loads(again["info"])["sampler_name"], "dpmsolver++-karras")
        self.assertEqual(self.http.get("/sdapi/v1/sd-models").json()[0]["model_name"], "model")
        # The highres fix is image to image from the plain picture, by picture.
        body = {"prompt": "a", "steps": 4, "width": 64, "height": 64, "seed": 3, "batch_size": 2}
        plain = self.http.post("/sdapi/v1/txt2img", json=body).json()["images"]
        both = self.http.post("/sdapi/v1/txt2img", json={
            **body, "enable_hr": True, "hr_upscaler": "Lanczos", "hr_scale": 1.5, "denoising_strength": 0.5}).json()
        large, info = both["images"], json.loads(both["info"])
        told = self.text_of(base64.b64decode(large[1]), "parameters")
        self.assertIn("Steps: 4, Sampler: dpmsolver++, ", told)
        self.assertIn("Seed: 4, Size: 64x64", told)
        self.assertIn(", Denoising strength: 0.5, Hires upscale: 1.5, Hires upscaler: Lanczos, Version: ", told)
        self.assertEqual(info["infotexts"][1], told)
        self.assertEqual((info["steps"], info["width"], info["height"], info["sampler_name"], info["denoising_strength"]),
                         (4, 64, 64, "dpmsolver++", 0.5))
        self.assertEqual((info["all_prompts"], info["all_negative_prompts"], info["all_seeds"]), (["a", "a"], ["", ""], [3, 4]))
        self.assertEqual(info["extra_generation_params"], {"Hires upscale": 1.5, "Hires upscaler": "Lanczos"})
        self.assertEqual([png_size(base64.b64decode(picture)) for picture in large], [(96, 96)] * 2)
        # Its four steps are the last of eight.
        second = self.http.post("/sdapi/v1/img2img", json={"prompt": "a", "steps": 8, "width": 96, "height": 96, "seed": 4,
                                                           "init_images": [plain[1]], "denoising_strength": 0.5}).json()["images"]
        self.assertEqual(self.pixels_of(base64.b64decode(large[1])), self.pixels_of(base64.b64decode(second[0])))
        self.assertIn("euler", [sampler["name"] for sampler in self.http.get("/sdapi/v1/samplers").json()])
        self.assertIn("progress", self.http.get("/sdapi/v1/progress").json())
        self.assertEqual(self.http.get("/sdapi/v1/options").json()["sd_model_checkpoint"], "model")

    def text_of(self, png, keyword):
        return PIL.Image.open(io.BytesIO(png)).text[keyword]

    def test_web_ui_interrupts_its_own_alone(self):
        self.hold("step 1")
        job = self.http.post("/api/v1/jobs", json={**HELD, "prompt": "a"}).json()["id"]
        self.assertEqual(self.http.post("/sdapi/v1/interrupt").json(), {})
        self.http.post(f"/api/v1/jobs/{job}/cancel")
        self.wait_for(lambda: self.http.get(f"/api/v1/jobs/{job}").json()["state"] == "cancelled")
        self.assertIn(f"POST /api/v1/jobs/{job}/cancel", self.http.get(f"/api/v1/jobs/{job}").json()["cause"])

    def test_web_ui_interrupts(self):
        def paint():
            return self.http.post("/sdapi/v1/txt2img", json={**HELD, "prompt": "a"})

        self.hold("step 10")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            painting = pool.submit(paint)
            self.wait_for(lambda: self.http.get("/sdapi/v1/progress").json()["current_image"])
            self.assertEqual(self.http.post("/sdapi/v1/interrupt").json(), {})
            answer = painting.result(PATIENCE)
        self.assertEqual(answer.status_code, 200, answer.text)
        self.assertEqual(len(answer.json()["images"]), 1)
        width, height = png_size(base64.b64decode(answer.json()["images"][0]))
        self.assertEqual(width, height)
        info = json.loads(answer.json()["info"])
        self.assertRegex(" ".join(info["warnings"]), r"interrupted at step \d+ of 20: .*small and rough")
        self.assertEqual((info["width"], info["infotexts"]), (256, [""]))

    def test_who_cancels_is_told(self):
        self.hold("step 1")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            painting = pool.submit(lambda: self.http.post("/v1/images/generations", json={**HELD, "prompt": "to be cancelled"}))
            self.wait_for(lambda: self.http.get("/api/v1/jobs?limit=1").json()["jobs"][0]["prompt"] == "to be cancelled")
            job = self.http.get("/api/v1/jobs?limit=1").json()["jobs"][0]["id"]
            self.assertEqual(self.http.post(f"/api/v1/jobs/{job}/cancel").status_code, 200)
            answer = painting.result(PATIENCE)
        self.assertEqual(answer.status_code, 409)
        self.assertIn(f"cancelled by POST /api/v1/jobs/{job}/cancel", answer.json()["error"]["message"])
        self.assertEqual(self.http.get(f"/api/v1/jobs/{job}").json()["cause"], f"cancelled by POST /api/v1/jobs/{job}/cancel")

    def test_bodies_of_another_kind(self):
        form, body = {"files": {"prompt": (None, "a")}}, {"json": {"prompt": "a"}}
        for path, content, words in (("/api/v1/jobs", form, "takes JSON, not a form"), ("/v1/images/generations", form, "takes JSON, not a form"),
                                     ("/sdapi/v1/txt2img", form, "takes JSON, not a form"), ("/api/v1/parameters", form, "--data-binary @FILE"),
                                     ("/v1/images/edits", body, "takes a form (multipart/form-data), not application/json")):
            with self.subTest(path):
                answer = self.http.post(path, **content)
                self.assertEqual(answer.status_code, 415, answer.text)
                self.assertIn(words, answer.json()["error"]["message"])
        answer = self.http.post("/api/v1/parameters", content=b"what is this")
        self.assertEqual(answer.json()["error"]["message"], "the body: neither a PNG nor an MP4 or WebM file")
        made = self.http.post("/v1/images/generations", json={"prompt": "a", "size": "64x64", "output_format": "jpg", **SMALL}).json()
        self.assertTrue(base64.b64decode(made["data"][0]["b64_json"]).startswith(b"\xff\xd8\xff"))

    def test_refusals_have_the_words_of_the_client(self):
        small = {"prompt": "a", "steps": 4, "width": 64, "height": 64}
        picture = base64.b64encode(one_pixel(2, b"abc")).decode()
        for path, body, param, words in (
                ("/sdapi/v1/img2img", {**small, "init_images": [picture], "denoising_strength": 0.1}, "denoising_strength", "denoising_strength is 0.1"),
                ("/v1/videos", {"prompt": "a", "size": "64x64"}, "seconds", "none are given, which is 4"),
                ("/v1/videos", {"prompt": "a", "size": "64x64", "num_frames": 5}, "num_frames", "num_frames is 5"),
                ("/v1/images/generations", {"prompt": "a", "size": "65x64"}, "size", "size: width is 65"),
                ("/v1/images/generations", {"prompt": "a", "width": 65, "height": 64}, "width", "width is 65")):
            with self.subTest(path):
                error = self.http.post(path, json=body).json()["error"]
                self.assertEqual(error["param"], param, error)
                self.assertIn(words, error["message"])
        gif = self.http.post("/v1/images/edits", data={"prompt": "a"}, files={"image": ("a.gif", b"GIF89a")}).json()["error"]
        self.assertEqual((gif["param"], gif["message"][:7]), ("image", "image: "))

    def test_web_ui_refuses_by_name(self):
        body = {"prompt": "a", "steps": 2, "width": 64, "height": 64}
        for fields, param in (({"enable_hr": True, "hr_upscaler": "Latent"}, "hr_upscaler"), ({"prompt": "a (red:1.4) ball"}, "prompt"),
                              ({"alwayson_scripts": {"ControlNet": {"args": [{"image": "x"}]}}}, "alwayson_scripts"),
                              ({"override_settings": {"sd_vae": "other"}}, "override_settings"), ({"tilling": True}, "tilling")):
            refused = self.http.post("/sdapi/v1/txt2img", json={**body, **fields})
            self.assertEqual((refused.status_code, refused.json()["error"]["param"]), (400, param), refused.text)
        twice = {**body, "enable_hr": True, "hr_upscaler": "None", "hr_scale": 1.5, "send_images": False}
        other = self.http.post("/sdapi/v1/txt2img", json={**twice, "hr_checkpoint_name": "other"})
        self.assertEqual((other.status_code, other.json()["error"]["param"]), (400, "hr_checkpoint_name"))
        # A second pass that the model does not take is refused before the first.
        before = self.http.get("/api/v1/jobs?limit=1").json()["jobs"]
        late = self.http.post("/sdapi/v1/txt2img", json={**twice, "hr_scale": 1.125})
        self.assertEqual((late.status_code, late.json()["error"]["param"]), (400, "enable_hr"), late.text)
        self.assertIn("width is 72: this model takes multiples of 16", late.json()["error"]["message"].replace("height", "width"))
        self.assertEqual([job["id"] for job in self.http.get("/api/v1/jobs?limit=1").json()["jobs"]], [job["id"] for job in before])
        same = self.http.post("/sdapi/v1/txt2img", json={**twice, "hr_checkpoint_name": "model"})
        self.assertEqual(same.status_code, 200, same.text)
        unknown = self.http.post("/sdapi/v1/options", json={"sd_model_checkpoint": "nonesuch"})
        self.assertEqual((unknown.status_code, unknown.json()["error"]["param"]), (404, "sd_model_checkpoint"))
        self.assertEqual(self.http.post("/sdapi/v1/options", json={"sd_model_checkpoint": "model"}).status_code, 200)
        self.assertEqual(self.http.post("/sdapi/v1/options", json={"CLIP_stop_at_last_layers": 2}).status_code, 400)
        # All that is told there may be handed back.
        self.assertEqual(self.http.post("/sdapi/v1/options", json=self.http.get("/sdapi/v1/options").json()).status_code, 200)
        # A negative prompt without guidance says nothing, which is a warning.
        warned = self.http.post("/sdapi/v1/txt2img", json={**body, "cfg_scale": 1, "negative_prompt": "b", "send_images": False}).json()
        self.assertEqual(warned["images"], [])
        self.assertIn("negative prompt", " ".join(json.loads(warned["info"])["warnings"]))

    def test_webuiapi(self):
        """With the client that bots and scripts use; it sends every field that there is."""
        there = urllib.parse.urlsplit(self.gateway.url)
        api = webuiapi.WebUIApi(host=there.hostname, port=there.port)
        size = {"width": 64, "height": 64, "steps": 2}
        two = api.txt2img(prompt="a red circle", negative_prompt="blue", seed=7, cfg_scale=4, batch_size=2, **size)
        self.assertEqual(two.info["all_seeds"], [7, 8])
        self.assertEqual([picture.size for picture in two.images], [(64, 64)] * 2)
        alone = api.txt2img(prompt="a red circle", negative_prompt="blue", seed=8, cfg_scale=4, **size)
        worst = max(high for _, high in PIL.ImageChops.difference(two.images[1], alone.image).getextrema())
        self.assertLessEqual(worst, 1)
        self.assertNotEqual(two.images[0].tobytes(), two.images[1].tobytes())
        painted = api.img2img(images=[alone.image], prompt="a blue circle", denoising_strength=0.5, sampler_name="DDIM", eta=0, **size)
        self.assertEqual(painted.image.size, (64, 64))
        with self.assertRaisesRegex(RuntimeError, "steps"):
            api.txt2img(prompt="a", **{**size, "steps": 0})
        self.assertEqual((api.util_get_model_names(), api.util_get_current_model()), (["model"], "model"))
        self.assertEqual(api.get_progress()["progress"], 0)
        self.assertEqual(api.interrupt(), {})

    def test_query_parameters(self):
        job = self.job({"prompt": "a", "steps": 1, "height": 64, "width": 64})
        self.wait_for(lambda: self.state(job) == "succeeded")
        of_job, picture = f"/api/v1/jobs/{job}", f"/api/v1/jobs/{job}/pictures/0"
        for method, path in (("GET", "/health"), ("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/v1/images/generations"),
                             ("POST", "/v1/videos"), ("GET", "/v1/videos"), ("GET", "/api/v1/jobs"), ("POST", "/api/v1/jobs"),
                             ("GET", of_job), ("GET", picture), ("GET", of_job + "/events"), ("GET", of_job + "/report"),
                             ("POST", "/api/v1/parameters"), ("GET", "/api/v1/cluster"), ("GET", "/api/v1/cluster/events"),
                             ("GET", "/sdapi/v1/progress"), ("POST", "/sdapi/v1/txt2img"), ("POST", "/sdapi/v1/interrupt")):
            with self.subTest(path):
                error = self.http.request(method, f"{path}?foo=1").json()["error"]
                self.assertEqual((error["code"], error["param"]), ("unknown_field", "foo"))
        for query, param in (("formt=jpeg", "formt"), ("format=png&quality=20", "quality"), ("quality=20", "quality"), ("format=mp4", "format"),
                             ("format=webm", "format"), ("format=gif", "format"), ("format=jpeg&quality=0", "quality")):
            with self.subTest(query):
                answer = self.http.get(f"{picture}?{query}")
                self.assertEqual((answer.status_code, answer.json()["error"]["param"]), (400, param), answer.text)
        self.assertEqual(self.http.get(f"{picture}?format=jpeg&quality=20").headers["content-type"], "image/jpeg")
        answer = self.http.post("/api/v1/parameters?bring=init_imag", content=self.http.get(picture).content)
        self.assertIn("did you mean init_image?", answer.json()["error"]["message"])
        self.assertIsNone(self.http.get("/sdapi/v1/progress?skip_current_image=true").json()["current_image"])
        self.assertEqual(self.http.get("/sdapi/v1/progress?skip_current_image=x").status_code, 400)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.images.generate(prompt="a", output_format="png", output_compression=30, extra_body=SMALL)
        self.assertEqual(caught.exception.param, "output_compression")

    def test_openai_videos(self):
        video = self.http.post("/v1/videos", json={"prompt": "a", "model": WAN, "size": "64x64", "num_frames": 5, **SMALL}).json()
        refused = self.http.post("/v1/videos", json={"prompt": "a", "model": "model", "size": "64x64", **SMALL})
        self.assertEqual((refused.status_code, refused.json()["error"]["param"]), (400, "seconds"))
        self.assertIn("makes pictures", refused.json()["error"]["message"])
        self.assertEqual((video["object"], video["seconds"]), ("video", "0.25"))
        address = f"/v1/videos/{video['id']}"
        self.wait_for(lambda: self.http.get(address).json()["status"] == "completed")
        content = self.http.get(address + "/content")
        self.assertEqual(content.headers["content-type"], "video/mp4")
        self.assertEqual(content.content[4:12], b"ftypisom")
        self.assertEqual(self.http.get(address + "/content").content, content.content)
        as_format = lambda format: self.http.get(address + "/content", params={"format": format})
        self.assertEqual(png_size(as_format("png").content), (64, 64))
        self.assertEqual(as_format("webm").headers["content-type"], "video/webm")
        self.assertTrue(as_format("webm").content.startswith(b"\x1a\x45\xdf\xa3"))
        self.assertEqual(as_format("mov").status_code, 400)
        variant = lambda name: self.http.get(address + "/content", params={"variant": name})
        self.assertEqual(variant("video").content, content.content)
        self.assertEqual(variant("thumbnail").headers["content-type"], "image/webp")
        self.assertEqual(variant("spritesheet").json()["error"]["param"], "variant")
        # A call for pictures has one frame of it.
        frame = {"prompt": "a", "model": WAN, "size": "64x64", **SMALL}
        made = self.http.post("/v1/images/generations", json=frame).json()
        self.assertNotIn(b"acTL", base64.b64decode(made["data"][0]["b64_json"]))
        refused = self.http.post("/v1/images/generations", json={**frame, "num_frames": 5}).json()
        self.assertEqual(refused["error"]["param"], "num_frames")
        for file in (content.content, as_format("webm").content):
            again = self.http.post("/api/v1/parameters", content=file).json()
            self.assertEqual((again["prompt"], again["width"], again["steps"]), ("a", 64, SMALL["steps"]))
        refused = self.http.post("/api/v1/parameters", content=content.content[:100])
        self.assertEqual((refused.status_code, refused.json()["error"]["code"]), (400, "bad_request"))
        for format in ("webm", "mp4"):
            refused = self.http.post("/v1/images/generations", json={"prompt": "a", "output_format": format})
            self.assertEqual((refused.status_code, refused.json()["error"]["param"]), (400, "output_format"))
            job = {"prompt": "a", "output_format": format, "height": 64, "width": 64, **SMALL}
            refused = self.http.post("/api/v1/jobs", json=job)
            self.assertEqual((refused.status_code, refused.json()["error"]["param"]), (400, "output_format"), refused.text)
            taken = self.http.post("/api/v1/jobs", json={**job, "model": WAN})
            self.assertEqual(taken.status_code, 202, taken.text)
        self.assertIn(video["id"], [each["id"] for each in self.http.get("/v1/videos").json()["data"]])
        self.assertEqual(self.http.get("/v1/videos/video_none").status_code, 404)

    def test_openai_errors(self):
        for wrong, field in (({"size": "big"}, "size"), ({"n": 0}, "n"), ({"extra_body": {"stepps": 3}}, "stepps"),
                             ({"extra_body": {"method": "fast"}}, "method"), ({"extra_body": {"sampler": "x"}}, "sampler")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.openai.images.generate(prompt="a", **wrong)
            self.assertEqual(caught.exception.param, field)
            self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.openai.images.generate(prompt="a", model="dall-e-3")
        self.assertEqual(caught.exception.param, "model")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.images.generate(prompt="a", size="100x100")
        self.assertIn("400 - size: height is 100: ", str(caught.exception))
        self.assertEqual(caught.exception.param, "size")

    def test_a_client_that_goes_away_cancels_its_job(self):
        self.hold("step 15")
        with self.openai.images.with_streaming_response.generate(
                prompt="to be left", stream=True, partial_images=3, extra_body={**HELD, "height": 128, "width": 128}) as answer:
            for line in answer.iter_lines():
                break
        gone = lambda: [job for job in self.http.get("/api/v1/jobs").json()["jobs"] if job["prompt"] == "to be left"]
        self.wait_for(lambda: gone() and gone()[0]["state"] == "cancelled")

    def test_job_of_our_own(self):
        self.hold("step 3")
        job = self.job({"prompt": "a blue square", "height": 64, "width": 64, "steps": 6, "preview_every": 2, "seed": 3})
        events = []
        with self.http.stream("GET", f"/api/v1/jobs/{job}/events") as answer:
            self.holds.held(0)
            self.holds.release(0)
            self.assertEqual(answer.headers["content-type"], "text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    events.append((line[7:], None))
                elif line.startswith("data: "):
                    events[-1] = (events[-1][0], json.loads(line[6:]))
        kinds = [kind for kind, _ in events]
        self.assertEqual(kinds[0], "progress")
        self.assertEqual(kinds[-1], "succeeded")
        self.assertIn("preview", kinds)
        previews = [data for kind, data in events if kind == "preview"]
        png_size(base64.b64decode(previews[0]["b64_png"]))
        steps = [data["step"] for kind, data in events if kind == "progress"]
        self.assertEqual(steps, sorted(steps))
        end = events[-1][1]
        self.assertEqual((end["pictures"][0]["width"], end["pictures"][0]["height"]), (64, 64))
        png = self.http.get(end["pictures"][0]["url"])
        self.assertEqual(png_size(png.content), (64, 64))
        self.assertEqual(self.http.get(end["pictures"][0]["url"], params={"format": "webp"}).headers["content-type"], "image/webp")
        # A late reader gets the end at once, and a cancel comes too late.
        self.assertIn("event: succeeded", self.http.get(f"/api/v1/jobs/{job}/events").text)
        late = self.http.post(f"/api/v1/jobs/{job}/cancel")
        self.assertEqual((late.status_code, late.json()["error"]["type"]), (409, "conflict_error"))
        self.assertEqual(self.http.get(f"/api/v1/jobs/{job}/pictures/1").status_code, 404)
        self.assertEqual(self.http.get("/api/v1/jobs/none").json()["error"]["code"], "not_found")

    def test_cancel_and_the_list_of_jobs(self):
        self.hold("step 1")
        first, second = (self.job({"prompt": name, **HELD}) for name in ("one", "two"))
        self.wait_for(lambda: self.state(first) == "running")
        self.assertEqual(self.http.get(f"/api/v1/jobs/{first}/pictures/0").status_code, 409)
        newest = self.http.get("/api/v1/jobs", params={"limit": 1}).json()
        self.assertEqual([job["id"] for job in newest["jobs"]], [second])
        older = self.http.get("/api/v1/jobs", params={"limit": 1, "before": newest["next"]}).json()
        self.assertEqual([job["id"] for job in older["jobs"]], [first])
        for job in (first, second):
            self.assertEqual(self.http.post(f"/api/v1/jobs/{job}/cancel").status_code, 200)
        self.holds.release(0)  # where they share it, the hold is to end first
        for job in (first, second):
            self.wait_for(lambda: self.state(job) == "cancelled")
        self.assertIn("event: cancelled", self.http.get(f"/api/v1/jobs/{first}/events").text)

    def test_jobs_of_others_are_there_too(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([TROUPE, "submit", "--connect", self.gateway.ready["clusters"][0], "--prompt", "by another",
                                   "--steps", "2", "--height", "64", "--width", "64", "--output", f"{folder}/a.png"],
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            theirs = pathlib.Path(folder, "a.png").read_bytes()
        found = lambda: [job for job in self.http.get("/api/v1/jobs").json()["jobs"] if job["prompt"] == "by another"]
        self.wait_for(lambda: found() and found()[0]["state"] == "succeeded")
        self.assertEqual(self.http.get(f"/api/v1/jobs/{found()[0]['id']}/pictures/0").content, theirs)

    def test_foreign_pages_are_kept_out(self):
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            self.assertEqual(self.http.get("/api/v1/jobs", headers=headers).status_code, 403)
        same = self.http.get("/api/v1/jobs", headers={"Origin": self.gateway.url})
        self.assertEqual(same.status_code, 200)

    def test_curl(self):
        done = subprocess.run(["curl", "-sS", "-f", self.gateway.url + "/v1/images/generations", "-d",
                               json.dumps({"prompt": "a cat", "size": "64x64", **SMALL})], capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(png_size(base64.b64decode(json.loads(done.stdout)["data"][0]["b64_json"])), (64, 64))


class RestartTest(unittest.TestCase):
    """A gateway whose cluster comes and goes."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.endpoint = f"ipc://{folder.name}/control.sock"
        self.holds = Holds(TROUPE, self.endpoint)
        self.log = open(f"{folder.name}/log", "w+")
        self.addCleanup(self.log.close)

    def start(self, *options):
        cluster = subprocess.Popen([TROUPE, "start", "--listen", self.endpoint, "--model", str(ROOT / "examples/demo/model"),
                                    "--actors", "1", "--json", *options], stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (cluster.kill(), cluster.wait(), cluster.stdout.close()))
        for line in cluster.stdout:
            if line == "}\n":
                return cluster
        self.fail("it did not start")

    def gateway(self, *options):
        gateway = Gateway("--connect", self.endpoint, *options, stderr=self.log)
        http = httpx.Client(base_url=gateway.url, timeout=PATIENCE)
        self.addCleanup(lambda: (http.close(), gateway.process.poll() is None and gateway.end()))
        gateway.connected(http)
        return gateway, http

    def wait_for(self, condition):
        until = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), until, "it did not come")
            time.sleep(0.05)

    def paint(self, http, **more):
        answer = http.post("/api/v1/jobs", json={"prompt": "a", "height": 64, "width": 64, "steps": 2, **more})
        self.assertEqual(answer.status_code, 202, answer.text)
        job = answer.json()["id"]
        self.wait_for(lambda: http.get(f"/api/v1/jobs/{job}").json()["state"] == "succeeded")
        return job

    def test_after_a_gateways_restart_a_job_is_still_its_keys(self):
        self.start()
        file = f"{self.folder}/keys"
        keys = {name: subprocess.run([TROUPE, "serve", "--api-keys", file, "--new-key", name], capture_output=True, text=True,
                                     timeout=60, check=True).stdout.strip() for name in ("one", "two")}
        pathlib.Path(file).write_text("".join(line + " jobs=1\n" for line in pathlib.Path(file).read_text().splitlines()))
        gateway, http = self.gateway("--api-keys", file)

        def ask(method, path, key, **more):
            return http.request(method, path, headers={"Authorization": f"Bearer {keys[key]}"}, **more)

        def hand_in(key):
            answer = ask("POST", "/api/v1/jobs", key, json={"prompt": "a", **HELD})
            return None if answer.status_code == 503 else answer  # not before it knows which jobs there are

        def answered(key):
            answers = []
            self.wait_for(lambda: answers.append(hand_in(key)) or answers[-1])
            return answers[-1]

        self.holds.hold(0, at="step 1")
        job = answered("one").json()["id"]
        gateway.end()
        gateway, http = self.gateway("--api-keys", file)
        self.wait_for(lambda: ask("GET", f"/api/v1/jobs/{job}", "one").status_code == 200)
        self.assertEqual(ask("GET", f"/api/v1/jobs/{job}", "two").status_code, 404)
        self.assertEqual(answered("one").status_code, 429)
        self.assertEqual(ask("POST", f"/api/v1/jobs/{job}/cancel", "two").status_code, 404)
        self.assertEqual(ask("POST", f"/api/v1/jobs/{job}/cancel", "one").status_code, 200)

    def test_paths_outside_the_clusters_model_are_refused_in_the_same_words(self):
        self.start()
        gateway, http = self.gateway("--allow-models", f"{self.folder}")
        there, allowed = ROOT / "README.md", pathlib.Path(self.folder) / "lora"
        allowed.write_bytes(there.read_bytes())

        def refusal(**fields):
            answer = http.post("/api/v1/jobs", json={"prompt": "a", "height": 64, "width": 64, **SMALL, **fields})
            self.assertEqual(answer.status_code, 400, answer.text)
            return answer.json()["error"]

        said = {refusal(loras=[{"path": str(path), "scale": 1}])["message"].replace(str(path), "PATH")
                for path in (there, there.with_name("not-there"), "/etc/shadow")}
        self.assertEqual(len(said), 1, said)
        self.assertIn("--allow-models", said.pop())
        said = {refusal(model=path)["message"].replace(path, "PATH") for path in (str(ROOT / "docs"), "/not/there")}
        self.assertEqual(len(said), 1, said)
        self.assertNotIn("--allow-models", refusal(loras=[{"path": str(allowed), "scale": 1}])["message"])

    def test_numbers_begin_again_and_ids_do_not(self):
        cluster = self.start()
        gateway, http = self.gateway()
        old = self.paint(http, seed=1)
        picture = http.get(f"/api/v1/jobs/{old}/pictures/0").content
        self.holds.hold(0, at="step 1")
        unended = http.post("/api/v1/jobs", json={"prompt": "b", **HELD}).json()["id"]
        with http.stream("GET", f"/api/v1/jobs/{unended}/events") as events:
            cluster.kill()
            cluster.wait()
            self.start()
            said = "".join(events.iter_text())
        self.assertIn("event: failed", said)
        self.assertIn("started anew", said)
        self.wait_for(lambda: http.get("/health").status_code == 200)  # the gateway connects again
        new = self.paint(http, seed=2)
        self.assertEqual([http.get(f"/api/v1/jobs/{job}").json()["number"] for job in (old, new)], [1, 1])
        self.assertNotEqual(old, new)
        self.assertEqual(http.get(f"/api/v1/jobs/{old}/pictures/0").content, picture)
        self.assertNotEqual(http.get(f"/api/v1/jobs/{new}/pictures/0").content, picture)
        self.assertEqual(http.get(f"/api/v1/jobs/{old}/timeline").status_code, 410)
        self.assertEqual(http.get("/api/v1/jobs/1").json()["id"], new, "a number alone is the cluster's of now")
        self.assertEqual([job["id"] for job in http.get("/api/v1/jobs").json()["jobs"]], [new, unended, old])
        gateway.end()
        self.log.seek(0)
        said = self.log.read()
        self.assertEqual((said.count("is gone: "), said.count("is back")), (1, 1), said)
        # Another gateway never heard of the job.
        gateway, http = self.gateway()
        self.wait_for(lambda: http.get(f"/api/v1/jobs/{new}").status_code == 200)
        answer = http.get(f"/api/v1/jobs/{old}")
        self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (410, "gone"))
        self.assertEqual(http.get("/api/v1/jobs/99-" + new.split("-")[1]).status_code, 404)

    def test_a_job_is_there_as_soon_as_it_is_handed_in(self):
        self.start()
        _, http = self.gateway()
        self.wait_for(lambda: http.get("/api/v1/jobs/1").status_code == 404)  # it knows which jobs there are
        for number in range(1, 4):
            said = subprocess.run([TROUPE, "submit", "--connect", self.endpoint, "--prompt", "a", "--steps", "2", "--height", "64",
                                   "--width", "64", "--detach", "--json"], capture_output=True, text=True, timeout=60, check=True).stdout
            self.assertEqual(json.loads(said)["job"], number)
            answer = http.get(f"/api/v1/jobs/{number}")
            self.assertEqual((answer.status_code, answer.json().get("number")), (200, number), answer.text)

    def test_where_all_actors_are_drained_it_is_not_the_requests_fault(self):
        self.start()
        _, http = self.gateway()
        self.wait_for(lambda: http.get("/health").status_code == 200)
        subprocess.run([TROUPE, "drain", "--connect", self.endpoint, "0"], check=True, timeout=60, capture_output=True)
        answer = http.post("/api/v1/jobs", json={"prompt": "a", **SMALL})
        self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (503, "refused"), answer.text)
        answer = http.post("/api/v1/jobs", json={"prompt": "a", "cfg": 2, "pp": 2, **SMALL})
        self.assertEqual(answer.status_code, 400, answer.text)

    def test_a_journal_keeps_ids(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster = self.start("--journal", folder)
            _, http = self.gateway()
            job = self.paint(http, prompt="kept")
            cluster.kill()
            cluster.wait()
            self.start("--journal", folder)
            self.wait_for(lambda: http.get("/health").json()["status"] == "ok")
            self.assertEqual(http.get(f"/api/v1/jobs/{job}").json()["prompt"], "kept")
            # The gateway may still have to notice that its controller is another one.
            self.wait_for(lambda: http.get(f"/api/v1/jobs/{job}/timeline").status_code in (200, 404))

    def test_a_cluster_that_stops_is_no_conflict(self):
        cluster = self.start()
        _, http = self.gateway()
        self.holds.hold(0, at="step 1")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answer = pool.submit(lambda: http.post("/v1/images/generations", json={"prompt": "stopped", **HELD}))
            self.wait_for(lambda: any(job["state"] == "running" for job in http.get("/api/v1/jobs").json()["jobs"]))
            cluster.send_signal(signal.SIGTERM)
            refused = answer.result()
        self.assertEqual((refused.status_code, refused.headers["retry-after"]), (503, "1"), refused.text)
        self.assertEqual(refused.json()["error"]["type"], "server_error")


class KeysTest(unittest.TestCase):
    """Keys with limits, and TLS, before a gateway whose cluster is not there."""

    def test_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/keys"
            made = [subprocess.run([TROUPE, "serve", "--api-keys", file, "--new-key", name], capture_output=True, text=True, timeout=60)
                    for name in ("one", "two", "three")]
            keys = [each.stdout.strip() for each in made]
            self.assertEqual(pathlib.Path(file).stat().st_mode & 0o777, 0o600)
            self.assertNotIn(keys[0], pathlib.Path(file).read_text())
            again = subprocess.run([TROUPE, "serve", "--api-keys", file, "--new-key", "one"], capture_output=True, text=True, timeout=60)
            self.assertEqual(again.returncode, 1)
            text = pathlib.Path(file).read_text().splitlines()
            pathlib.Path(file).write_text(text[0] + " per-minute=1\n" + text[1] + " role=operate\n" + text[2] + " per-minute=1\n")
            gateway = Gateway("--model", str(ROOT / "examples/demo/model"), "--actors", "1", "--api-keys", file)
            try:
                ask = lambda path, key=None, **more: httpx.request(
                    more.pop("method", "GET"), gateway.url + path, timeout=60,
                    headers={"Authorization": f"Bearer {key}"} if key else {}, **more)
                gateway.connected(httpx)
                for key in (None, "wrong"):
                    answer = ask("/api/v1/jobs", key)
                    self.assertEqual((answer.status_code, answer.json()["error"]["code"]), (401, "invalid_api_key"))
                body = {"prompt": "a", "height": 64, "width": 64, **SMALL}
                job = ask("/api/v1/jobs", keys[0], method="POST", json=body)
                self.assertEqual(job.status_code, 202)
                limited = ask("/api/v1/jobs", keys[0], method="POST", json=body)
                self.assertEqual((limited.status_code, limited.json()["error"]["type"]), (429, "rate_limit_error"))
                self.assertIn(f'wait {limited.headers["retry-after"]} s', limited.json()["error"]["message"])
                theirs = ask("/api/v1/jobs", keys[1], method="POST", json=body).json()["id"]
                self.assertEqual(ask(f"/api/v1/jobs/{theirs}", keys[0]).status_code, 404)
                self.assertEqual(ask(f"/api/v1/jobs/{job.json()['id']}", keys[1]).json()["share"], "one")
                # The highres fix of two pictures is three jobs, and one request for the key's limits.
                twice = {**body, "batch_size": 2, "enable_hr": True, "hr_upscaler": "None", "hr_scale": 1.5}
                for path in (f"/api/v1/jobs/{job.json()['id']}/events", f"/api/v1/jobs/{theirs}/events"):
                    self.assertIn("event: succeeded", ask(path, keys[1]).text)
                holds = Holds(TROUPE, gateway.ready["clusters"][0])
                holds.hold(0, at="step 1")
                with concurrent.futures.ThreadPoolExecutor() as pool:
                    painting = pool.submit(lambda: ask("/sdapi/v1/txt2img", keys[2], method="POST", json=twice))
                    holds.held(0)
                    self.assertEqual(ask("/api/v1/jobs", keys[2], method="POST", json=body).status_code, 429)
                    holds.release(0)
                    painted = painting.result()
                self.assertEqual((painted.status_code, len(painted.json().get("images", []))), (200, 2), painted.text)
                self.assertEqual(ask("/api/v1/actors/0/kill", keys[0], method="POST").status_code, 403)
                self.assertEqual(ask("/api/v1/actors/0/kill", keys[1], method="POST").status_code, 200)
            finally:
                self.assertEqual(gateway.end(), 0)

    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                            "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/key.pem",
                            "-out", f"{folder}/cert.pem"], check=True, capture_output=True, timeout=60)
            gateway = Gateway("--connect", f"ipc://{folder}/none.sock", "--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem")
            try:
                self.assertTrue(gateway.url.startswith("https://"))
                done = subprocess.run(["curl", "-sS", "--cacert", f"{folder}/cert.pem", gateway.url + "/health", "-w", "%{http_code}"],
                                      capture_output=True, text=True, timeout=60)
                self.assertTrue(done.stdout.endswith("503"), done)
                self.assertEqual(json.loads(done.stdout[:-3])["status"], "down")
                refused = subprocess.run([TROUPE, "serve", "--http", "0.0.0.0:0"], capture_output=True, text=True, timeout=60)
                self.assertEqual(refused.returncode, 1)
                self.assertIn("--api-keys", refused.stderr)
            finally:
                self.assertEqual(gateway.end(), 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    TROUPE = sys.argv.pop(1)
    unittest.main(verbosity=2)
