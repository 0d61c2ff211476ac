"""What the first hour on a GPU finds: one JSON and one table, written anew after every line, so that nothing that came before
an end by force is lost. Calls add to what earlier calls found."""
import json
import os
import pathlib
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
PREDICTIONS = HERE / "predictions.json"
MEASURED = HERE / "measured.json"
# What a part may have come to
PASSED, FAILED, OUT_OF_TIME, LEFT_OUT = "passed", "failed", "out of time", "left out"
LOWER_IS_BETTER = ("us", "ms", "s", "GB", "launches", "waits")


def replace(path, text):
    """No reader ever sees half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def short(value):
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:.4g}"


class Record:
    """Rows are dictionaries: `name`, and as far as they make sense `value`, `unit`, `ok`, `note`, `bytes` and `flops`, which are
    the least that the work can move and compute."""

    def __init__(self, folder, earlier=MEASURED, predictions=PREDICTIONS):
        self.folder = pathlib.Path(folder)
        self.json, self.table = self.folder / "gpu-check.json", self.folder / "gpu-check.md"
        self.logs = self.folder / "logs.tar.xz"
        known = next((path for path in (self.json, pathlib.Path(earlier)) if path.is_file()), None)
        self.document = json.loads(known.read_text(encoding="utf-8")) if known else {"parts": {}}
        predictions = pathlib.Path(predictions)
        self.predicted = json.loads(predictions.read_text(encoding="utf-8"))["rows"] if predictions.is_file() else {}

    def begin(self, part, call):
        self.document["parts"][part] = {"call": call, "outcome": OUT_OF_TIME, "seconds": 0, "rows": []}
        self.write()

    def add(self, part, row):
        self.document["parts"][part]["rows"].append(row)
        self.write()

    def end(self, part, outcome, seconds, tail=()):
        entry = self.document["parts"][part]
        entry.update(outcome=outcome, seconds=round(seconds, 1))
        if tail:
            entry["tail"] = list(tail)
        self.write()

    def keep_logs(self, folder):
        """All logs in one file: few files come back from elsewhere."""
        part = self.logs.with_name(self.logs.name + ".part")
        with tarfile.open(part, "w:xz", preset=1) as archive:
            archive.add(folder, arcname="logs")
        os.replace(part, self.logs)

    def value(self, part, name):
        rows = self.document["parts"].get(part, {}).get("rows", [])
        return next((row.get("value") for row in rows if row["name"] == name), None)

    def prediction(self, part, name):
        return self.predicted.get(f"{part}/{name}", {})

    def ceiling(self, name):
        return self.value("ceilings", name) or self.prediction("ceilings", name).get("value")

    def floor(self, row):
        """The least time that this row can take, in its unit, by what it moves and computes and the ceilings measured here."""
        scale = {"us": 1e6, "ms": 1e3, "s": 1.0}.get(row.get("unit"))
        if scale is None:
            return row.get("floor")
        copy, products = self.ceiling("copy"), self.ceiling("GEMM bfloat16")
        times = []
        if row.get("bytes") and copy:
            times.append(row["bytes"] / (copy * 1e9))
        if row.get("flops") and products:
            times.append(row["flops"] / (products * 1e12))
        return scale * max(times) if times else row.get("floor")

    def cells(self, part, row):
        predicted = self.prediction(part, row["name"])
        value, floor = row.get("value"), self.floor(row) or predicted.get("floor")
        share = ""
        if floor and isinstance(value, (int, float)) and value > 0 and row.get("unit") in LOWER_IS_BETTER:
            share = f"{100 * floor / value:.0f} %"
        notes = ([] if row.get("ok", True) else ["**FAILED**"]) + [text for text in (row.get("note"), predicted.get("note")) if text]
        return [row["name"], short(value), row.get("unit", ""), short(predicted.get("value")), short(floor), share, "; ".join(notes)]

    def write(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        replace(self.json, json.dumps(self.document, indent=1, ensure_ascii=False) + "\n")
        replace(self.table, self.text())

    def text(self):
        """Outcomes first: who reads only the beginning learns what failed."""
        lines = ["# GPU check", "", "| call | part | outcome | seconds |", "|--:|---|---|--:|"]
        parts = sorted(self.document["parts"].items(), key=lambda entry: entry[1]["call"])
        lines += [f"| {entry['call']} | {name} | {entry['outcome']} | {entry['seconds']} |" for name, entry in parts]
        for name, entry in parts:
            if entry["rows"]:
                lines += ["", f"## {name}", "", "| what | measured | | predicted | floor | floor ÷ measured | |", "|---|--:|---|--:|--:|--:|---|"]
                lines += ["| " + " | ".join(cell.replace("|", "/") for cell in self.cells(name, row)) + " |" for row in entry["rows"]]
            if entry.get("tail"):
                lines += ["", f"The end of {name}'s log:", "", *("    " + line for line in entry["tail"])]
        return "\n".join(lines) + "\n"

    def well(self):
        return all(entry["outcome"] in (PASSED, LEFT_OUT) for entry in self.document["parts"].values())
