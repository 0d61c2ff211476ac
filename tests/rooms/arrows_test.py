#!/usr/bin/env python3
"""Holds every include line of the product against the rooms' order: arrows run down only.

usage: arrows_test.py FOLDER
A room may include itself, what stands in its line below, and nothing else of ours. Who needs another arrow adds it here,
and to the room's README, and has to say why it does not run back up.
"""
import pathlib
import re
import sys

TORCH_FREE = ("base", "client", "controller", "models/spec", "models/text", "transport", "actors/user", "web")
# Who stands further down may include what stands further up, where its line says so. api: the public headers, client/include.
ROOMS = {
    "base": "",
    "models/spec": "base",
    "models/image": "base models/spec",
    "models/text": "base models/spec",
    "api": "",
    "transport/wire": "base api models/image",
    "transport/json": "api transport/wire",
    "transport/control": "base transport/wire",
    "transport/calls": "base api transport/wire transport/control",
    "transport/tensor": "base",
    "kernels": "",
    "models": "base models/spec",
    "models/lora": "base models/spec models",
    "models/dit": "base models/spec models/lora models kernels",
    "models/samplers": "base models/spec",
    "models/plugin": "base models/spec models/dit models/samplers",
    "models/encoders": "base models/image models/spec models models/text",
    "models/vae": "base models/spec models kernels",
    "models/unet": "base models/spec models models/vae kernels",
    "actors/user": "base api models/spec transport/wire transport/control transport/calls",
    "actors/parallel": "kernels models/dit models/vae models/unet transport/tensor",
    "actors/stage": "base kernels models models/dit models/encoders models/image models/lora models/samplers models/spec models/text models/unet "
                    "models/vae transport/wire transport/json transport/control transport/tensor actors/parallel",
    "actors": "base kernels models/dit models/plugin models/image models/spec transport/wire transport/control transport/tensor "
              "actors/parallel actors/stage actors/user",
    "controller/mesh": "base",
    "controller/plan": "base models/spec models/image models/samplers transport/wire controller/mesh",
    "controller/schedule": "base transport/wire controller/mesh controller/plan",
    "controller/recorder": "base api transport/wire controller/schedule",
    "controller/hosts": "base models/spec transport/wire transport/control",
    "controller/deployments": "base api models/spec transport/wire transport/control controller/mesh controller/plan",
    "controller/jobs": "base models/spec transport/wire transport/json transport/control controller/mesh controller/plan "
                       "controller/schedule controller/recorder controller/deployments",
    "controller/journal": "base models/spec transport/wire transport/control controller/plan controller/jobs",
    "controller/supervision": "base transport/wire transport/control controller/plan controller/hosts controller/deployments "
                              "controller/jobs",
    "controller/user_actors": "base models/spec transport/wire transport/control controller/hosts controller/deployments",
    "controller/service": "base models/spec models/image models/text transport/wire transport/control controller/plan controller/schedule "
                          "controller/recorder controller/deployments controller/jobs controller/journal",
    "controller/app": "base models/spec transport/wire transport/control controller/mesh controller/plan controller/recorder "
                      "controller/hosts controller/deployments controller/jobs controller/journal controller/supervision "
                      "controller/user_actors controller/service",
    "client": "base api models/spec models/image transport/wire transport/control transport/calls",
    "client/cli": "base api client models/spec models/image models/text transport/wire transport/json transport/control",
    "client/repl": "base api client client/cli models/spec transport/json",
    "web": "base api models/spec models/image transport/wire transport/json",
    # The verbs of `troupe` start what there is: the controller, a host that joins, the planner.
    "client/cli/verbs": "base api client client/cli client/repl web models/spec models/image models/text transport/wire transport/json transport/control "
                        "controller/plan controller/hosts controller/deployments controller/app",
}


def room_of(path):
    if path.startswith(("client/include/", "troupe/")):
        return "api"
    parts = path.split("/")[:-1]
    while parts and "/".join(parts) not in ROOMS:
        parts.pop()
    return "/".join(parts)


def main(root):
    wrong, seen = [], 0
    for top in ("base", "kernels", "models", "transport", "actors", "controller", "client", "web"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            name = file.relative_to(root).as_posix()
            room = room_of(name)
            if not room:
                wrong.append(f"{name}: lies in no room of this test")
                continue
            for line in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', file.read_text(), re.M):
                seen += 1
                if re.match(r"(ATen|torch|c10)/", line):
                    if room.startswith(TORCH_FREE) and not room.startswith("transport/tensor"):
                        wrong.append(f"{name}: includes {line}, and {room} is free of torch")
                    continue
                if not (root / line).exists() and not line.startswith("troupe/"):
                    continue
                to = room_of(line)
                if to != room and to not in ROOMS[room].split():
                    wrong.append(f"{name}: includes {line}, and {room} may not include {to or 'that'}")
    order = list(ROOMS)
    for room, below in ROOMS.items():
        wrong += [f"{room} names {other}, which is not above it in this test" for other in below.split()
                  if other not in order[:order.index(room)]]
    for line in wrong:
        print(line)
    assert seen > 2000, f"only {seen} include lines were found"
    print(f"{len(wrong)} of {seen} include lines are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1])))
