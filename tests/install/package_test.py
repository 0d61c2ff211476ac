"""The tree that scripts/package packs, moved away from where it was made: package_test.py

Nothing in it is looked for outside it but LibTorch, a link here, and what every system with a C++ program has.
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The loader and the libraries of the C and C++ compiler.
SYSTEM = re.compile(r"(linux-vdso|/lib64/ld-linux-x86-64|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+))\.so")


class Links(unittest.TestCase):
    def test_two_names_of_one_library(self):
        sys.path.insert(0, str(ROOT / "scripts/lib"))
        import package
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            (folder / "libx.so.1.2.3").write_bytes(b"library")
            (folder / "libx.so.1").symlink_to("libx.so.1.2.3")
            (folder / "libx.so").symlink_to("libx.so.1")
            package.without_links(folder)
            self.assertEqual(sorted(path.name for path in folder.iterdir()), ["libx.so", "libx.so.1"])
            for path in folder.iterdir():
                self.assertFalse(path.is_symlink())
                self.assertEqual(path.read_bytes(), b"library")


class Tree(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-package-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        made = cls.folder / "made"
        done = subprocess.run([ROOT / "scripts/package", "--tree", made], capture_output=True, text=True,
                              env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"})
        assert done.returncode == 0, done.stdout + done.stderr
        cls.tree = cls.folder / "elsewhere"
        made.rename(cls.tree)

    def run_here(self, *command):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120,
                              env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "TMPDIR": str(self.folder)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_paths(self):
        files = [path for folder in ("bin", "lib", "lib/troupe/libraries") for path in (self.tree / folder).iterdir() if path.is_file()]
        self.assertGreater(len(files), 10)
        for file in files:
            for paths in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", self.run_here("readelf", "--dynamic", "--wide", str(file))):
                for path in paths.split(":"):
                    self.assertRegex(path, r"^\$ORIGIN/", file.name)

    def test_libraries(self):
        torch = (self.tree / "lib/troupe/libtorch/torch/lib").resolve().parents[1]
        for program in ("troupe", "troupe-host", "troupe-actor"):
            for line in self.run_here("ldd", str(self.tree / "bin" / program)).splitlines():
                self.assertNotIn("not found", line, program)
                name, _, found = line.strip().partition(" => ")
                place = pathlib.Path(os.path.realpath(found.split(" (")[0]))
                if not SYSTEM.match(name):
                    self.assertTrue(place.is_relative_to(self.tree) or place.is_relative_to(torch), f"{program}: {line}")

    def test_picture(self):
        troupe = str(self.tree / "bin/troupe")
        version = re.search(r"project\(Troupe VERSION (\S+) ", (ROOT / "CMakeLists.txt").read_text()).group(1)
        self.assertIn(version, self.run_here(troupe, "--version"))
        self.run_here(troupe, "run", "--model", str(self.tree / "share/troupe/demo"), "--prompt", "a blue star on a white background",
                      "--height", "64", "--width", "64", "--steps", "2", "--output", "star.png")
        self.assertEqual((self.folder / "star.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_licences(self):
        documents = self.tree / "share/doc/troupe"
        listed = json.loads((documents / "troupe.spdx.json").read_text())
        names = {entry["name"] for entry in listed["packages"]}
        self.assertEqual({path.name for path in (documents / "licences").iterdir()}, names - {"troupe"})
        self.assertIn("libzmq5", names)
        self.assertEqual(listed["creationInfo"]["created"], "2023-11-14T22:13:20Z")

    def test_same_bits(self):
        digests = []
        for moment in (1, 2_000_000_000):
            for path in [self.tree / "share/doc", *(self.tree / "share/doc").rglob("*")]:
                os.utime(path, (moment, moment))
            packed = self.folder / "doc.tar.gz"
            self.run_here(sys.executable, str(ROOT / "scripts/lib/package.py"), "tarball", str(self.tree / "share/doc"), str(packed), "1700000000")
            digests.append(hashlib.sha256(packed.read_bytes()).hexdigest())
        self.assertEqual(*digests)


if __name__ == "__main__":
    unittest.main()
