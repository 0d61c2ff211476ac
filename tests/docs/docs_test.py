"""Runs the command blocks of README.md as a reader would paste them, and looks at the links of every page.

usage: docs_test.py links | bounds | fields | blocks BIN

links   every relative link of a tracked Markdown page leads to a file, and to a heading where it names one
bounds  every limit of bounds.py has its numbers from the code, and a test that is there
fields  the tables of other servers' fields in docs/http.md are those of web/call_fields.def
blocks  every block of commands in README.md works by itself, in an empty folder, and leaves no cluster running
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from bounds import LIMITS, spaces_as_one, words_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_WORDS = 900
SECONDS_PER_BLOCK = 300
# Blocks that a test cannot run, by what they begin with.
NOT_RUN = {
    "scripts/demo": "builds the project",
    "export PATH": "for the reader's shell",
    "troupe run pixart-alpha": "needs a network and 20 GB",
}


def blocks_of(text):
    """The fenced blocks without a language, in order."""
    return re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_block(block, bin_folder):
    """What is wrong with BLOCK, or None."""
    with tempfile.TemporaryDirectory(prefix="troupe-readme-") as name:
        folder = pathlib.Path(name)
        (folder / "run").mkdir(mode=0o700)
        (folder / "examples").symlink_to(ROOT / "examples")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TROUPE_")}
        environment["PATH"] = f"{bin_folder}:{environment['PATH']}"
        environment["XDG_RUNTIME_DIR"] = str(folder / "run")
        arguments = dict(cwd=folder, env=environment, text=True, capture_output=True)
        try:
            done = subprocess.run(["bash", "-euc", block], timeout=SECONDS_PER_BLOCK, **arguments)
        except subprocess.TimeoutExpired:
            return f"has not ended after {SECONDS_PER_BLOCK} s"
        finally:
            left = subprocess.run(["troupe", "stop"], timeout=60, executable=str(bin_folder / "troupe"), **arguments)
        if done.returncode != 0:
            return f"ended with {done.returncode}: {done.stderr[-2000:]}"
        if left.returncode == 0:
            return "left a cluster running"
        for output in re.findall(r"(?:--output|-o) (\S+)", block):
            if not (folder / output).is_file() or (folder / output).stat().st_size == 0:
                return f"did not write {output}"
    return None


def check_blocks(bin_folder):
    text = (ROOT / "README.md").read_text()
    wrong = []
    words = len(text.split())
    if words > MOST_WORDS:
        wrong.append(f"README.md has {words} words, above {MOST_WORDS}")
    skipped = set()
    for number, block in enumerate(blocks_of(text), 1):
        beginning = next((word for word in NOT_RUN if block.startswith(word)), None)
        if beginning:
            skipped.add(beginning)
            print(f"block {number}: not run, {NOT_RUN[beginning]}")
            continue
        problem = run_block(block, bin_folder)
        print(f"block {number}: {problem or 'works'}", flush=True)
        if problem:
            wrong.append(f"block {number} {problem}\n{block}")
    wrong += [f'no block begins with "{word}" any more' for word in NOT_RUN if word not in skipped]
    return wrong


def anchor_of(heading):
    """The anchor that GitHub makes of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def anchors_of(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {anchor_of(heading) for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)}


def check_links():
    pages = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    wrong, links = [], 0
    for page in pages:
        prose = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose)):
            if re.match(r"[a-z]+:", link):
                continue
            links += 1
            name, _, anchor = link.partition("#")
            target = (ROOT / page).parent / name if name else ROOT / page
            if not target.exists():
                wrong.append(f"{page}: {link} leads nowhere")
            elif anchor and target.suffix == ".md" and anchor not in anchors_of(target):
                wrong.append(f"{page}: {name or page} has no heading for #{anchor}")
    if links < 100:
        wrong.append(f"found only {links} links, the pattern must be wrong")
    print(f"{links} links in {len(pages)} pages")
    return wrong


CALL_NAMES = {"kTxt2Img": "txt2img", "kImg2Img": "img2img", "kGenerations": "generations", "kEdits": "edits", "kVideos": "videos"}
CALL_SUMS = {"kWebui": ["kTxt2Img", "kImg2Img"], "kImages": ["kGenerations", "kEdits"]}
# The tables of docs/http.md, by their headings, with the calls that each is about.
FIELD_TABLES = {
    "The web UI's fields": ["kTxt2Img", "kImg2Img"],
    "The web UI's settings": ["kSettings"],
    "OpenAI's other fields": ["kGenerations", "kEdits", "kVideos"],
}


def call_fields():
    """The lines of web/call_fields.def: calls, name, treatment, passing values, text."""
    def unquoted(literal):
        return literal[3:-2] if literal.startswith("R") else re.sub(r"\\(.)", r"\1", literal[1:-1])
    pattern = re.compile(r'^CALL_FIELD\(([\w| ]+), "(\w+)", (\w+), (R"\(.*?\)"|"[^"]*"), (".*")\)$', re.MULTILINE)
    for calls, name, treatment, passing, says in pattern.findall((ROOT / "web/call_fields.def").read_text()):
        parts = [part for word in calls.split(" | ") for part in CALL_SUMS.get(word, [word])]
        yield parts, name, treatment, unquoted(passing), unquoted(says)


def field_rows(of_table):
    for calls, name, treatment, passing, says in call_fields():
        if not set(calls) <= set(of_table):
            continue
        where = "" if calls == of_table else " (" + ", ".join(f"`{CALL_NAMES[call]}`" for call in calls) + ")"
        if treatment == "refused":
            values = "" if passing == "[]" else ", but for `" + passing[1:-1].replace(", ", "`, `") + "`"
            says = f"refused{values}: {says}"
        yield f"| `{name}`{where} | {says} |".replace("a|b", r"a\|b")


def check_fields():
    page = (ROOT / "docs/http.md").read_text()
    wrong, rows = [], 0
    for heading, calls in FIELD_TABLES.items():
        wanted = list(field_rows(calls))
        rows += len(wanted)
        section = page.partition(f"\n### {heading}\n")[2].split("\n#")[0]
        shown = [line for line in section.splitlines() if line.startswith("| `")]
        if shown != wanted:
            wrong.append(f'docs/http.md: the table below "{heading}" is to be\n' + "\n".join(wanted))
    lines = (ROOT / "web/call_fields.def").read_text().count("\nCALL_FIELD(")
    if rows != lines:
        wrong.append(f"of the {lines} lines of web/call_fields.def {rows} were read")
    print(f"{rows} fields of other servers' calls")
    return wrong


def check_bounds():
    tests = spaces_as_one("".join(path.read_text() for path in sorted((ROOT / "tests").rglob("*_test.cpp"))))
    wrong = []
    for limit in LIMITS:
        try:
            words_of(limit)
        except (OSError, ValueError, LookupError) as error:
            wrong.append(f'"{limit.what}": {error}')
        if limit.code and limit.code[1] not in spaces_as_one((ROOT / limit.code[0]).read_text()):
            wrong.append(f'{limit.code[0]} does not say "{limit.code[1]}" any more, which stands for "{limit.what}"')
        if limit.test not in tests:
            wrong.append(f'there is no test "{limit.test}" any more, which holds "{limit.what}"')
    print(f"{len(LIMITS)} limits, {sum(len(limit.numbers) for limit in LIMITS)} numbers")
    return wrong


def main(arguments):
    if arguments == ["links"]:
        wrong = check_links()
    elif arguments == ["bounds"]:
        wrong = check_bounds()
    elif arguments == ["fields"]:
        wrong = check_fields()
    elif len(arguments) == 2 and arguments[0] == "blocks" and shutil.which(f"{arguments[1]}/troupe"):
        wrong = check_blocks(pathlib.Path(arguments[1]).resolve())
    else:
        sys.exit(__doc__)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
