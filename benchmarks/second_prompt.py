"""Seconds of a prompt's text, after others, with text encoders that stay in memory and with such that are read anew.

    .deps/reference/bin/python benchmarks/second_prompt.py OUT --encoder 1024,24

Into the folder OUT: second_prompt.json and second_prompt.md, the table. Each way is one cluster of one actor that gets different prompts one
after another. Where encoders stay, the actor's memory limit leaves them room; where they are read anew, it is what the plan needs and no
more. --encoder puts a T5 of that width and so many blocks, with random weights, in front of the demo's transformer: T5-XXL is 4096,24."""
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile

from command_line import Parser, add_model, add_number, add_out, add_troupe, numbers

ROOT = pathlib.Path(__file__).resolve().parent.parent


def options():
    parser = Parser(__doc__)
    add_out(parser)
    add_troupe(parser)
    add_model(parser)
    parser.add_argument("--encoder", type=numbers("WIDTH,BLOCKS", 2), metavar="WIDTH,BLOCKS", help="random weights of such a T5, in float32, and a transformer that takes it")
    add_number(parser, "--prompts", 6, 100, "prompts in turn; the first one is not counted")
    add_number(parser, "--threads", 2, 1024, "threads of the actor")
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"], help="both")
    return parser.parse_args()


def with_encoder(folder, model, width, blocks):
    """Settings of `model` with a T5 of T5-XXL's proportions, and random weights for them."""
    settings = folder / "settings"
    shutil.copytree(model, settings, ignore=shutil.ignore_patterns("*.safetensors"))
    for part, values in {"text_encoder": dict(d_model=width, num_layers=blocks, num_heads=width // 64, d_kv=64, d_ff=5 * width // 2, vocab_size=32128),
                         "transformer": dict(caption_channels=width)}.items():
        file = settings / part / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    subprocess.run([ROOT / "scripts/make-random-model", folder / "model", "--like", settings], check=True, capture_output=True)
    return folder / "model"


def answer(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def run(args, dtype, stay, folder):
    request = ["--dtype", dtype, "--steps", "2"]
    own = json.loads(answer([args.troupe, "plan", "--model", args.model, "--json", "--prompt", "", *request]))["memory"][0]
    limit = own["peak"] + (own["encoders"] if stay else 0)
    endpoint = f"ipc://{folder}/{dtype}-{stay}"
    answer([args.troupe, "start", "--detach", "--listen", endpoint, "--actors", "1", "--threads-per-actor", str(args.threads),
            "--memory-limit", str((limit + 1000) / 1e9), "--model", args.model])
    try:
        texts, rows = [f"a red circle, number {number}" for number in range(args.prompts)], []
        for text in texts:
            report = json.loads(answer([args.troupe, "submit", "--connect", endpoint, "--model", args.model, "--json", "--prompt", text,
                                        "--output", f"{folder}/p.png", *request]))
            report = report.get("report", report)
            rows.append(dict(text=report["seconds"]["text"], encoders=report["actors"][0]["encoder_bytes"], peak=report["actors"][0]["peak_memory_bytes"]))
    finally:
        answer([args.troupe, "stop", "--connect", endpoint])
    assert all((row["encoders"] == own["encoders"]) if stay else row["encoders"] == 0 for row in rows), rows
    return rows


def main(args):
    args.out.mkdir(parents=True, exist_ok=True)
    results = {}
    lines = ["| | first prompt, s | another one, s | encoders in memory, MB | peak of the process, MB |\n|---|---|---|---|---|\n"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if args.encoder:
            args.model = with_encoder(folder, args.model, *args.encoder)
        for dtype in args.dtypes:
            for stay in (False, True):
                rows = results[f"{dtype}, {'they stay' if stay else 'read anew'}"] = run(args, dtype, stay, folder)
                lines.append(f"| {list(results)[-1]} | {rows[0]['text']:.3f} | {statistics.median(row['text'] for row in rows[1:]):.3f} | "
                             f"{rows[-1]['encoders'] / 1e6:.1f} | {max(row['peak'] for row in rows) / 1e6:.0f} |\n")
    what = "T5 of width {}, {} blocks".format(*args.encoder) if args.encoder else args.model.name
    (args.out / "second_prompt.md").write_text(f"{what}: {args.prompts} prompts, {args.threads} threads.\n\n" + "".join(lines), encoding="utf-8")
    (args.out / "second_prompt.json").write_text(json.dumps(results, indent=1))
    print((args.out / "second_prompt.md").read_text())


if __name__ == "__main__":
    main(options())
