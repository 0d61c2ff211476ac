#!/usr/bin/env python3
"""What `troupe serve` adds to a request, and how it does under load.

usage: gateway.py [--url URL] latency | load | previews [--streams N] [--rate N] [--seconds S] [--size PIXELS] [--steps N]

latency  small requests one after the other: seconds at the client less the job's own seconds at the controller
load     N open streams of events while so many small jobs a second are handed in: how long each call took, and whether
         every stream still lives
previews one job that sends a preview after each step: how long after the step's end, by the controller's clock, the preview
         has reached a client of the job's events. The clocks are set beside each other by the quickest of the pipeline's
         events, so what that one took (well below 1 ms on a quiet machine) is not in the figure

Needs a gateway that runs: troupe serve --model examples/demo/model
"""
import argparse
import asyncio
import json
import threading
import time
import urllib.parse
import urllib.request


class Connection:
    """HTTP/1.1, one request after the other."""

    def __init__(self, url):
        self.url = urllib.parse.urlsplit(url)

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection(self.url.hostname, self.url.port)
        return self

    async def send(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else b""
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: {self.url.netloc}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), fields

    async def ask(self, method, path, body=None):
        status, fields = await self.send(method, path, body)
        text = await self.reader.readexactly(int(fields["content-length"]))
        return status, json.loads(text)


def spread(seconds):
    ordered = sorted(seconds)
    at = lambda part: ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1e3
    return f"p50 {at(0.5):.2f} ms, p90 {at(0.9):.2f} ms, p99 {at(0.99):.2f} ms, most {ordered[-1] * 1e3:.1f} ms of {len(ordered)}"


async def latency(options):
    connection = await Connection(options.url).open()
    added = []
    for number in range(options.requests):
        began = time.perf_counter()
        status, _ = await connection.ask("POST", "/v1/images/generations",
                                         {"prompt": "a", "size": options.size, "steps": options.steps, "seed": number})
        took = time.perf_counter() - began
        assert status == 200, status
        _, jobs = await connection.ask("GET", "/api/v1/jobs?limit=1")
        _, report = await connection.ask("GET", f"/api/v1/jobs/{jobs['jobs'][0]['id']}/report")
        added.append(took - report["seconds"]["total"])
    print("added to a request:", spread(added[1:]))


async def load(options):
    first = await Connection(options.url).open()
    _, held = await first.ask("POST", "/api/v1/jobs", {"prompt": "held", "steps": 900, "priority": -100})
    streams = []
    for _ in range(options.streams):
        stream = await Connection(options.url).open()
        await stream.send("GET", f"/api/v1/jobs/{held['id']}/events")
        streams.append(stream)
    print(f"{len(streams)} streams are open")
    alive = [0]

    async def listen(stream):
        while await stream.reader.read(1 << 16):
            pass
        alive[0] -= 1

    alive[0] = len(streams)
    listeners = [asyncio.create_task(listen(stream)) for stream in streams]
    free, took, statuses = [], [], {}

    async def one():
        connection = free.pop() if free else await Connection(options.url).open()
        began = time.perf_counter()
        status, _ = await connection.ask("POST", "/api/v1/jobs", {"prompt": "a", "height": 64, "width": 64, "steps": options.steps})
        took.append(time.perf_counter() - began)
        statuses[status] = statuses.get(status, 0) + 1
        free.append(connection)

    tasks = []
    began = time.perf_counter()
    for number in range(int(options.rate * options.seconds)):
        await asyncio.sleep(max(0.0, began + number / options.rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    print(f"{len(took) / (time.perf_counter() - began):.0f} requests a second, by status {statuses}: {spread(took)}")
    health = []
    for _ in range(50):
        at = time.perf_counter()
        await first.ask("GET", "/health")
        health.append(time.perf_counter() - at)
    print("GET /health beside them:", spread(health))
    print(f"{alive[0]} of {len(streams)} streams live")
    await first.ask("POST", f"/api/v1/jobs/{held['id']}/cancel")
    for listener in listeners:
        listener.cancel()


def events(url, stop):
    """(seconds when it came, event, data) of a stream of events."""
    with urllib.request.urlopen(url, timeout=60) as stream:
        name = ""
        for line in stream:
            if stop.is_set():
                return
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                came = time.monotonic()
                yield came, name, json.loads(line[6:])


def previews(options):
    ends, came, offsets = {}, {}, []
    stop = threading.Event()

    def watch_pipeline():
        for now, name, data in events(f"{options.url}/api/v1/pipeline/events", stop):
            if name != "slices":
                continue
            offsets.append(now - data["now"])
            for slice_ in data["slices"]:
                if slice_["kind"] == "step":
                    at = (slice_["job"], slice_["step"])
                    ends[at] = max(ends.get(at, 0), slice_["end"])

    watcher = threading.Thread(target=watch_pipeline, daemon=True)
    watcher.start()
    time.sleep(5)  # for some of its events, which come twice a second
    width, height = map(int, options.size.split("x"))
    body = {"prompt": "a", "width": width, "height": height, "steps": options.steps, "preview_every": 1}
    request = urllib.request.Request(f"{options.url}/api/v1/jobs", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        job = json.load(answer)["id"]
    for now, name, data in events(f"{options.url}/api/v1/jobs/{job}/events", stop):
        if name == "preview":
            came.setdefault(data["step"], now)
        elif name in ("succeeded", "failed", "cancelled"):
            assert name == "succeeded", data
            break
    time.sleep(1.5)  # for the last ones
    stop.set()
    # A preview of step 1 shows what the first step, number 0, has made.
    late = [now - (ends[job, step - 1] + min(offsets)) for step, now in came.items() if (job, step - 1) in ends]
    print(f"{len(came)} previews of {options.steps} steps came;", "after their step:", spread(late),
          f"(the clocks by {len(offsets)} events, the next quickest {1e3 * (sorted(offsets)[1] - min(offsets)):.2f} ms slower)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("latency", "load", "previews"))
    parser.add_argument("--url", default="http://127.0.0.1:7480")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--size", default="64x64")
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args()
    if options.what == "previews":
        return previews(options)
    asyncio.run(latency(options) if options.what == "latency" else load(options))


if __name__ == "__main__":
    main()
