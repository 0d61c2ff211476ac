"""Models whose files are elsewhere or in another form, by the command: files_by_command_test.py TROUPE MADE_FIXTURES

`--fetch` takes a model from a server that speaks the Hub's API, through the real `hf`; a whole .ckpt makes the picture of
the folder that it was made from.
"""
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/fixtures/tiny-pixart"
HF = pathlib.Path(os.environ.get("TROUPE_DEPS", ROOT / ".deps")) / "reference/bin"
SHA = "0123456789abcdef0123456789abcdef01234567"
# Files of published repositories that are not read.
OTHERS = {"README.md": b"a card", "transformer/diffusion_pytorch_model.fp16.safetensors": b"half", "model.ckpt": b"whole",
          "safety_checker/model.safetensors": b"never run"}
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


class Hub(http.server.ThreadingHTTPServer):
    """A server with one repository under any name: gated where it is of `gated`, none where it is of `nobody`."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {str(path.relative_to(MODEL)): path.read_bytes() for path in MODEL.rglob("*") if path.is_file()} | OTHERS
        self.sent = []  # names
        self.cuts = set()  # files whose next answer ends in its middle
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=None):
        self.send_response(status)
        for name, value in ({"Content-Length": len(body)} | (headers or {})).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        words = urllib.parse.unquote(urllib.parse.urlparse(self.path).path).strip("/").split("/")
        if len(words) < 3:
            return self.answer(200)
        owner = words[2] if words[0] == "api" else words[0]
        if owner == "nobody":
            return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if owner == "gated" and self.headers.get("Authorization") != "Bearer hf_let_in":
            return self.answer(401, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        if words[0] == "api" and words[4:5] == ["revision"]:
            about = {"id": "/".join(words[2:4]), "sha": SHA, "siblings": [], "private": False, "tags": []}
            return self.answer(200, json.dumps(about).encode(), {"Content-Type": "application/json"})
        if words[0] == "api" and words[4:5] == ["tree"]:
            tree = [{"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in self.server.files.items()]
            return self.answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        name = "/".join(words[4:])
        if words[2:3] != ["resolve"] or name not in self.server.files:
            return self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        data = self.server.files[name]
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": SHA}
        if self.command == "HEAD":
            return self.answer(200, data, headers)
        self.server.sent.append(name)
        if name in self.server.cuts:
            self.server.cuts.remove(name)
            self.send_response(200)
            for key, value in ({"Content-Length": len(data)} | headers).items():
                self.send_header(key, str(value))
            self.end_headers()
            self.wfile.write(data[:len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return None
        return self.answer(200, data, headers)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-files-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.hub = Hub()
        self.addCleanup(self.hub.server_close)
        self.addCleanup(self.hub.shutdown)

    def run_model(self, model, *options, status=0, **variables):
        """Runs one step of a model and returns its latents, or what was said where it ends with another status."""
        latents = self.folder / "latents.safetensors"
        done = subprocess.run(
            [TROUPE, "run", "--model", model, "--prompt", "a cat", "--height", "64", "--width", "64", "--steps", "1", "--output-type", "latent",
             "--output", latents, *options], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600,
            env={"PATH": f"{HF}:/usr/bin:/bin", "HOME": str(self.folder), "TMPDIR": str(self.folder), "HF_HUB_DISABLE_XET": "1",
                 "HF_ENDPOINT": f"http://127.0.0.1:{self.hub.server_address[1]}", "HF_HOME": str(self.folder / "hub")} | variables)
        self.assertEqual(done.returncode, status, done.stderr)
        if status != 0:
            return done.stderr
        return latents.read_bytes()

    def test_fetched(self):
        self.assertIn("--fetch", self.run_model("org/tiny", status=1))
        self.assertEqual(self.hub.sent, [])
        expected = self.run_model(str(MODEL))
        # What was cut off is fetched again.
        self.hub.cuts.add(WEIGHTS)
        if self.run_once_more_where_cut("org/tiny") != expected:
            self.fail("what was fetched makes another picture")
        self.assertEqual(set(self.hub.sent), {str(path.relative_to(MODEL)) for path in MODEL.rglob("*") if path.is_file()})
        self.assertGreater(self.hub.sent.count(WEIGHTS), 1)
        # What is there is fetched by nobody, and opens without a network.
        self.hub.sent.clear()
        self.assertEqual(self.run_model("org/tiny", "--fetch"), expected)
        self.assertEqual(self.run_model("org/tiny", HF_HUB_OFFLINE="1"), expected)
        self.assertEqual(self.hub.sent, [])

    def run_once_more_where_cut(self, model):
        """Fetches a model; where `hf` itself does not go on after a cut, a second call does."""
        try:
            return self.run_model(model, "--fetch")
        except AssertionError:
            return self.run_model(model, "--fetch")

    def test_refused(self):
        self.assertIn("HF_HUB_OFFLINE", self.run_model("org/tiny", "--fetch", status=1, HF_HUB_OFFLINE="1"))
        self.assertIn("nobody/tiny", self.run_model("nobody/tiny", "--fetch", status=1))
        self.assertIn("gated/tiny", self.run_model("gated/tiny", "--fetch", status=1))
        self.assertEqual(self.hub.sent, [])
        self.assertEqual(self.run_model("gated/tiny", "--fetch", HF_TOKEN="hf_let_in"), self.run_model(str(MODEL)))

    def test_whole_checkpoint(self):
        base = str(ROOT / "tests/fixtures/tiny-sd15")
        self.assertEqual(self.run_model(str(MADE / "torch-files/whole.ckpt"), "--base", base), self.run_model(base))


if __name__ == "__main__":
    TROUPE, MADE = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    if not (HF / "hf").exists():
        print("no made fixtures")
        sys.exit(0)
    unittest.main()
