#!/usr/bin/env python3
"""Tries `troupe serve`, with a cluster of its own, with clients that others wrote: openai-python, httpx.

usage: clients_test.py TROUPE
"""
import base64
import json
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import httpx
import openai

ROOT = pathlib.Path(__file__).resolve().parents[2]
TROUPE = ""
SMALL = {"steps": 2}
LONG = {"steps": 900, "height": 64, "width": 64}


def png_size(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n", png[:16]
    return struct.unpack(">II", png[16:24])


class Gateway:
    def __init__(self, *options):
        self.process = subprocess.Popen(
            [TROUPE, "serve", "--http", "127.0.0.1:0", "--json", *options], stdout=subprocess.PIPE, text=True)
        text = ""
        for line in self.process.stdout:
            text += line
            if line == "}\n":
                break
        self.ready = json.loads(text)
        self.url = self.ready["url"]

    def end(self):
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        return status


class ClientsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.gateway = Gateway("--model", str(ROOT / "examples/demo/model"), "--actors", "1")
        cls.http = httpx.Client(base_url=cls.gateway.url, timeout=60)
        cls.openai = openai.OpenAI(base_url=cls.gateway.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.http.close()
        cls.openai.close()
        assert cls.gateway.end() == 0

    def wait_for(self, condition):
        until = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), until, "it did not come")
            time.sleep(0.05)

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
        for picture in made.data:
            self.assertEqual(png_size(base64.b64decode(picture.b64_json)), (96, 64))
        self.assertNotEqual(made.data[0].b64_json, made.data[1].b64_json)
        for kind, beginning in (("jpeg", b"\xff\xd8\xff"), ("webp", b"RIFF")):
            made = self.openai.images.generate(prompt="a", size="64x64", output_format=kind, output_compression=80, extra_body=SMALL)
            self.assertTrue(base64.b64decode(made.data[0].b64_json).startswith(beginning))

    def test_openai_stream(self):
        stream = self.openai.images.generate(prompt="a red circle", size="64x64", stream=True, partial_images=2,
                                             extra_body={"steps": 9, "seed": 5})
        events = list(stream)
        self.assertEqual([event.type for event in events],
                         ["image_generation.partial_image"] * 2 + ["image_generation.completed"])
        self.assertEqual([event.partial_image_index for event in events[:2]], [0, 1])
        self.assertNotEqual(events[0].b64_json, events[1].b64_json)
        for event in events[:2]:
            png_size(base64.b64decode(event.b64_json))
        self.assertEqual(png_size(base64.b64decode(events[2].b64_json)), (64, 64))
        again = self.openai.images.generate(prompt="a red circle", size="64x64", extra_body={"steps": 9, "seed": 5})
        self.assertEqual(again.data[0].b64_json, events[2].b64_json, "the same seed, the same picture")

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
        self.assertIn("height is 100", str(caught.exception))

    def test_a_client_that_goes_away_cancels_its_job(self):
        with self.openai.images.with_streaming_response.generate(
                prompt="to be left", stream=True, partial_images=1, extra_body=LONG) as answer:
            for line in answer.iter_lines():
                break
        gone = lambda: [job for job in self.http.get("/api/v1/jobs").json()["jobs"] if job["prompt"] == "to be left"]
        self.wait_for(lambda: gone() and gone()[0]["state"] == "cancelled")

    def test_job_of_our_own(self):
        job = self.job({"prompt": "a blue square", "height": 64, "width": 64, "steps": 6, "preview_every": 2, "seed": 3})
        events = []
        with self.http.stream("GET", f"/api/v1/jobs/{job}/events") as answer:
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
        first, second = (self.job({"prompt": name, **LONG}) for name in ("one", "two"))
        self.wait_for(lambda: self.state(first) == "running")
        self.assertEqual(self.http.get(f"/api/v1/jobs/{first}/pictures/0").status_code, 409)
        newest = self.http.get("/api/v1/jobs", params={"limit": 1}).json()
        self.assertEqual([job["id"] for job in newest["jobs"]], [second])
        older = self.http.get("/api/v1/jobs", params={"limit": 1, "before": newest["next"]}).json()
        self.assertEqual([job["id"] for job in older["jobs"]], [first])
        for job in (first, second):
            self.assertEqual(self.http.post(f"/api/v1/jobs/{job}/cancel").status_code, 200)
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


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    TROUPE = sys.argv.pop(1)
    unittest.main(verbosity=2)
