"""What `--offload blocks` saves in memory and costs in time, on one actor, taking turns with runs that keep all blocks.

    .deps/reference/bin/python benchmarks/offload.py OUT --random 8,12

Into the folder OUT: results.json, and offload.md, the table: bytes of weights that the actor keeps, the highest that its process had in
memory, and seconds of denoising a step, the least of all rounds. Every run is `troupe run` with actors of its own. --random makes a model
of that many heads and blocks around the demo's text encoder and VAE: PixArt-XL's width is 16 heads."""
import json
import pathlib
import subprocess
import tempfile

from command_line import Parser, add_model, add_number, add_out, add_troupe, numbers

WAYS = {"all blocks": [], "--offload blocks": ["--offload", "blocks"]}


def options():
    parser = Parser(__doc__)
    add_out(parser)
    add_troupe(parser)
    add_model(parser)
    parser.add_argument("--random", type=numbers("HEADS,BLOCKS", 2), metavar="HEADS,BLOCKS", help="random weights, heads of 72, instead of --model")
    add_number(parser, "--size", 512, 16384, "pixels a side")
    add_number(parser, "--steps", 4, 1000, "sampler steps")
    add_number(parser, "--threads", 1, 1024, "threads of the actor")
    add_number(parser, "--rounds", 3, 100, "runs of each way")
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"], help="both")
    return parser.parse_args()


ARGS = options() if __name__ == "__main__" else None

from quantized import random_model  # noqa: E402


def run(args, dtype, way):
    with tempfile.TemporaryDirectory() as folder:
        command = [args.troupe, "run", "--model", str(args.model), "--json", "--height", str(args.size), "--width", str(args.size), "--steps", str(args.steps), "--guidance", "4.5",
                   "--seed", "0", "--prompt", "a red circle", "--threads-per-actor", str(args.threads), "--dtype", dtype, "--output", f"{folder}/p.png", *WAYS[way]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        if done.returncode:
            raise RuntimeError(f"{way}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no reason given'}")
        report = json.loads(done.stdout)
        report = report.get("report", report)
        own = report["actors"][0]
        return dict(weights=own["weight_bytes"], peak=own["peak_memory_bytes"], step=report["seconds"]["denoising"] / args.steps,
                    picture=pathlib.Path(f"{folder}/p.png").read_bytes())


def main(args):
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if args.random:
            args.model = random_model(pathlib.Path(folder), *args.random)
        results = {(dtype, way): [] for dtype in args.dtypes for way in WAYS}
        for _ in range(args.rounds):
            for (dtype, way), rows in results.items():
                rows.append(run(args, dtype, way))
    lines = ["| | weights, MB | peak of the process, MB | a step, s | |\n|---|---|---|---|---|\n"]
    for (dtype, way), rows in results.items():
        step = min(row["step"] for row in rows)
        kept = min(row["step"] for row in results[dtype, "all blocks"])
        lines.append(f"| {dtype}, {way} | {rows[0]['weights'] / 1e6:.1f} | {max(row['peak'] for row in rows) / 1e6:.0f} | {step:.3f} | {step / kept:.2f} × |\n")
    what = "random weights, {} heads of 72, {} blocks".format(*args.random) if args.random else args.model.name
    (args.out / "offload.md").write_text(f"{what}: {args.size} px, {args.steps} steps, guidance 4.5, {args.threads} threads.\n\n" + "".join(lines), encoding="utf-8")
    rows = {f"{dtype}, {way}": [{key: value for key, value in row.items() if key != "picture"} for row in rows] for (dtype, way), rows in results.items()}
    (args.out / "results.json").write_text(json.dumps(rows, indent=1))
    print((args.out / "offload.md").read_text())


if __name__ == "__main__":
    main(ARGS)
