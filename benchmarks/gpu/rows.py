"""How the programs of the first hour say what they found: a JSON document a line, which `first_hour.py` takes up at once."""
import json
import re


def say(name, value=None, unit="", **more):
    """`more`: `ok` (False is a failed check), `note`, `bytes`, `flops`, `floor`."""
    row = {"name": name}
    if value is not None:
        row["value"] = value
    if unit:
        row["unit"] = unit
    print(json.dumps({**row, **more}, ensure_ascii=False), flush=True)


def read(line):
    """The row that this line is, if it is one."""
    if not re.match(r'\{"name": ?"', line):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row.get("name"), str) else None
