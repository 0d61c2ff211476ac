"""The nodes of examples/comfyui.

Against ComfyUI's node interface, with stand-ins for the four of its functions that they use, and a fake server. With
COMFYUI=FOLDER (and a Python that ComfyUI runs with) also inside that ComfyUI, as its users would: POST /prompt, previews over
its web socket, POST /interrupt. TROUPE_URL names a real server for that; else it is the fake one, too.
"""
import asyncio
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import urllib.request
from unittest import mock

import numpy as np
import troupe
from fake_server import FakeServer
from free_ports import free_port_pair

NODES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "comfyui"
COMFYUI = os.environ.get("COMFYUI")


class Interrupted(Exception):
    """ComfyUI's InterruptProcessingException."""


class Comfy:
    """ComfyUI's side: progress bars and the flag of the cancel button."""

    def __init__(self):
        self.progress = []
        self.interrupted = False

    def modules(self):
        comfy = self

        class ProgressBar:
            def __init__(self, total):
                self.total = total

            def update_absolute(self, value, total=None, preview=None):
                comfy.progress.append((value, total or self.total, preview))

        def throw():
            if comfy.interrupted:
                comfy.interrupted = False
                raise Interrupted

        management = types.SimpleNamespace(processing_interrupted=lambda: comfy.interrupted, throw_exception_if_processing_interrupted=throw)
        utils = types.SimpleNamespace(ProgressBar=ProgressBar)
        return {"comfy": types.SimpleNamespace(model_management=management, utils=utils), "comfy.model_management": management,
                "comfy.utils": utils, "torch": types.SimpleNamespace(from_numpy=lambda array: array)}


class Tensor:
    """The part of an IMAGE that the node uses."""

    def __init__(self, array):
        self.array = array

    def __getitem__(self, index):
        return Tensor(self.array[index])

    def cpu(self):
        return self

    def numpy(self):
        return self.array


class Nodes(unittest.TestCase):
    def setUp(self):
        self.server = FakeServer()
        self.server.__enter__()
        self.addCleanup(self.server.__exit__)
        self.comfy = Comfy()
        spec = importlib.util.spec_from_file_location("troupe_nodes", NODES / "__init__.py")
        self.nodes = importlib.util.module_from_spec(spec)
        with mock.patch.dict(sys.modules, self.comfy.modules()):
            spec.loader.exec_module(self.nodes)

    def run_node(self, name, **inputs):
        """As ComfyUI calls it: inputs that INPUT_TYPES knows, those it requires, defaults by its widgets."""
        node = self.nodes.NODE_CLASS_MAPPINGS[name]
        types_of = node.INPUT_TYPES()
        known = {**types_of["required"], **types_of.get("optional", {})}
        self.assertLessEqual(set(inputs), set(known))
        for key, spec in types_of["required"].items():
            if key not in inputs:
                inputs[key] = spec[1].get("default", "")
        result = getattr(node(), node.FUNCTION)(**inputs)
        self.assertEqual(len(result), len(node.RETURN_TYPES))
        return result[0]

    def test_a_chain_of_nodes(self):
        cluster = self.run_node("TroupeConnect", url=self.server.url, model="/models/pixart", options='{"pp": 2}')
        with_loras = self.run_node("TroupeLora", cluster=cluster, path="/loras/a.safetensors", scale=0.5)
        with_loras = self.run_node("TroupeLora", cluster=with_loras, path="/loras/b.safetensors", transformer_2=True)
        with_loras = self.run_node("TroupeEmbedding", cluster=with_loras, path="/words/cat.safetensors", token="<cat>")
        images = self.run_node("TroupeGenerate", cluster=with_loras, prompt="a cat", steps=3, guidance_scale=0.0, batch_size=2, width=64, seed=5,
                               image=Tensor(np.full((1, 2, 4, 3), 1.1, np.float32)), mask=Tensor(np.ones((1, 2, 4), np.float32)),
                               strength=0.6)
        self.assertEqual((images.shape, images.dtype), ((2, 2, 4, 3), np.float32))
        request = self.server.jobs[-1].request
        self.assertEqual(len(request.pop("image")), 1)
        self.assertTrue(request.pop("mask_image"))
        self.assertEqual(request, {
            "prompts": ["a cat"], "seed": 5, "steps": 3, "guidance_scale": 0.0, "width": 64,
            "images_per_prompt": 2, "strength": 0.6, "preview_every": 1, "model": "/models/pixart", "pp": 2,
            "loras": [{"path": "/loras/a.safetensors", "scale": 0.5}, {"path": "/loras/b.safetensors", "scale": 1.0, "transformer_2": True}],
            "embeddings": [{"path": "/words/cat.safetensors", "token": "<cat>"}]})
        with self.assertRaisesRegex(ValueError, 'negative_prompt: has "embedding:bad"; the node'):
            self.run_node("TroupeGenerate", cluster=cluster, prompt="a cat", negative_prompt="dull, embedding:bad")
        self.run_node("TroupeGenerate", cluster=cluster, prompt="a cat")
        left = self.server.jobs[-1].request
        self.assertFalse({"loras", "steps", "guidance_scale", "negative_prompt", "strength"} & set(left))
        self.assertEqual([(value, total) for value, total, _ in self.comfy.progress[:3]], [(1, 3), (2, 3), (3, 3)])
        kind, preview, largest = self.comfy.progress[0][2]
        self.assertEqual((kind, preview.size, largest), ("JPEG", (4, 2), 512))

    def test_cancel(self):
        cluster = self.run_node("TroupeConnect", url=self.server.url)

        def cancel():
            while not self.server.jobs or self.server.jobs[-1].info["step"] == 0:
                time.sleep(0.01)
            self.comfy.interrupted = True

        button = threading.Thread(target=cancel, daemon=True)
        button.start()
        with self.assertRaises(Interrupted):
            self.run_node("TroupeGenerate", cluster=cluster, prompt="slow")
        button.join()
        self.assertTrue(self.server.jobs[-1].cancelled.is_set())
        self.run_node("TroupeGenerate", cluster=cluster, prompt="a cat")

    def test_errors_reach_the_user(self):
        cluster = self.run_node("TroupeConnect", url=self.server.url)
        with self.assertRaisesRegex(troupe.JobFailedError, "killed by signal 9"):
            self.run_node("TroupeGenerate", cluster=cluster, prompt="fails")
        with self.assertRaises(troupe.APIConnectionError):
            self.run_node("TroupeConnect", url="http://127.0.0.1:1")
        for options, message in (("{pp: 2}", "options: no JSON: .*line 1 column 2"), ("[1]", "options: a JSON object")):
            with self.assertRaisesRegex(ValueError, message):
                self.run_node("TroupeConnect", url=self.server.url, options=options)

    def test_the_workflow_fits_the_nodes(self):
        workflow = json.loads((NODES / "workflow.json").read_text())
        for entry in workflow.values():
            if entry["class_type"] in self.nodes.NODE_CLASS_MAPPINGS:
                types_of = self.nodes.NODE_CLASS_MAPPINGS[entry["class_type"]].INPUT_TYPES()
                self.assertLessEqual(set(types_of["required"]), set(entry["inputs"]))
                self.assertLessEqual(set(entry["inputs"]), set(types_of["required"]) | set(types_of.get("optional", {})))


@unittest.skipUnless(COMFYUI, "COMFYUI names no ComfyUI")
class InsideComfyUI(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="troupe-comfyui-", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "custom_nodes").mkdir()
        (self.folder / "custom_nodes" / "troupe").symlink_to(NODES)
        (self.folder / "page").mkdir()
        (self.folder / "page" / "index.html").write_text("none")
        self.port = free_port_pair()
        self.log = open(self.folder / "log", "w+")
        self.addCleanup(self.log.close)
        self.process = subprocess.Popen(
            [sys.executable, "main.py", "--cpu", "--port", str(self.port), "--base-directory", str(self.folder),
             "--front-end-root", str(self.folder / "page"), "--database-url", "sqlite:///:memory:"],
            cwd=COMFYUI, stdout=self.log, stderr=subprocess.STDOUT)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        for _ in range(5000):
            try:
                return self.call("/system_stats")
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        self.fail((self.folder / "log").read_text())

    def call(self, path, document=None):
        data = None if document is None else json.dumps(document).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, timeout=30) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def run_workflow(self, workflow, interrupt_at=None):
        """The kinds of messages on the web socket, steps of the progress, and the bytes of previews."""
        import aiohttp

        async def main():
            kinds, steps, previews = [], [], 0
            async with aiohttp.ClientSession() as session:
                async with session.ws_connect(f"http://127.0.0.1:{self.port}/ws?clientId=test") as sock:
                    await asyncio.to_thread(self.call, "/prompt", {"prompt": workflow, "client_id": "test"})
                    async for message in sock:
                        if message.type == aiohttp.WSMsgType.BINARY:
                            previews += 1
                            continue
                        event = json.loads(message.data)
                        kinds.append(event["type"])
                        if event["type"] == "progress":
                            steps.append((event["data"]["node"], event["data"]["value"], event["data"]["max"]))
                            if event["data"]["value"] == interrupt_at:
                                await asyncio.to_thread(self.call, "/interrupt", {})
                        if event["type"] in ("execution_success", "execution_interrupted", "execution_error"):
                            if event["type"] == "execution_error":
                                self.fail(event["data"])
                            return kinds, steps, previews

        return asyncio.run(asyncio.wait_for(main(), 120))

    def test_as_a_user_would(self):
        with FakeServer() as fake:
            url = os.environ.get("TROUPE_URL", fake.url)
            known = self.call("/object_info/TroupeGenerate")["TroupeGenerate"]
            self.assertEqual(known["output"], ["IMAGE"])
            workflow = json.loads((NODES / "workflow.json").read_text())
            workflow["1"]["inputs"]["url"] = url
            kinds, steps, previews = self.run_workflow(workflow)
            self.assertEqual(steps, [("2", step, 20) for step in range(1, 21)])
            self.assertGreater(previews, 10)
            self.assertEqual(kinds[-1], "execution_success")
            picture = next((self.folder / "output").glob("troupe*.png"))
            self.assertTrue(picture.read_bytes().startswith(b"\x89PNG"))
            # Long enough to be cancelled.
            workflow["2"]["inputs"].update(prompt="slow", steps=1000)
            kinds, steps, _ = self.run_workflow(workflow, interrupt_at=3)
            self.assertEqual(kinds[-1], "execution_interrupted")
            self.assertLess(steps[-1][1], 100)
            self.assertEqual(troupe.Client(url).jobs()[0].state, "cancelled")


if __name__ == "__main__":
    unittest.main()
