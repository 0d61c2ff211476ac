"""The package as others get it: its types hold, and its wheel can be installed and imported alone."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python"


class Package(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="troupe-package-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # A copy, since building writes beside the sources.
        self.source = self.folder / "python"
        shutil.copytree(PACKAGE, self.source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))

    def run_here(self, *command):
        done = subprocess.run([sys.executable, "-m", *command], cwd=self.folder, capture_output=True, text=True,
                              env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_types(self):
        self.run_here("mypy", "--config-file", "python/pyproject.toml", "--python-version", "3.10", "python/troupe")

    def test_wheel(self):
        pip = ("pip", "--quiet", "--disable-pip-version-check")
        self.run_here(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", ".", "./python")
        wheel = next(self.folder.glob("troupe_engine-*-py3-none-any.whl"))
        names = zipfile.ZipFile(wheel).namelist()
        self.assertIn("troupe/py.typed", names)
        for module in PACKAGE.glob("troupe/*.py"):
            self.assertIn(f"troupe/{module.name}", names)
        self.run_here(*pip, "install", "--no-deps", "--no-index", "--target", "installed", str(wheel))
        check = "import sys; sys.path.insert(0, 'installed'); import troupe; print(troupe.__file__, troupe.__version__)"
        done = subprocess.run([sys.executable, "-S", "-E", "-c", check], cwd=self.folder, capture_output=True, text=True)
        # The version is the whole project's.
        version = re.search(r"project\(Troupe VERSION (\S+) ", (PACKAGE.parent / "CMakeLists.txt").read_text()).group(1)
        self.assertIn(f"/installed/troupe/__init__.py {version}", done.stdout, done.stderr)
        self.assertIn(f"-{version}-", wheel.name)


if __name__ == "__main__":
    unittest.main()
