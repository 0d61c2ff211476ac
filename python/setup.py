"""Adds to pyproject.toml what the wheel has more where scripts/package has laid the programs into troupe/."""
import os
import pathlib

from setuptools import Distribution, setup

HERE = pathlib.Path(__file__).parent


class BinaryDistribution(Distribution):
    """Has programs for one kind of machine, and nothing that depends on Python's version."""

    def has_ext_modules(self):
        return True


def engine() -> dict:
    from setuptools.command.bdist_wheel import bdist_wheel

    class AnyPython(bdist_wheel):
        def get_tag(self):
            return "py3", "none", super().get_tag()[2]

    return {"distclass": BinaryDistribution, "cmdclass": {"bdist_wheel": AnyPython}, "scripts": ["bin/troupe"],
            "install_requires": [f"torch=={os.environ['TROUPE_TORCH']}"]}


setup(**(engine() if (HERE / "troupe/bin").is_dir() else {}))
