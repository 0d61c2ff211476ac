#!/usr/bin/env python3
"""Holds what a room's files can see of third parties, through all headers of ours that they include, against a table.

usage: pure_test.py FOLDER
A pure room sees no sockets, no serialization, no JSON and no torch, so nothing in it can do I/O unseen. A precompiled
header would bring all of that into its files: those rooms are compiled without one (PURE in cmake/TroupeTargets.cmake).
Standard headers by which code reads a clock, starts threads or opens files are left to reviews.
"""
import collections
import pathlib
import re
import sys

# Third parties by the beginning of the header's name. A header of forward declarations (json_fwd.hpp) brings nothing in.
THIRD_PARTIES = {
    "asio": r"boost/", "zmq": r"zmq", "cereal": r"cereal/", "json": r"nlohmann/(?!json_fwd)", "sqlite": r"sqlite3",
    "sodium": r"sodium", "cli11": r"CLI/", "torch": r"(ATen|torch|c10)/", "png": r"png\.h",
}
# What the files of a room, or those that a pattern names, may see. Rooms that read JSON or write it are pure but for that;
# messages are encoded by cereal where they are sent.
ROOMS = {
    "base/*": "",
    "models/spec/*": "json",
    "models/samplers/*_schedule*": "",
    "models/samplers/table_math*": "",
    "models/samplers/timestep_spacing*": "",
    "controller/mesh/*": "",
    "controller/plan/*": "json",
    "controller/schedule/*": "",
    "controller/recorder/*": "json",
    "controller/deployments/*": "cereal",
    "controller/deployments/members*": "",
    "controller/jobs/*": "cereal json",
    "controller/jobs/job_table*": "",
}
# Targets that are compiled without a precompiled header.
PURE_TARGETS = {"base": "base", "models/spec": "spec", "models/samplers": "schedules", "controller/mesh": "mesh", "controller/plan": "plan",
                "controller/schedule": "schedule", "controller/recorder": "recorder"}


class Headers:
    def __init__(self, root):
        self.root, self.lines = root, {}

    def includes(self, name):
        """Yields (ours, name) for each include line of one of our files."""
        if name not in self.lines:
            found = []
            for line in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', (self.root / name).read_text(), re.M):
                paths = [path for path in (line, f"client/include/{line}") if (self.root / path).is_file()]
                found.append((bool(paths), paths[0] if paths else line))
            self.lines[name] = found
        return self.lines[name]

    def third_parties(self, name):
        """Returns third party → the way to its header, for all that `name` sees."""
        seen, ways, todo = {name}, {}, collections.deque([(name,)])
        while todo:
            way = todo.popleft()
            for ours, other in self.includes(way[-1]):
                if ours and other not in seen:
                    seen.add(other)
                    todo.append(way + (other,))
                if not ours:
                    for party, pattern in THIRD_PARTIES.items():
                        if re.match(pattern, other):
                            ways.setdefault(party, way + (other,))
        return ways


def main(root):
    headers, allowed, wrong = Headers(root), {}, []
    for pattern, parties in ROOMS.items():
        files = [file for file in root.glob(pattern) if file.suffix in (".h", ".cpp")]
        if not files:
            wrong.append(f"{pattern}: names no file")
        for file in files:  # the more precise pattern stands later
            allowed[file.relative_to(root).as_posix()] = set(parties.split())
    for name, parties in sorted(allowed.items()):
        for party, way in headers.third_parties(name).items():
            if party not in parties:
                wrong.append(f"{name} sees {party}: {' > '.join(way[1:])}")
    for folder, target in PURE_TARGETS.items():
        if not re.search(rf"troupe_library\({target}\b[^)]*\bPURE\b", (root / folder / "CMakeLists.txt").read_text()):
            wrong.append(f"{folder}/CMakeLists.txt: troupe_library({target} …) lacks PURE")
    for line in wrong:
        print(line)
    assert headers.third_parties("transport/control/server_impl.h").keys() >= {"asio", "zmq", "cereal"}
    print(f"{len(wrong)} faults in {len(allowed)} files")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1])))
