#!/usr/bin/env python3
"""Stands in for Troupe's HTTP server where a page's test needs what a real cluster gives slowly, seldom or never: a
thousand jobs, many hosts, a controller that is lost for a while, a server that asks for a key.

It keeps the real contract (docs/http.md): jobs take their steps in time, previews grow, a pipeline of actors computes
micro-steps of several jobs, a killed actor comes back.
Alone: fake_server.py OPTIONS [--port N] [--jobs N] [--actors N] [--key K], OPTIONS being the
program page_request_options of the build.
"""
import argparse
import base64
import json
import pathlib
import queue
import random
import socket
import struct
import subprocess
import threading
import time
import urllib.parse
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = pathlib.Path(__file__).resolve().parents[2] / 'web/page'
TYPES = {'.html': 'text/html; charset=utf-8', '.css': 'text/css', '.js': 'text/javascript', '.svg': 'image/svg+xml'}
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
          "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
          "frame-ancestors 'none'")
ENDED = ('succeeded', 'failed', 'cancelled')


def png(width, height, seed, sharp, text=None):
    """A picture of coloured circles; `sharp` from 0 (noise) to 1."""
    draw = random.Random(seed)
    circles = [(draw.random() * width, draw.random() * height, (0.1 + 0.2 * draw.random()) * width,
                [draw.randrange(256) for _ in range(3)]) for _ in range(6)]
    noise = random.Random(seed + 1)
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        for x in range(width):
            colour = [40, 44, 60]
            for cx, cy, radius, own in circles:
                if (x - cx) ** 2 + (y - cy) ** 2 < radius ** 2:
                    colour = own
            rows += bytes(int(sharp * part + (1 - sharp) * noise.randrange(256)) for part in colour)

    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    header = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    words = chunk(b'tEXt', b'troupe\0' + json.dumps(text).encode('ascii')) if text else b''
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + words + chunk(b'IDAT', zlib.compress(bytes(rows), 1)) + \
        chunk(b'IEND', b'')


class Refusal(Exception):
    def __init__(self, status, message, param=None, kind='invalid_request_error'):
        super().__init__(message)
        self.status = status
        self.body = {'error': {'message': message, 'type': kind, 'param': param, 'code': 'bad_request'}}


class Job:
    def __init__(self, number, request):
        self.id, self.request = str(number), request
        self.prompt = request.get('prompt') or (request.get('prompts') or [''])[0]
        self.steps = request.get('steps') or 20
        self.count = (request.get('images_per_prompt') or 1) * max(1, len(request.get('prompts') or []))
        self.state, self.phase, self.step, self.cause = 'queued', 'queued', 0, ''
        self.created, self.began, self.ended = time.time(), None, None
        self.patches = request.get('num_pipeline_patch') or 1
        self.tasks, self.done_at, self.warnings = [], {}, []
        self.preview = None  # the newest one

    def size(self):
        return self.request.get('width') or 64, self.request.get('height') or 64


class Cluster:
    """Two pipelines' stages after another, on actors; jobs by twos."""

    def __init__(self, actors=4, jobs=0, seconds_per_task=0.06):
        self.lock = threading.RLock()
        self.start = time.monotonic()
        self.seconds = seconds_per_task
        self.seconds_dead = 2  # of an actor that is killed
        self.held_before = None  # a step: no job computes it, or a later one
        self.actors = [{'id': i, 'host': f'host-{"abcdefgh"[i // 4 % 8]}', 'device': f'cuda:{i % 4}', 'state': 'ready',
                        'doing': '', 'memory_bytes': 3_000_000_000 + 400_000_000 * i,
                        'memory_limit_bytes': 8_000_000_000, 'restarts': 0, 'pid': 4000 + i, 'groups': []}
                       for i in range(actors)]
        self.free_at = [0.0] * actors
        self.dead_until = {}
        self.jobs, self.slices, self.failures, self.listeners = {}, [], [], []
        self.next_id = 1
        for _ in range(jobs):
            self.add_old()

    def now(self):
        return time.monotonic() - self.start

    def add_old(self):
        job = self.add({'prompt': f'an old picture number {self.next_id}', 'seed': self.next_id})
        job.state = job.phase = ENDED[0] if self.next_id % 9 else ENDED[1]
        job.cause = 'actor 2 was killed by signal 9 at step 4' if job.state == 'failed' else ''
        job.step = job.steps if job.state == 'succeeded' else 4
        job.created = time.time() - 4000 + self.next_id
        job.began, job.ended = job.created + 1, job.created + 3.5

    def add(self, request):
        job = Job(self.next_id, request)
        self.next_id += 1
        self.jobs[job.id] = job
        return job

    def tell(self, job, event, data=None):
        for wanted, out in list(self.listeners):
            if wanted == job.id:
                out.put((event, data or self.view(job)))

    def view(self, job):
        waiting = [one for one in self.jobs.values() if one.state == 'queued']
        width, height = job.size()
        seconds = (job.ended or time.time()) - job.created
        return {'id': job.id, 'number': int(job.id), 'state': job.state, 'phase': job.phase, 'prompt': job.prompt, 'model': 'demo',
                'step': job.step, 'steps': job.steps, 'seconds': seconds,
                'seconds_per_step': self.seconds * job.patches if job.step > 1 else 0,
                'queue_position': waiting.index(job) + 1 if job in waiting else None,
                'cause': 'waits for idle actors: 0 of 4 are' if job.state == 'queued' else job.cause,
                'priority': job.request.get('priority', 0), 'share': job.request.get('share', ''),
                'pictures': [{'url': f'/api/v1/jobs/{job.id}/pictures/{i}', 'width': width, 'height': height}
                             for i in range(job.count)] if job.state == 'succeeded' else [],
                'warnings': job.warnings, 'created_at': job.created}

    def begin(self, job):
        job.state, job.phase, job.began = 'running', 'denoising', time.time()
        stages = len(self.actors)
        job.tasks = [('text', -1, -1, 0)]
        job.tasks += [('step', s, p, k) for s in range(job.steps) for p in range(job.patches) for k in range(stages)]
        job.tasks.append(('decode', -1, -1, stages - 1))
        for k, actor in enumerate(self.actors):
            actor['groups'] = [{'axis': 'pp', 'ranks': list(range(stages)), 'rank': k}]

    def ready_at(self, job, task):
        kind, step, patch, stage = task
        before = []
        if kind == 'step':
            before = [(step, patch, stage - 1)] if stage else [(step - 1, patch, len(self.actors) - 1)]
        elif kind == 'decode':
            before = [(job.steps - 1, p, len(self.actors) - 1) for p in range(job.patches)]
        return max([job.done_at.get(one, 0) for one in before] + [job.done_at.get('text', 0), job.first])

    def tick(self):
        with self.lock:
            now = self.now()
            for actor, until in list(self.dead_until.items()):
                if now > until:
                    del self.dead_until[actor]
                    self.actors[actor]['state'] = 'ready'
                    self.free_at[actor] = now
            running = [job for job in self.jobs.values() if job.state == 'running']
            for job in [job for job in self.jobs.values() if job.state == 'queued'][:2 - len(running)]:
                if time.time() - job.created > 0.3:
                    self.begin(job)
                    job.first = now
                    running.append(job)
            while not self.dead_until:
                choices = []
                for job in running:
                    seen = set()
                    for task in job.tasks[:4 * len(self.actors) * job.patches]:
                        if task[3] in seen:
                            continue
                        seen.add(task[3])
                        if self.complete_before(job, task) and not self.holds(task):
                            begin = max(self.free_at[task[3]], self.ready_at(job, task))
                            choices.append((begin, int(job.id), task, job))
                choices = [choice for choice in choices if choice[0] + self.length(choice[3], choice[2]) < now]
                if not choices:
                    break
                begin, _, task, job = min(choices)
                self.run(job, task, begin)
            for job in running:
                if not job.tasks and job.state == 'running':
                    job.state = job.phase = 'succeeded'
                    job.ended, job.step = time.time(), job.steps
                    self.tell(job, 'succeeded')
            busy = {actor: one for one in self.slices[-40:] if now - one['end'] < 0.3 for actor in [one['actor']]}
            for actor in self.actors:
                last = busy.get(actor['id'])
                actor['doing'] = f"job {last['job']} step {last['step']} patch {last['patch']}" if last else ''
                if actor['state'] in ('ready', 'busy'):
                    actor['state'] = 'busy' if last else 'ready'

    def holds(self, task):
        return self.held_before is not None and task[0] == 'step' and task[1] >= self.held_before

    def hold(self, step):
        """Lets jobs come to this step and stand still there: what a test is to see of them stays until `release`."""
        with self.lock:
            self.free_at = [max(self.now(), free) for free in self.free_at]  # nothing was computed in the time before
            self.held_before = step

    def release(self):
        self.hold(None)

    def complete_before(self, job, task):
        kind, step, patch, stage = task
        if kind == 'text':
            return True
        if 'text' not in job.done_at:
            return False
        if kind == 'decode':
            return len(job.tasks) == 1
        return (stage == 0 and (step == 0 or (step - 1, patch, len(self.actors) - 1) in job.done_at)) or \
            (stage > 0 and (step, patch, stage - 1) in job.done_at)

    def length(self, job, task):
        kind, _, _, stage = task
        tasks = {'text': 2, 'step': 1 if job.patches > 1 else 2, 'decode': 4}[kind]
        return self.seconds * tasks * (1 + 0.2 * (stage % 2))

    def run(self, job, task, begin):
        kind, step, patch, stage = task
        end = begin + self.length(job, task)
        job.tasks.remove(task)
        job.done_at[(step, patch, stage) if kind == 'step' else kind] = end
        waits = [[begin, begin + 0.2 * (end - begin)]] if kind == 'step' and stage else []
        self.slices.append({'actor': stage, 'job': job.id, 'step': step, 'patch': patch, 'kind': kind, 'begin': begin,
                            'end': end, 'waits': waits})
        del self.slices[:-5000]
        self.free_at[stage] = end
        if kind == 'step' and stage == len(self.actors) - 1 and patch == job.patches - 1:
            job.step = step + 1
            self.tell(job, 'progress')
            if job.request.get('preview_every') and step % job.request['preview_every'] == 0:
                picture = png(32, 32, int(job.id), (step + 1) / job.steps)
                job.preview = {'step': step + 1, 'steps': job.steps, 'b64_png': base64.b64encode(picture).decode()}
                self.tell(job, 'preview', job.preview)

    def kill(self, actor):
        with self.lock:
            self.dead_until[actor] = self.now() + self.seconds_dead
            self.actors[actor]['state'] = 'starting'
            self.actors[actor]['restarts'] += 1
            self.failures.insert(0, f'actor {actor} on {self.actors[actor]["host"]} was killed by signal 9')

    def revive(self, actor):
        with self.lock:
            self.dead_until[actor] = self.now()

    def cancel(self, job):
        with self.lock:
            if job.state in ENDED:
                raise Refusal(409, f'job {job.id} has already {job.state}', kind='conflict_error')
            job.state = job.phase = 'cancelled'
            job.ended, job.cause, job.tasks = time.time(), 'cancelled by a client', []
            self.tell(job, 'cancelled')

    def status(self):
        count = lambda *states: sum(job.state in states for job in self.jobs.values())
        hosts = {}
        for actor in self.actors:
            hosts.setdefault(actor['host'], {'name': actor['host'], 'actors': 0})['actors'] += 1
        return {'version': '0.0', 'host': 'host-a', 'endpoint': 'ipc:///tmp/x', 'model': 'demo', 'models': ['demo'],
                'uptime_seconds': self.now(), 'hosts': list(hosts.values()), 'actors': self.actors,
                'jobs': {'queued': count('queued'), 'running': count('running', 'loading'), 'ended': count(*ENDED)},
                'recent_failures': self.failures}


def options_of(program):
    """Returns what GET /api/v1/options answers, with the fields that `program`, the build's page_request_options, prints."""
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return json.loads(printed) | {'models': [{'id': 'demo', 'default': True}]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer('GET')

    def do_POST(self):
        self.answer('POST')

    def answer(self, method):
        self.server.sockets.add(self.connection)
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        url = urllib.parse.urlparse(self.path)
        try:
            if self.server.lost:
                self.server.asked_in_vain += 1
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if url.path.startswith(('/api/', '/metrics')) and self.server.key and \
                    self.headers.get('Authorization') != f'Bearer {self.server.key}':
                raise Refusal(401, 'this server asks for a key', kind='authentication_error')
            self.route(method, [part for part in url.path.split('/') if part], urllib.parse.parse_qs(url.query), body)
        except Refusal as refusal:
            self.send(json.dumps(refusal.body), status=refusal.status)
        except OSError:
            self.close_connection = True
        finally:
            self.server.sockets.discard(self.connection)

    def send(self, body, kind='application/json', status=200):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(body)))
        self.send_header('Content-Security-Policy', POLICY)
        self.end_headers()
        self.wfile.write(body)

    def route(self, method, path, query, body):
        cluster = self.server.cluster
        match (method, path):
            case ('GET', []):
                self.send((PAGE / 'index.html').read_bytes(), TYPES['.html'])
            case ('GET', ['assets', *rest]):
                file = PAGE.joinpath(*rest)
                if not file.is_file() or PAGE not in file.resolve().parents:
                    raise Refusal(404, 'no such file')
                self.send(file.read_bytes(), TYPES[file.suffix])
            case ('GET', ['health']):
                self.send(json.dumps({'status': 'ok'}))
            case ('GET', ['metrics']):
                self.send(self.metrics(), 'text/plain; version=0.0.4')
            case (method, ['api', 'v1', *rest]):
                self.api(method, rest, query, body, cluster)
            case _:
                raise Refusal(404, 'no such path')

    def api(self, method, path, query, body, cluster):
        match (method, path):
            case ('GET', ['options']):
                self.send(json.dumps(self.server.options))
            case ('GET', ['cluster']):
                self.send(json.dumps(cluster.status()))
            case ('GET', ['cluster', 'events']):
                self.stream(lambda: ('cluster', cluster.status()))
            case ('GET', ['pipeline', 'events']):
                seen = 0.0

                def fresh():
                    nonlocal seen
                    with cluster.lock:
                        found = [one for one in cluster.slices if one['end'] > seen]
                        seen = max([one['end'] for one in found], default=seen)
                        return 'slices', {'now': cluster.now(), 'slices': found}
                self.stream(fresh)
            case ('POST', ['actors', number, 'kill']):
                cluster.kill(int(number))
                self.send('{}')
            case ('POST', ['parameters']):
                at = body.find(b'troupe\0')
                if at < 0:
                    raise Refusal(400, 'this PNG has no parameters of Troupe in it')
                length = struct.unpack('>I', body[at - 8:at - 4])[0]
                self.send(body[at + 7:at + length])
            case ('GET', ['jobs']):
                jobs = sorted(cluster.jobs.values(), key=lambda job: -int(job.id))
                if 'before' in query:
                    jobs = [job for job in jobs if int(job.id) < int(query['before'][0])]
                limit = int(query.get('limit', ['50'])[0])
                self.send(json.dumps({'jobs': [cluster.view(job) for job in jobs[:limit]],
                                      'next': jobs[limit - 1].id if len(jobs) > limit else None}))
            case ('POST', ['jobs']):
                request = json.loads(body)
                if not (request.get('prompt') or request.get('prompts')):
                    raise Refusal(400, 'a prompt is missing', 'prompt')
                if (request.get('height') or 64) % 16:
                    raise Refusal(400, f'height {request["height"]} is not a multiple of 16; see --patches', 'height')
                with cluster.lock:
                    job = cluster.add(request)
                self.send(json.dumps({'id': job.id, 'state': job.state, 'queue_position': 1, 'links': {}}), status=202)
            case (method, ['jobs', number, *rest]):
                job = cluster.jobs.get(number)
                if not job and '-' in number:
                    raise Refusal(410, f'job {number} is of a cluster that was started anew', kind='not_found_error')
                if not job:
                    raise Refusal(404, f'job {number} is not known here', kind='not_found_error')
                self.job(method, rest, job, cluster)
            case _:
                raise Refusal(404, 'no such path')

    def job(self, method, path, job, cluster):
        match (method, path):
            case ('GET', []):
                self.send(json.dumps(cluster.view(job)))
            case ('POST', ['cancel']):
                cluster.cancel(job)
                self.send(json.dumps(cluster.view(job)))
            case ('GET', ['events']):
                self.follow(job, cluster)
            case ('GET', ['pictures', number]):
                width, height = job.size()
                self.send(png(width, height, int(job.id) + int(number), 1, job.request), 'image/png')
            case ('GET', ['report']):
                self.send(json.dumps({
                    'job': int(job.id),
                    'request': {'width': job.size()[0], 'height': job.size()[1], 'steps': job.steps, 'sampler': 'euler',
                                'patches': job.patches, **job.request}, 'warnings': [], 'recoveries': [],
                    'seconds': {'queued': 0.3, 'loading': 0.4, 'text': 0.1, 'denoising': 1.8, 'decoding': 0.3,
                                'total': 2.9, 'per_step': 0.09},
                    'plan': {'mesh': {'world': 4, 'pp': 4}},
                    'bytes': {'tensor_plane': 9_700_000, 'tensor_plane_by_group': {'edge': 8e6, 'cfg': 1.7e6}},
                    'actors': [{'rank': k, 'actor': k, 'busy_seconds': 1.5, 'waiting_seconds': 0.2, 'idle_seconds': 0.2,
                                'controller_wait_seconds': 0, 'peak_memory_bytes': 2.4e8} for k in range(4)]}))
            case ('GET', ['timeline']):
                with cluster.lock:
                    events = [{'ph': 'X', 'pid': 2, 'tid': one['actor'] + 1,
                               'cat': 'micro_step' if one['kind'] == 'step' else one['kind'],
                               'ts': one['begin'] * 1e6, 'dur': (one['end'] - one['begin']) * 1e6,
                               'name': f"step {one['step']} patch {one['patch']}", 'args': {'job': int(one['job'])}}
                              for one in cluster.slices if one['job'] == job.id]
                self.send(json.dumps({'traceEvents': events}))
            case ('GET', ['logs']):
                self.send(f'12:00:00 job {job.id}: queued\n12:00:01 job {job.id}: running\n', 'text/plain')
            case _:
                raise Refusal(404, 'no such path')

    def begin_stream(self):
        self.send_response(200)
        self.send_header('Content-Type', 'text/event-stream')
        self.send_header('Connection', 'close')
        self.end_headers()
        self.close_connection = True

    def event(self, name, data):
        self.wfile.write(f'event: {name}\ndata: {json.dumps(data)}\n\n'.encode())
        self.wfile.flush()

    def stream(self, next_event):
        self.begin_stream()
        while not self.server.lost:
            self.event(*next_event())
            time.sleep(0.5)

    def follow(self, job, cluster):
        self.begin_stream()
        out = queue.Queue()
        entry = (job.id, out)
        with cluster.lock:
            out.put((job.state if job.state in ENDED else 'progress', cluster.view(job)))
            if job.preview:
                out.put(('preview', job.preview))
            cluster.listeners.append(entry)
        try:
            while not self.server.lost:
                try:
                    name, data = out.get(timeout=0.5)
                except queue.Empty:
                    self.wfile.write(b': still here\n\n')
                    continue
                self.event(name, data)
                if name in ENDED:
                    return
        finally:
            cluster.listeners.remove(entry)

    def metrics(self):
        cluster = self.server.cluster
        ended = {state: sum(job.state == state for job in cluster.jobs.values()) for state in ENDED}
        lines = [f'troupe_jobs_ended_total{{state="{state}"}} {count}' for state, count in ended.items()]
        lines += [f'troupe_actor_memory_bytes{{actor="{one["id"]}"}} {one["memory_bytes"]}' for one in cluster.actors]
        lines += [f'troupe_actors{{state="ready"}} {len(cluster.actors)}',
                  f'troupe_queue_length {cluster.status()["jobs"]["queued"]}',
                  f'troupe_actors_busy {sum(one["state"] == "busy" for one in cluster.actors)}',
                  f'troupe_tasks_total{{kind="micro_step"}} {len(cluster.slices)}',
                  f'troupe_task_seconds_total{{kind="micro_step"}} {len(cluster.slices) * cluster.seconds}',
                  f'troupe_task_wait_seconds_total{{kind="micro_step"}} {len(cluster.slices) * cluster.seconds * 0.15}',
                  f'troupe_bytes_total{{plane="tensor",direction="sent"}} {len(cluster.slices) * 90000}',
                  f'troupe_bytes_total{{plane="control",direction="sent"}} {len(cluster.slices) * 300}']
        took = [job.ended - job.created for job in cluster.jobs.values() if job.state == 'succeeded']
        lines += [f'troupe_request_seconds_bucket{{le="{bound}"}} {sum(one <= bound for one in took)}'
                  for bound in (0.5, 1.0, 2.5, 5.0, 10.0, 100.0)]
        lines += [f'troupe_request_seconds_bucket{{le="+Inf"}} {len(took)}']
        return '\n'.join(lines) + '\n'


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, options, port=0, key='', **cluster):
        super().__init__(('127.0.0.1', port), Handler)
        self.cluster, self.key, self.lost, self.sockets = Cluster(**cluster), key, False, set()
        self.options = options
        self.asked_in_vain = 0  # while it was lost
        self.url = f'http://127.0.0.1:{self.server_address[1]}/'
        threading.Thread(target=self.serve_forever, daemon=True).start()
        threading.Thread(target=self.tick, daemon=True).start()

    def tick(self):
        while True:
            if not self.lost:
                self.cluster.tick()
            time.sleep(0.05)

    def lose(self):
        """All connections break, and none is answered until `find`."""
        self.lost = True
        for one in list(self.sockets):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def find(self):
        self.lost = False


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('options')
    parser.add_argument('--port', type=int, default=0)
    parser.add_argument('--jobs', type=int, default=0)
    parser.add_argument('--actors', type=int, default=4)
    parser.add_argument('--key', default='')
    wanted = parser.parse_args()
    server = FakeServer(options_of(wanted.options), wanted.port, wanted.key, jobs=wanted.jobs, actors=wanted.actors)
    print(server.url, flush=True)
    threading.Event().wait()
