"""Looks at the first word of every doc comment (///): it begins with a noun or a verb, never with what only continues.

usage: comments.py [FOLDER]...   (all folders; for those that are named the places are listed file by file)
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Words that a fragment begins with: prepositions, conjunctions, pronouns, words of a question.
FRAGMENTS = set("""
    after also although among and around as at because before behind below beneath beside besides between beyond but by during
    except for from he her his how if in inside into it its like nor not of off on once onto or out outside over per she since so
    than that their them then there these they this those though through throughout till to toward towards under unless until up
    upon what whatever when whence whenever where whereas wherever whether which whichever while who whoever whom whose why with
    within without yet
""".split())


def fragments(path):
    """The lines of PATH at which a doc comment begins with a fragment, as (line, text)."""
    before = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        comment = re.search(r"(?:^|\s)///<?(?: (.*))?$", line)
        alone = bool(comment) and line.lstrip().startswith("///")
        if comment and not (before and alone and not line.lstrip().startswith("///<")):
            first = re.match(r"\s*([A-Za-z]+)\b(?![_:(.])", comment.group(1) or "")
            if first and first.group(1).lower() in FRAGMENTS and not first.group(1).isupper():
                yield number, comment.group(1)
        before = alone


def main(folders):
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--", *folders], check=True, capture_output=True, text=True)
    wrong = 0
    for name in listed.stdout.splitlines():
        if not name.endswith((".h", ".cpp", ".cu", ".cuh")) or not (ROOT / name).is_file():
            continue
        for number, text in fragments(ROOT / name):
            wrong += 1
            print(f"{name}:{number}: {text}", file=sys.stderr)
    if wrong:
        print(f"{wrong} doc comments begin with a fragment: begin with the noun or the verb", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
