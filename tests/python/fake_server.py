"""A server that speaks the part of docs/http.md that the package uses, with jobs that end as their prompt says.

prompt     what becomes of the job
"fails"    it fails after two steps
"breaks"   its stream of events breaks after each event
"errs"     its first stream of events ends with an error
"slow"     it stands still at its third step, until it is cancelled
"quick"    its events leave steps out
"warns"    its text was cut, which is told at its first step
else       it succeeds
"""
import base64
import http.server
import json
import struct
import threading
import time
import zlib


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(red, width=4, height=2, frames=1):
    """A PNG file's bytes, in one colour; of several frames, animated, each is redder by one."""
    def rows(number):
        return zlib.compress((b"\0" + bytes([red + number, 0, 0]) * width) * height)

    def control(sequence):
        return chunk(b"fcTL", struct.pack(">5I2H2B", sequence, width, height, 0, 0, 1, 16, 0, 0)) if frames > 1 else b""
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    file += chunk(b"acTL", struct.pack(">2I", frames, 0)) if frames > 1 else b""
    file += control(0) + chunk(b"IDAT", rows(0))
    for number in range(1, frames):
        file += control(2 * number - 1) + chunk(b"fdAT", struct.pack(">I", 2 * number) + rows(number))
    return file + chunk(b"IEND", b"")


def npy(values):
    """A .npy file's bytes: float32 [1, 1, 1, n]."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, {len(values)}), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(values)}f", *values)


OPTIONS = {
    "fields": [{"name": "method", "option": "--method", "type": "string", "choices": ["exact", "pipefusion", "distrifusion"]},
               {"name": "num_pipeline_patch", "option": "--patches", "type": "integer"},
               {"name": "negative_prompt", "option": "--negative-prompt", "type": "string"},
               {"name": "negative_prompts", "option": "--negative-prompt", "type": "list"}],
    "degrees": [{"name": "pp", "option": "--pp", "type": "integer"}], "samplers": ["euler"], "models": []}


class FakeJob:
    def __init__(self, number, request):
        self.request = request
        self.prompt = request["prompts"][0]
        self.info = {"id": str(number), "state": "queued", "phase": "", "prompt": self.prompt, "model": "fake", "step": 0, "timestep": None,
                     "steps": 1000 if self.prompt == "slow" else request.get("steps", 4), "seconds": 0.0, "seconds_per_step": 0.1,
                     "queue_position": 0, "cause": None, "pictures": [], "warnings": [], "later": "a field of a newer server"}
        self.streams = 0
        self.cancelled = threading.Event()

    def end(self, state, cause=None):
        count = len(self.request["prompts"]) * int(self.request.get("images_per_prompt", 1))
        pictures = [{"url": f"/api/v1/jobs/{self.info['id']}/pictures/{i}", "width": 4, "height": 2} for i in range(count)]
        self.info.update(state=state, cause=cause, pictures=pictures if state == "succeeded" else [])

    def events(self):
        """(name, data), as the job goes on."""
        self.streams += 1
        self.info["state"] = "running"
        self.info["phase"] = "denoising"
        while self.info["step"] < self.info["steps"]:
            if self.cancelled.wait(0.02 if self.prompt == "slow" else 0.002):
                break
            last = 3 if self.prompt == "slow" else self.info["steps"]
            self.info["step"] = min(self.info["step"] + (3 if self.prompt == "quick" else 1), last)
            self.info["timestep"] = 1000.5 - self.info["step"]
            if self.prompt == "warns":
                self.info["warnings"] = ["the prompt was cut; `method` exact, `num_pipeline_patch` 4 and --elastic change nothing, --nothing either"]
            if self.prompt == "fails" and self.info["step"] == 2:
                self.end("failed", "actor 3, step 2: killed by signal 9")
                yield "failed", self.info
                return
            every = self.request.get("preview_every", 0)
            if every and self.info["step"] % every == 0:
                yield "preview", {"step": self.info["step"], "steps": self.info["steps"],
                                  "b64_png": base64.b64encode(png(self.info["step"])).decode()}
            yield "progress", self.info
        self.end("cancelled" if self.cancelled.is_set() else "succeeded")
        yield self.info["state"], self.info


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status, kind, message, param=None, code="bad_request"):
        self.answer(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.route("POST", body)

    def do_GET(self):
        self.route("GET", b"")

    def route(self, method, body):
        fake = self.server.fake
        if fake.key and self.headers.get("Authorization") != f"Bearer {fake.key}":
            return self.refuse(401, "authentication_error", "a key is needed", code="refused")
        path, _, query = self.path.partition("?")
        if path == "/v1/models":
            return self.answer(200, {"object": "list", "data": [{"id": "fake", "object": "model"}]})
        if path == "/api/v1/options":
            return self.answer(200, OPTIONS)
        if path == "/api/v1/silent":
            fake.closing.wait()
            return None
        if path == "/api/v1/garbage":
            return self.answer(502, b"<html>a proxy's page</html>", "text/html")
        if path == "/api/v1/parameters":
            return self.answer(200, {"prompts": ["of a picture"], "seed": 5} if body.startswith(b"\x89PNG") else {})
        parts = path.strip("/").split("/")[2:]
        if parts[:1] != ["jobs"]:
            return self.refuse(404, "not_found_error", f"no {path}", code="not_found")
        if len(parts) == 1:
            return self.submit(json.loads(body)) if method == "POST" else self.answer(
                200, {"jobs": [job.info for job in reversed(fake.jobs)], "next": None})
        try:
            job = fake.jobs[int(parts[1])]
        except (ValueError, IndexError):
            return self.refuse(404, "not_found_error", f"there is no job {parts[1]}", code="not_found")
        rest = parts[2] if len(parts) > 2 else ""
        if rest == "cancel":
            if job.info["state"] in ("succeeded", "failed", "cancelled"):
                return self.refuse(409, "conflict_error", "the job has ended", code="not_found")
            job.cancelled.set()
            return self.answer(200, job.info)
        if rest == "events":
            return self.stream(job)
        if rest == "pictures":
            fake.queries.append(query)
            return self.answer(200, png(100 + int(parts[3]), frames=job.request.get("num_frames", 1)), "image/png")
        if rest == "latents":
            return self.answer(200, npy([0.5, -2.0]), "application/octet-stream")
        if rest == "logs":
            return self.answer(200, b"-- process 1 began", "text/plain")
        return self.answer(200, {"seed": job.request["seed"], "warnings": job.info["warnings"]} if rest == "report" else job.info)

    def submit(self, request):
        fake = self.server.fake
        if request.get("height") == 7:
            return self.refuse(400, "invalid_request_error", "height: is 7, not a multiple of 16", "height")
        if request.get("steps") == 77777:
            return self.refuse(400, "invalid_request_error", "steps: is 77777; see --pp 2", "steps")
        if request.get("num_pipeline_patch") == 7:
            return self.refuse(400, "invalid_request_error", "num_pipeline_patch is 7: at most 4, with `init_image` and `init_latents`", "num_pipeline_patch")
        missing = [file["path"] for file in [*request.get("loras", []), *request.get("embeddings", [])] if "none" in file["path"]]
        if missing:
            return self.refuse(400, "invalid_request_error", f"{missing[0]}: no such file")
        if "prompts" not in request:
            unknown = next((name for name in request if name in ("actor", "stepz")), None)
            return self.refuse(400, "invalid_request_error", f'"{unknown}" is no field of this request', unknown, "unknown_field") \
                if unknown else self.refuse(400, "invalid_request_error", "prompt: is missing", "prompt")
        if request["prompts"][0] == "full":
            return self.refuse(429, "rate_limit_error", "64 jobs are waiting", code="overloaded")
        fake.jobs.append(FakeJob(len(fake.jobs), request))
        self.answer(202, {"id": str(len(fake.jobs) - 1), "state": "queued", "queue_position": 0, "links": {}})

    def stream(self, job):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(b": hello\n\n")
        try:
            for name, data in job.events():
                self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
                if job.prompt == "breaks":
                    return
                if job.prompt == "errs" and job.streams == 1:
                    self.wfile.write(b'event: error\ndata: {"error": {"message": "the cluster is gone"}}\n\n')
                    return
        except OSError:
            pass  # the client has gone


class FakeServer:
    """`with FakeServer() as server`: server.url, and server.jobs as they came in."""

    def __init__(self, key=None):
        self.key = key
        self.jobs = []
        self.queries = []
        self.closing = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.fake = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
