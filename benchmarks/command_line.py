"""The command lines of these programs: what is wrong with one is said in one line, before anything heavy is imported, and
exits with 2."""
import argparse
import ast
import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Where modules of the project's own are that these programs import.
FOLDERS = [ROOT / "benchmarks", ROOT / "examples" / "demo" / "training", ROOT / "tests" / "reference"]


def imports_of(file):
    """The modules that `file` imports as it begins."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


def not_ours(modules, seen):
    """Those of the modules, and of what they import, that are neither Python's nor the project's."""
    for name in modules:
        if name in sys.stdlib_module_names or name in seen:
            continue
        seen.add(name)
        own = next((folder / f"{name}.py" for folder in FOLDERS if (folder / f"{name}.py").exists()), None)
        if own:
            yield from not_ours(imports_of(own), seen)
        else:
            yield name


class Parser(argparse.ArgumentParser):
    """With the program's own text as help; `later` are modules that it imports when it has begun its work."""

    def __init__(self, about, later=()):
        super().__init__(description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        self.later = later

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (see --help)\n")

    def parse_args(self, *words):
        args = super().parse_args(*words)
        if "troupe" in args and not pathlib.Path(args.troupe).is_file():
            self.error(f"--troupe: {args.troupe} is not there; scripts/test builds it")
        needs = not_ours([*imports_of(pathlib.Path(sys.argv[0])), *self.later], set())
        missing = [name for name in needs if importlib.util.find_spec(name) is None]
        if missing:
            self.exit(1, f"{self.prog}: this Python has no {' and no '.join(missing)}: take .deps/reference/bin/python, which scripts/fixtures makes\n")
        return args


def whole(least, most):
    """The type of an option: a whole number between these."""
    def read(text):
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f'"{text}" is not a whole number from {least} to {most}')
        return value
    return read


def folder(text):
    """A model's folder."""
    if not (pathlib.Path(text) / "model_index.json").is_file():
        raise argparse.ArgumentTypeError(f'"{text}" is no model folder: it has no model_index.json')
    return pathlib.Path(text)


def add_out(parser):
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="folder for what comes of it")


def add_troupe(parser):
    parser.add_argument("--troupe", metavar="FILE", default=str(ROOT / "build" / "bin" / "troupe"), help="the command (build/bin/troupe)")


def add_model(parser):
    parser.add_argument("--model", type=folder, metavar="DIR", default=ROOT / "examples" / "demo" / "model",
                        help="model folder (examples/demo/model)")


def add_number(parser, name, default, most, about, least=1):
    parser.add_argument(name, type=whole(least, most), default=default, metavar="N", help=about + (f" ({default})" if default is not None else ""))


def add_captions(parser, captions, size=256, least_steps=1):
    """Which pictures are made of captions drawn by rule."""
    add_number(parser, "--captions", captions, 100000, "captions")
    add_number(parser, "--size", size, 16384, "pixels a side")
    add_number(parser, "--steps", 20, 1000, "sampler steps", least=least_steps)
    add_number(parser, "--seed", 0, 2**32 - 1, "of captions and noise", least=0)


def numbers(names, count):
    """The type of an option: so many whole numbers above 0, with commas between."""
    def read(text):
        words = text.split(",")
        if len(words) != count or not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
            raise argparse.ArgumentTypeError(f'"{text}" is not {names}: {count} whole numbers above 0 and a comma between')
        return [int(word) for word in words]
    return read
