"""What deploy/ says, held against published schemas, and run: processes of this machine play Kubernetes and Compose.

usage: deploy_test.py, with TROUPE naming the command
A pod's init containers and containers run with the manifests' own arguments, in which only paths, the service's name, ports,
the number of actors and the device are this machine's; probes are asked as a kubelet does, SIGTERM comes as it sends it.
"""
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
import warnings

import kubernetes_validate
import numpy as np
import troupe
import yaml
from free_ports import free_port_pair
from holds import Holds

warnings.simplefilter("ignore", troupe.TroupeWarning)  # pictures here are small
ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = [path for path in sorted(DEPLOY.glob("kubernetes/*.yaml")) if path.name != "kustomization.yaml"]
TROUPE = os.environ.get("TROUPE", "")
PROMPT = "a red circle above a blue square on a white background"
PATIENCE = 300.0


def documents():
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]


def named(kind, name):
    return next(document for document in documents() if (document["kind"], document["metadata"]["name"]) == (kind, name))


def eventually(true, what):
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.1)


class Files(unittest.TestCase):
    def test_manifests_are_what_kubernetes_publishes(self):
        for document in documents():
            kubernetes_validate.validate(document, "1.37", strict=True)
        listed = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
        self.assertEqual(sorted(listed), [path.name for path in MANIFESTS])

    def test_manifests_fit_each_other(self):
        workloads = [document for document in documents() if document["kind"] in ("StatefulSet", "Deployment")]
        self.assertEqual(len(workloads), 3)
        for workload in workloads:
            template = workload["spec"]["template"]
            labels, pod = template["metadata"]["labels"], template["spec"]
            with self.subTest(workload["metadata"]["name"]):
                self.assertEqual(workload["spec"]["selector"]["matchLabels"], labels)
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                volumes = {volume["name"] for volume in pod["volumes"]}
                volumes |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
                for container in pod["initContainers"] + pod["containers"]:
                    self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)
                    self.assertFalse(container["securityContext"]["allowPrivilegeEscalation"])
                services = [document for document in documents() if document["kind"] == "Service" and document["spec"]["selector"] == labels]
                self.assertEqual(len(services), 1)
                if workload["kind"] == "StatefulSet":
                    self.assertEqual(workload["spec"]["serviceName"], services[0]["metadata"]["name"])
        host = named("StatefulSet", "troupe-host")["spec"]["template"]["spec"]
        arguments = host["containers"][0]["args"]
        self.assertLess(int(arguments[arguments.index("--drain-deadline") + 1]), host["terminationGracePeriodSeconds"])
        self.assertEqual(arguments[arguments.index("--actors") + 1], host["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])

    def test_image(self):
        recipe = (DEPLOY / "Dockerfile").read_text()
        self.assertEqual(recipe.count("\nFROM "), 2)
        self.assertIn("\nUSER 10001:10001\n", recipe)
        for line in recipe.splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                self.assertTrue((ROOT / line.split()[1]).exists(), line)

    @unittest.skipUnless(TROUPE and shutil.which("dpkg"), "needs a build, and Debian's packages")
    def test_packages_of_the_image(self):
        done = subprocess.run([DEPLOY / "runtime-packages", TROUPE], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual({"libc6", "libstdc++6", "libzmq5"}, set(done.stdout.split()))

    def test_compose(self):
        for name in ("compose.yaml", "compose.gpu.yaml"):
            document = yaml.safe_load((DEPLOY / name).read_text())
            for service in document["services"].values():
                for volume in service.get("volumes", []):
                    source = volume.partition(":")[0]
                    self.assertTrue(source.startswith("$") or source in document["volumes"], volume)


class Pod:
    """A pod of a workload as processes. `replace`: texts of the manifest, to this machine's."""

    def __init__(self, spec, folder, replace, environment, command="args"):
        self.folder, self.replace = folder, replace
        folder.mkdir(parents=True)
        self.environment = {**{key: value for key, value in os.environ.items() if not key.startswith("TROUPE_")},
                            "PATH": f"{pathlib.Path(TROUPE).parent}:{os.environ['PATH']}",
                            "XDG_RUNTIME_DIR": str(folder), **environment}
        for container in spec.get("initContainers", []):
            subprocess.run(self.words(container["command"]), env=self.environment, check=True)
        self.container = spec["containers"][0]
        for entry in self.container.get("env", []):
            if "value" in entry:
                self.environment[entry["name"]] = self.words([entry["value"]])[0]
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([TROUPE, *self.words(self.container[command])], env=self.environment, stdout=log, stderr=log)

    def words(self, words):
        result = []
        for word in words:
            for old, new in self.replace.items():
                word = word.replace(old, new)
            for name, value in self.environment.items():
                word = word.replace(f"$({name})", value)
            result.append(word)
        # A process here is one actor on the CPU, whatever the manifest's machines have.
        for option, value in (("--device", "cpu"), ("--actors", "1")):
            if option in result and result[result.index(option) + 1] != "0":
                result[result.index(option) + 1] = value
        return result

    def probe(self, name):
        """Whether this probe, exec or of HTTP, succeeds."""
        probe = self.container[name]
        if "exec" in probe:
            done = subprocess.run(self.words(probe["exec"]["command"]), env=self.environment, capture_output=True)
            return done.returncode == 0
        try:
            with urllib.request.urlopen(self.url() + probe["httpGet"]["path"], timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def url(self):
        return next((word for word in self.log.read_text().split() if word.startswith("http://")), "http://127.0.0.1:1").rstrip("/")

    def await_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}: {self.log.read_text()}")
            return self.probe("readinessProbe")

        eventually(ready, f"{self.container['name']} is ready: {self.log.read_text()}")

    def terminate(self, grace):
        """As a kubelet: SIGTERM, and SIGKILL after the grace period. Returns the exit code."""
        self.process.terminate()
        try:
            return self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not end within its {grace} s of grace: {self.log.read_text()}")

    def kill(self):
        self.process.kill()
        self.process.wait()


@unittest.skipUnless(TROUPE, "TROUPE names no command")
class Engine(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        # Short, since paths of sockets are.
        self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="tk-", ignore_cleanup_errors=True)))
        (self.folder / "models").mkdir()
        (self.folder / "models" / "default").symlink_to(ROOT / "examples" / "demo" / "model")
        self.count = 0

    def keys(self):
        """The secrets, by the commands of docs/deploy.md."""
        run = lambda *words: subprocess.run([TROUPE, *words], check=True, capture_output=True, text=True).stdout
        keys = self.folder / "secrets" / "controller"
        run("keys", "--keys", str(keys))
        for name, role in (("host", "operate"), ("gateway", "all-jobs")):
            run("keys", "add", name, "--role", role, "--keys", str(keys), "--output", str(self.folder / "secrets" / name))
        api = self.folder / "secrets" / "api"
        api.mkdir()
        self.api_key = run("serve", "--api-keys", str(api / "api-keys"), "--new-key", "me").strip()

    def pod(self, workload, secret, name, port):
        self.count += 1
        folder = self.folder / f"p{self.count}"
        replace = {"tcp://troupe-controller:7400": f"tcp://127.0.0.1:{port}", "0.0.0.0:7400": f"127.0.0.1:{port}",
                   "127.0.0.1:7400": f"127.0.0.1:{port}", "0.0.0.0:7480": "127.0.0.1:0", "/secret/": f"{self.folder}/secrets/{secret}/",
                   "/api/*": f"{self.folder}/secrets/api/*", "/keys/": f"{folder}/keys/", "/models": f"{self.folder}/models",
                   "/data/": f"{self.folder}/data/"}
        pod = Pod(workload["spec"]["template"]["spec"], folder, replace, {"POD_NAME": name})
        self.stack.callback(pod.kill)
        return pod

    def test_kubernetes(self):
        self.keys()
        (self.folder / "data").mkdir()
        port = free_port_pair()
        hosts = named("StatefulSet", "troupe-host")
        grace = hosts["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

        def start(name, kind="StatefulSet", workload=None, secret=None):
            return self.pod(named(kind, workload or name), secret, name, port)

        controller = start("troupe-controller", secret="controller")
        gateway = start("troupe-gateway", "Deployment", secret="gateway")
        host = lambda number: start(f"troupe-host-{number}", workload="troupe-host", secret="host")
        zero, one = host(0), host(1)
        for pod in (controller, zero, one, gateway):
            pod.await_ready()
        with self.assertRaises(urllib.error.HTTPError):
            urllib.request.urlopen(gateway.url() + "/api/v1/jobs", timeout=PATIENCE)
        pipe = troupe.TroupePipeline.connect(gateway.url(), api_key=self.api_key)
        pipe.set_progress_bar_config(disable=True)
        call = dict(num_inference_steps=20, height=128, width=128, seed=7, cfg=2, elastic=True)
        undisturbed = np.asarray(pipe(PROMPT, **call).images[0], np.int16)

        holds = Holds(TROUPE, f"tcp://127.0.0.1:{port}", "--keys", str(self.folder / "secrets" / "controller"))
        actors = lambda: {row["host"]: row["id"] for row in holds.actors() if row["state"] in ("ready", "busy")}

        def able(count):
            eventually(lambda: pipe.client.health()["clusters"][0].get("actors_ready") == count, f"{count} actors can paint")

        # The engine takes a host away, then kills one, then moves the controller, each time while a job is held at a step.
        able(2)
        holds.hold(*actors().values(), at="step 5")
        job = pipe.submit(PROMPT, **call)
        holds.held(actors()["troupe-host-0"])
        last = actors()["troupe-host-1"]
        holds.held(last)
        holds.hold(last, at="step 10")
        self.assertEqual(zero.terminate(grace), 0)
        holds.held(last)
        zero = host(0)
        zero.await_ready()
        able(2)
        eventually(lambda: job.refresh().state == "running", f"{job} goes on")
        one.kill()
        able(1)
        one = host(1)
        job.wait(PATIENCE)
        self.assertEqual(job.state, "succeeded", job.info)
        self.assertTrue(job.report()["recoveries"])
        self.assertLessEqual(np.abs(np.asarray(job.result()[0], np.int16) - undisturbed).max(), 1)

        able(2)
        holds.hold(*actors().values(), at="step 5")
        job = pipe.submit(PROMPT, **call)
        holds.held(*actors().values())
        controller.terminate(30)
        # Hosts wait for their controller, which comes back.
        controller = start("troupe-controller", secret="controller")
        controller.await_ready()
        job.wait(PATIENCE)
        self.assertEqual([pod.process.poll() for pod in (zero, one)], [None, None])
        self.assertEqual(job.state, "succeeded", job.info)
        self.assertLessEqual(np.abs(np.asarray(job.result()[0], np.int16) - undisturbed).max(), 1)
        able(2)  # who has not joined yet would not leave in order
        for pod in (gateway, zero, one, controller):
            self.assertEqual(pod.terminate(grace), 0, pod.log.read_text())

    def test_compose(self):
        services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        replace = {"ipc:///run/troupe": f"ipc://{self.folder}/run", "/model": f"{self.folder}/models/default", "/journal": f"{self.folder}/journal",
                   "${TROUPE_ACTORS:-1}": "1", "0.0.0.0:7480": "127.0.0.1:0"}
        (self.folder / "run").mkdir(mode=0o700)

        def start(name):
            pod = Pod({"containers": [{"name": name, **services[name]}]}, self.folder / name, replace, {}, "command")
            self.stack.callback(pod.kill)
            return pod

        cluster = start("cluster")
        health = services["cluster"]["healthcheck"]["test"]
        self.assertEqual(health[0], "CMD")
        eventually(lambda: subprocess.run(cluster.words(health[1:]), env=cluster.environment, capture_output=True).returncode == 0, "healthy")
        gateway = start("gateway")
        # As the image's HEALTHCHECK asks.
        eventually(lambda: subprocess.run([DEPLOY / "health", gateway.url().rpartition(":")[2]], capture_output=True).returncode == 0, "health")
        picture = troupe.TroupePipeline.connect(gateway.url())(PROMPT, num_inference_steps=2, height=128, width=128).images[0]
        self.assertEqual(picture.size, (128, 128))
        cluster.terminate(30)
        eventually(lambda: subprocess.run([DEPLOY / "health", gateway.url().rpartition(":")[2]], capture_output=True).returncode != 0, "ill")
        self.assertEqual(gateway.terminate(10), 0)


if __name__ == "__main__":
    unittest.main()
