"""The runner of scripts/gpu-check and the packing, without anything to run or to pack: python3 tests/gpu/first_hour_test.py."""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "gpu"))
sys.dont_write_bytecode = True

import first_hour  # noqa: E402
import latents  # noqa: E402
import pack  # noqa: E402
import parts  # noqa: E402
import record  # noqa: E402
import rows  # noqa: E402
import shapes  # noqa: E402
import whole_jobs  # noqa: E402

PARTS = list(parts.PARTS)
ROW = 'import json; print(json.dumps({"name": "a kernel", "value": 50.0, "unit": "us", "bytes": 4.3e6}), flush=True)\n'
# A child in a process group of its own, as an actor is
CHILD = "import os, subprocess, sys, time; p = subprocess.Popen(['sleep', '300'], process_group=0); print(p.pid, flush=True)\n"


def part(name, code, seconds=20, call=1, **more):
    return parts.Part(call, name, seconds, lambda args, found: [sys.executable, "-c", code], **more)


def alive(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Folder(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)


class Runner(Folder):
    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, parts, "PARTS", parts.PARTS)
        self.addCleanup(setattr, parts, "patience", parts.patience)
        parts.patience = lambda args: 1
        for name, value in (("GRACE", 0.5), ("KILLING", 0.3), ("READING", 0.2), ("ENDING", 1), ("TOO_LITTLE", 2)):
            self.addCleanup(setattr, first_hour, name, getattr(first_hour, name))
            setattr(first_hour, name, value)
        self.predictions = self.folder / "predictions.json"
        self.predictions.write_text(json.dumps({"rows": {"ceilings/copy": {"value": 4300, "unit": "GB/s"}, "quick/a kernel": {"value": 20, "unit": "us"}}}))
        self.addCleanup(setattr, record.Record.__init__, "__defaults__", record.Record.__init__.__defaults__)
        record.Record.__init__.__defaults__ = (self.folder / "measured.json", self.predictions)

    def run_parts(self, *made, call=1, seconds=60, only="", rehearse=True):
        parts.PARTS = list(made)
        args = argparse.Namespace(call=call, bin=self.folder, out=self.folder / "out", work=self.folder / "work", seconds=seconds, only=only,
                                  rehearse=rehearse, quick=False, library_path="")
        status = first_hour.Call(args).run()
        return status, json.loads((self.folder / "out" / "gpu-check.json").read_text())["parts"], (self.folder / "out" / "gpu-check.md").read_text()

    def test_what_was_found_before_a_hang_or_a_death_stays(self):
        status, found, table = self.run_parts(
            part("hangs", ROW + CHILD + "time.sleep(300)", 8), part("dies", ROW + "import os; os.abort()"), part("fails", ROW + "raise SystemExit(3)"),
            part("says no", 'print(\'{"name": "nearness", "value": 1, "ok": false}\')'), part("quick", ROW))
        self.assertEqual(status, 1)
        self.assertEqual([found[name]["outcome"] for name in ("hangs", "dies", "fails", "says no", "quick")],
                         ["out of time", "failed", "failed", "failed", "passed"])
        for name in ("hangs", "dies", "fails", "quick"):
            self.assertEqual(found[name]["rows"][0]["name"], "a kernel")
        self.assertLess(found["hangs"]["seconds"], 30)
        self.assertIn("| a kernel | 50 | us | 20 | 1 | 2 % |", table)
        self.assertIn("**FAILED**", table)
        with tarfile.open(self.folder / "out" / "logs.tar.xz") as logs:
            self.assertIn("logs/dies.log", logs.getnames())
            child = int(logs.extractfile("logs/hangs.log").read().split(b"\n")[1])
        self.assertFalse(alive(child))

    def test_calls_add_to_one_record(self):
        self.run_parts(part("first", ROW))
        (self.folder / "measured.json").write_text((self.folder / "out" / "gpu-check.json").read_text())
        (self.folder / "out" / "gpu-check.json").unlink()
        status, found, table = self.run_parts(part("second", ROW, call=2), call=2)
        self.assertEqual((status, sorted(found)), (0, ["first", "second"]))
        self.assertIn("## second", table)

    def test_a_part_gets_what_is_left_of_the_call_and_none_where_that_is_too_little(self):
        begun = time.monotonic()
        status, found, _ = self.run_parts(part("long", ROW + "import time; time.sleep(600)", 400), part("late", ROW), seconds=6)
        self.assertLess(time.monotonic() - begun, 300)  # neither the part's own time nor its end
        self.assertEqual(status, 1)
        self.assertEqual([found["long"]["outcome"], found["late"]["outcome"]], ["out of time", "out of time"])
        self.assertGreater(found["long"]["seconds"], 4.5)
        self.assertEqual(len(found["long"]["rows"]), 1)
        self.assertRegex(found["late"]["tail"][0], "not begun: it needs 2 s, [01] were left for it of the 6 s of the call")

    def test_what_cannot_be_killed_is_left_behind(self):
        real, pids = os.kill, []
        self.addCleanup(lambda: [real(pid, signal.SIGKILL) for pid in set(pids)])
        self.addCleanup(setattr, os, "kill", real)
        os.kill = lambda pid, number: pids.append(pid)
        begun = time.monotonic()
        status, found, _ = self.run_parts(part("stuck", ROW + "import time; time.sleep(300)", 1), part("next", ROW), seconds=60)
        self.assertLess(time.monotonic() - begun, 60)
        self.assertEqual([found["stuck"]["outcome"], found["next"]["outcome"]], ["out of time", "passed"])

    def test_a_part_that_says_too_much_is_cut_off(self):
        self.addCleanup(setattr, first_hour, "LONGEST_LOG", first_hour.LONGEST_LOG)
        first_hour.LONGEST_LOG = 1000
        _, found, _ = self.run_parts(part("loud", "for i in range(10000): print('x' * 99)\n" + ROW))
        self.assertEqual([found["loud"]["outcome"], len(found["loud"]["rows"])], ["passed", 1])
        self.assertLess((self.folder / "work" / "logs" / "loud.log").stat().st_size, 1200)

    def test_every_call_ends_in_time_whatever_its_parts_do(self):
        """The parts as they are, each until its limit: by a clock that they turn."""
        now, given = [0.0], {}
        self.addCleanup(setattr, first_hour.Call, "watch", first_hour.Call.watch)
        self.addCleanup(setattr, first_hour.time, "monotonic", time.monotonic)
        self.addCleanup(setattr, first_hour.time, "sleep", time.sleep)

        def watch(call, part, command, seconds):
            given[part.name] = seconds
            now[0] += seconds + first_hour.ENDING
            return "out of time", []

        first_hour.Call.watch = watch
        first_hour.time.monotonic = lambda: now[0]
        (self.folder / "troupe").touch()
        first_hour.GRACE, first_hour.KILLING, first_hour.READING, first_hour.ENDING, first_hour.TOO_LITTLE = 3, 2, 2, 7, 10
        for call in (1, 2, 3):
            now[0] = 0
            mine = [each for each in PARTS if each.call == call]
            _, found, _ = self.run_parts(*mine, call=call, seconds=550, rehearse=False)
            self.assertLessEqual(now[0], 550, call)
            self.assertGreater(now[0], 500, call)
            for each in mine:
                self.assertIn(each.name, found)
                self.assertTrue(each.name in given or "not begun" in found[each.name]["tail"][0], each.name)
        # What proves the whole path comes before what measures
        for name in ("linked", "kernels-test", "models-test", "beside-pixart", "job", "jobs-pixart", "kill", "sticky", "jobs-flux", "slowest"):
            self.assertEqual(given[name], next(each.seconds for each in PARTS if each.name == name), name)
        self.assertEqual(given["nccl-test"], 110)

    def test_time_is_held_back_for_a_part_that_is_kept(self):
        status, found, _ = self.run_parts(
            part("long", "import time; time.sleep(60)", 60), part("at leisure", ROW, needs=8), part("last", ROW, 8, kept=True), seconds=14)
        self.assertEqual(status, 1)
        self.assertEqual([found[name]["outcome"] for name in ("long", "at leisure", "last")], ["out of time", "left out", "passed"])
        self.assertIn("it needs 8 s", found["at leisure"]["tail"][0])

    def test_a_part_that_has_no_place_here_is_no_failure(self):
        status, found, _ = self.run_parts(part("elsewhere", "print('no profiler here'); raise SystemExit(77)"))
        self.assertEqual((status, found["elsewhere"]["outcome"], found["elsewhere"]["tail"]), (0, "left out", ["no profiler here"]))

    def test_a_line_that_is_no_row_is_a_line(self):
        for line in ("", "{", '{"value": 1}', '{"name": 3}', '{"name": "cut', "a kernel"):
            self.assertIsNone(rows.read(line))


class Script(Folder):
    def test_a_call_that_hangs_beside_its_parts_ends_in_time(self):
        python = self.folder / "python"
        python.write_text("#!/bin/sh\nsleep 300\n")
        python.chmod(0o755)
        begun = time.monotonic()
        done = subprocess.run([ROOT / "scripts" / "gpu-check", "1", "--rehearse", "--seconds", "10"], capture_output=True, text=True,
                              env=dict(os.environ, TROUPE_GPU_PYTHON=str(python), OUT=str(self.folder / "out")))
        self.assertLess(time.monotonic() - begun, 200)  # not when its program ends
        self.assertEqual(done.returncode, 1)
        self.assertIn("call 1 did not end by itself within its 10 s", done.stderr)


class Parts(unittest.TestCase):
    def test_every_part_of_every_call_has_a_command(self):
        for rehearse in (False, True):
            args = argparse.Namespace(bin=pathlib.Path("/bin"), out=pathlib.Path("/out"), work=pathlib.Path("/work"), rehearse=rehearse, quick=False, library_path="")
            for each in parts.PARTS:
                command = each.command(args, None)
                self.assertTrue(command is None or all(isinstance(word, (str, os.PathLike)) for word in command), each.name)
                self.assertTrue(command or rehearse, each.name)
        self.assertEqual([each.name for each in parts.PARTS if each.call == 1][-1], "nccl-test")
        self.assertTrue(all(each.kept == (each.name == "nccl-test") for each in parts.PARTS))

    def test_shapes_are_those_of_the_specs(self):
        self.assertEqual(shapes.configs(shapes.SHAPES["flux"])["transformer"]["num_single_layers"], 10)
        self.assertEqual(shapes.configs(shapes.SHAPES["wan"], text_layers=2)["text_encoder"]["num_layers"], 2)
        self.assertEqual(shapes.configs(shapes.SHAPES["sdxl"])["unet"]["block_out_channels"], [320, 640, 1280])

    def test_each_way_is_compared_with_one_actor(self):
        for ways in whole_jobs.WAYS.values():
            for way in ways:
                self.assertIn(way.like, whole_jobs.SINGLE)


class Latents(Folder):
    def write(self, name, values, dtype="F32"):
        import array
        import struct
        data = array.array("f", values).tobytes()
        header = json.dumps({"latents": {"dtype": dtype, "shape": [len(values)], "data_offsets": [0, len(data)]}}).encode()
        (self.folder / name).write_bytes(struct.pack("<Q", len(header)) + header + data)
        return self.folder / name

    def test_difference(self):
        a, b, nan = self.write("a", [3, 4]), self.write("b", [3, 5]), self.write("c", [float("nan"), 0])
        self.assertEqual(latents.difference(a, a), 0)
        self.assertAlmostEqual(latents.difference(b, a), 0.2)
        self.assertEqual(latents.difference(nan, a), float("inf"))
        self.assertEqual(latents.difference(self.write("d", [1]), a), float("inf"))


class Packing(Folder):
    def test_too_much_is_refused(self):
        (self.folder / "large.tar.xz").write_bytes(bytes(1 << 20))
        total = sum(path.lstat().st_size for path in pack.tracked()) / pack.MIB + 1
        self.assertEqual(pack.check_size(self.folder, total + 0.1), 0)
        self.assertEqual(pack.check_size(self.folder, total - 0.1), 1)

    def test_tar_unpacks_what_was_packed(self):
        program = pathlib.Path("/bin/sh").resolve().read_bytes()
        for name in ("binaries", "python"):
            archive = pack.Archive(self.folder / f"{name}.tar.xz", fast=True)
            archive.add("bin/program", program, 0o755)
            archive.close()
            subprocess.run(["tar", "-xJf", archive.path, "-C", self.folder], check=True)
            self.assertEqual((self.folder / "bin" / "program").read_bytes(), program)

    def test_what_is_carried_is_what_is_not_there(self):
        for name in ("libc.so.6", "libstdc++.so.6", "libtorch_cpu.so", "libcudart.so.13", "libcuda.so.1", "ld-linux-x86-64.so.2"):
            self.assertTrue(pack.THERE.match(name), name)
        for name in ("libzmq.so.5", "libcrypt.so.1", "libsodium.so.23", "libtorchless.so", "libz.so.1"):
            self.assertFalse(pack.THERE.match(name), name)

    def test_diffusers_is_cut_down(self):
        self.assertTrue(pack.travels("diffusers/pipelines/flux/pipeline_flux.py"))
        self.assertTrue(pack.travels("diffusers/pipelines/pipeline_utils.py"))
        self.assertFalse(pack.travels("diffusers/pipelines/audioldm/pipeline_audioldm.py"))


if __name__ == "__main__":
    unittest.main()
