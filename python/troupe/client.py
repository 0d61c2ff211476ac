"""A cluster over HTTP: requests, streams of events, and handles of jobs."""
from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import time
import urllib.parse
import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple, Union

from . import images
from .arguments import Path, number, plain
from .errors import (APIConnectionError, APIStatusError, APITimeoutError, InternalServerError, JobCancelledError,
                     JobFailedError, NotFoundError, TroupeError, TroupeWarning, from_response, outside)

DEFAULT_URL = "http://127.0.0.1:7480"
# The server sends something at least every 15 s, a comment where there is nothing to tell.
SILENCE = 45.0
ENDS = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class JobInfo:
    """What the server says of a job at one moment."""

    id: str
    state: str = ""  # queued | loading | running | paused | succeeded | failed | cancelled
    phase: str = ""  # of a job that runs: loading | text | denoising | decoding; unreachable: see unreachable_since
    prompt: str = ""
    model: str = ""
    step: int = 0
    steps: int = 0
    timestep: Optional[float] = None  # the sampler's, of the last completed step
    seconds: float = 0.0
    seconds_per_step: float = 0.0
    queue_position: Optional[int] = None
    cause: str = ""
    priority: int = 0
    share: str = ""
    pictures: List[Dict[str, Any]] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)
    created_at: Any = None
    unreachable_since: Optional[float] = None  # seconds since 1970; its cluster is gone, and the rest as old as that

    @property
    def ended(self) -> bool:
        return self.state in ENDS


_JOB_FIELDS = frozenset(entry.name for entry in fields(JobInfo))


def _job_info(document: Dict[str, Any]) -> JobInfo:
    # null stands for what is not known yet, and newer servers may say more.
    return JobInfo(**{name: value for name, value in document.items() if name in _JOB_FIELDS and value is not None})


@dataclass(frozen=True)
class JobEvent:
    """`kind`: progress, preview, or the end: succeeded, failed, cancelled. `info` is the newest that is known; `preview`
    a small, rough picture as a PNG file's bytes, where that is the kind."""

    kind: str
    info: JobInfo
    preview: Optional[bytes] = None


class Job:
    """A job on the cluster, whether this program submitted it or not. It goes on when this program ends."""

    def __init__(self, client: "Client", info: JobInfo, warns: bool = False) -> None:
        self._client = client
        self._path = "/api/v1/jobs/" + urllib.parse.quote(info.id, safe="")
        self._warns = warns  # those of a job that this program asked for are its user's
        self._told: Set[str] = set()
        self._cancels = False  # this handle asked for its end
        self.info = info
        self._learn(info)

    def _learn(self, info: JobInfo) -> None:
        """Takes news of the job; what it warns of becomes Python's warnings, each once."""
        self.info = replace(info, cause=self._client.in_python(info.cause),
                            warnings=[self._client.in_python(text) for text in info.warnings])
        for text in self.info.warnings:
            if self._warns and text not in self._told:
                self._told.add(text)
                warnings.warn(text, TroupeWarning, stacklevel=outside())

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def state(self) -> str:
        """As it was when this handle last heard of it; `refresh()` asks anew."""
        return self.info.state

    def __repr__(self) -> str:
        steps = f", step {self.info.step} of {self.info.steps}" if self.info.steps else ""
        return f"<troupe.Job {self.id}: {self.state}{steps}>"

    def refresh(self) -> JobInfo:
        """Asks the server how the job is."""
        self._learn(_job_info(self._client.get(self._path)))
        return self.info

    def done(self) -> bool:
        """Whether the job has ended, well or not. Asks the server."""
        return self.info.ended or self.refresh().ended

    def cancel(self) -> bool:
        """Ends the job at its next micro-step; False if it had ended before."""
        self._cancels, before = True, self._cancels  # at once: its end may be told first
        try:
            self._learn(_job_info(self._client.post(f"{self._path}/cancel")))
        except TroupeError as error:
            self._cancels = before
            if getattr(error, "status_code", 0) != 409:
                raise
            self.refresh()
            return False
        return True

    def events(self, timeout: Optional[float] = None) -> Iterator[JobEvent]:
        """What happens to the job, until it ends. Who comes late gets the newest progress, or the end.

        A stream that breaks is opened again for as long as the client's `patience`. After `timeout` seconds
        APITimeoutError is raised, and the job goes on.
        """
        deadline = None if timeout is None else time.monotonic() + number("timeout", timeout)
        lost_since: Optional[float] = None
        while True:
            broken: Exception = APIConnectionError(f"the events of job {self.id} ended before the job")
            try:
                for name, data in self._client.stream(f"{self._path}/events", deadline):
                    lost_since = None
                    event = self._event(name, json.loads(data))
                    yield event
                    if event.kind in ENDS:
                        return
            except (APIConnectionError, InternalServerError) as error:
                broken = error
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise APITimeoutError(f"job {self.id} has not ended within {timeout:g} s")
            lost_since = lost_since or now
            if now - lost_since >= self._client.patience:
                raise broken
            time.sleep(0.5)

    def _event(self, kind: str, document: Dict[str, Any]) -> JobEvent:
        if kind == "error":
            raise from_response(500, document, "")  # asked again, the server says by its status what it is
        if kind == "preview":
            return JobEvent(kind, self.info, base64.b64decode(document["b64_png"]))
        self._learn(_job_info(document))
        return JobEvent(kind, self.info)

    def wait(self, timeout: Optional[float] = None) -> JobInfo:
        """Waits until the job has ended, well or not, or raises APITimeoutError; then the job goes on."""
        if not self.info.ended:
            for _ in self.events(timeout):
                pass
        return self.info

    def raise_for_state(self) -> None:
        """Raises JobFailedError or JobCancelledError if the job has ended so."""
        if self.state == "failed":
            raise JobFailedError(self.info.cause or f"job {self.id} failed", self)
        if self.state == "cancelled":
            by_us = f"job {self.id} was cancelled by this program"
            raise JobCancelledError(by_us if self._cancels else self.info.cause or f"job {self.id} was cancelled", self)

    def pictures(self, timeout: Optional[float] = None) -> List[bytes]:
        """Waits for the end; each picture as a PNG file's bytes, prompt by prompt; a video is an animated PNG."""
        self.wait(timeout)
        self.raise_for_state()
        return [self.picture(number) for number in range(len(self.info.pictures))]

    def picture(self, number: int, format: str = "png", quality: Optional[int] = None) -> bytes:
        """A file's bytes: `format` is png (with the picture's parameters), jpeg or webp, of a video also mp4 or webm; `quality`
        is 1 to 100."""
        query = {"format": format, **({} if quality is None else {"quality": quality})}
        return self._client.get_bytes(f"{self._path}/pictures/{number}?{urllib.parse.urlencode(query)}")

    def result(self, output_type: str = "pil", timeout: Optional[float] = None) -> Any:
        """Waits for the end and returns the pictures, of videos frame by frame.

        `output_type`: "pil" (a list of images), "np" (float32 [n, height, width, 3] from 0 to 1), "pt"
        (a tensor of torch's, [n, 3, height, width]), "png" (a list of
        files' bytes, one of each video) or "latent" (float32 [n, channels, h, w], of a job that was submitted with
        `output_type="latent"`, which has no pictures, or with `want_latents=True`, which has both).
        """
        check_output_type(output_type)
        if output_type == "latent":
            self.wait(timeout)
            self.raise_for_state()
            return self.latents()
        pngs = self.pictures(timeout)
        if output_type == "png":
            return pngs
        make = {"pil": images.frames, "np": images.to_numpy, "pt": images.to_torch}
        return make[output_type](pngs)

    def latents(self) -> Any:
        """Final latents before the VAE, as `result("latent")` has them, of a job that has ended."""
        try:
            return images.latents_from_npy(self._client.get_bytes(f"{self._path}/latents"))
        except NotFoundError as error:
            if error.code == "no_latents":
                error.message = f'job {self.id} was handed in without latents: submit(…, output_type="latent"), or want_latents=True beside the pictures'
                error.args = (error.message,)
            raise

    def report(self) -> Any:
        """The request, the plan, seconds, bytes, memory and warnings (docs/json.md)."""
        report = self._client.get(f"{self._path}/report")
        return {**report, "warnings": [self._client.in_python(text) for text in report.get("warnings", [])]}

    def timeline(self) -> Any:
        """What ran when on which actor, as Chrome's trace format, which Perfetto opens."""
        return self._client.get(f"{self._path}/timeline")

    def logs(self) -> str:
        """What its actors wrote."""
        return self._client.get_bytes(f"{self._path}/logs").decode("utf-8", "replace")

    def _repr_html_(self) -> str:
        if self.state == "succeeded":
            return images.html(self.pictures())
        return repr(self).replace("<", "&lt;")


def check_output_type(output_type: str) -> None:
    if output_type not in ("pil", "np", "pt", "png", "latent"):
        raise ValueError(f'output_type "{output_type}" is none of "pil", "np", "pt", "png", "latent"')
    if output_type == "pt":
        images.torch()  # fails before anything is computed for it


# Names of fields in the cluster's texts, and options of the command line, that a call has other arguments for.
_ARGUMENTS = {"`images`": "image", "`init_image`": "image", "`init_latents`": "latents", "--elastic": "elastic", "--init-image": "image", "--image": "image", "--last-image": "last_image",
              "`control_images`": "control_image", "--control-image": "control_image", "`controlnets`": "controlnet",
              "--controlnet": "controlnet", "`control_scale`": "controlnet_conditioning_scale",
              "--control-scale": "controlnet_conditioning_scale", "`control_from`": "control_guidance_start",
              "--control-from": "control_guidance_start", "`control_until`": "control_guidance_end",
              "--control-until": "control_guidance_end",
              "--init-latents": "latents", "--mask": "mask_image", "--may-batch": "may_batch", "--model": "model",
              "--parallel": "parallel", "--priority": "priority"}


class Client:
    """Speaks to `troupe serve` at `url`. Threads may share it.

    `url`: default TROUPE_URL, else http://127.0.0.1:7480. `api_key`: default TROUPE_API_KEY. `timeout`: seconds for each
    answer. `patience`: seconds for which a stream that broke is looked for again.
    """

    def __init__(self, url: Optional[str] = None, api_key: Optional[str] = None, timeout: float = 60.0,
                 patience: float = 60.0) -> None:
        self.url = (url or os.environ.get("TROUPE_URL") or DEFAULT_URL).rstrip("/")
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f'url: "{self.url}" is not http://HOST:PORT or https://HOST:PORT')
        self._parts = parts
        self._key = api_key or os.environ.get("TROUPE_API_KEY")
        self.timeout = number("timeout", timeout)
        self.patience = number("patience", patience)
        self._options: Optional[Dict[str, Dict[str, Any]]] = None  # by the command line's; None: not asked for yet
        self.words: Dict[str, str] = {}  # other texts of the cluster's, and what they are to this program

    def __repr__(self) -> str:
        return f"<troupe.Client of {self.url}>"

    def submit(self, request: Dict[str, Any]) -> Job:
        """Hands a job in: the fields of POST /api/v1/jobs, as docs/http.md names them."""
        try:
            return Job(self, _job_info(self.post("/api/v1/jobs", {name: plain(name, value) for name, value in request.items()})), True)
        except APIStatusError as error:
            error.message = self.in_python(error.message)
            error.args = (error.message,)
            raise

    def in_python(self, text: str) -> str:
        """A text of the cluster's with arguments for the fields and options it names: method="exact" for `method` exact."""
        for words, ours in self.words.items():
            text = text.replace(words, ours)
        if "--" not in text and "`" not in text:
            return text
        if self._options is None:
            try:
                document = self.options()
            except TroupeError:
                return text
            self._options = {word: {"name": name} for option, name in _ARGUMENTS.items() for word in (option, f"`{name}`")}
            for entry in reversed([*document["fields"], *document["degrees"]]):
                self._options[entry["option"]] = entry
                self._options.setdefault(f"`{entry['name']}`", entry)
        known = self._options

        def argument(found: "re.Match[str]") -> str:
            option, value = found.groups()
            if option not in known:
                return found.group()
            name, choices = known[option]["name"], known[option].get("choices") or ["auto"]
            if value in choices:
                return f'{name}="{value}"'
            return f"{name}={value}" if value and value[0].isdigit() else name + found.group()[len(option):]

        return re.sub(r"((?<![\w/.-])--[a-z][a-z-]*|`[a-z_]+`)(?: ([\w.+-]*\w))?", argument, text)

    def job(self, id: Union[str, int]) -> Job:
        """The handle of a job by its id; of one cluster's also by its number alone. Raises NotFoundError."""
        job = Job(self, JobInfo(str(id)))
        job.refresh()
        return job

    def jobs(self, limit: int = 20) -> List[Job]:
        """The newest jobs first."""
        return [Job(self, _job_info(entry)) for entry in self.get(f"/api/v1/jobs?limit={limit}")["jobs"]]

    def cluster(self) -> Any:
        """Hosts, actors, counts of jobs, models, recent failures, version."""
        return self.get("/api/v1/cluster")

    def options(self) -> Any:
        """What a request may say: each field's type, default, bounds, choices and help; samplers; models."""
        return self.get("/api/v1/options")

    def models(self) -> List[str]:
        return [entry["id"] for entry in self.get("/v1/models")["data"]]

    def health(self) -> Any:
        """`status` is ok, starting or degraded. Raises InternalServerError where nothing can be painted."""
        return self.get("/health")

    def parameters(self, png: Union[bytes, Path], bring: Sequence[str] = ()) -> Any:
        """The request that made a picture of Troupe's, a file's bytes or path; `submit` makes it again.

        `bring`: fields that the picture was made with, but does not hold, and that are set before it is submitted:
        init_image, mask_image, images, last_image, control_images, controlnets, init_latents, prompt_embeds.
        """
        query = "?bring=" + ",".join(bring) if bring else ""
        return json.loads(self._answer("POST", "/api/v1/parameters" + query, images.file_bytes(png, "png"), "image/png"))

    def get(self, path: str) -> Any:
        return json.loads(self._answer("GET", path))

    def get_bytes(self, path: str) -> bytes:
        return self._answer("GET", path)

    def post(self, path: str, document: Any = None) -> Any:
        return json.loads(self._answer("POST", path, json.dumps({} if document is None else document).encode()))

    def _answer(self, method: str, path: str, body: Optional[bytes] = None, kind: str = "application/json") -> bytes:
        sock, response = self._open(method, path, body, kind, self.timeout)
        with sock, response:
            try:
                return response.read()
            except (OSError, http.client.HTTPException) as error:
                raise self._broken(error, self.timeout) from error

    def _open(self, method: str, path: str, body: Optional[bytes], kind: str,
              timeout: float) -> Tuple[socket.socket, http.client.HTTPResponse]:
        """The socket and an answer of status 200 to 299 whose body is not read yet; to be closed both."""
        make = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = make(self._parts.hostname or "", self._parts.port, timeout=timeout)
        headers = {"Connection": "close"}
        if body is not None:
            headers["Content-Type"] = kind
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            connection.request(method, self._parts.path + path, body, headers)
            sock = connection.sock
            response = connection.getresponse()
            if 200 <= response.status < 300:
                return sock, response
            with sock, response:
                text = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._broken(error, timeout) from error
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        raise from_response(response.status, document, response.reason)

    def _broken(self, error: Exception, timeout: float) -> APIConnectionError:
        if isinstance(error, TimeoutError):
            return APITimeoutError(f"{self.url} has not answered within {timeout:g} s")
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return APIConnectionError(f"{self.url}: {why}; is `troupe serve` running there?")

    def stream(self, path: str, deadline: Optional[float] = None) -> Iterator[Tuple[str, str]]:
        """The server-sent events at `path`, each as its name and its data, up to `deadline` (of time.monotonic())."""
        timeout = SILENCE if deadline is None else max(0.05, min(SILENCE, deadline - time.monotonic()))
        sock, response = self._open("GET", path, None, "", timeout)
        name = "message"
        data: List[str] = []
        try:
            while True:
                if deadline is not None:
                    sock.settimeout(max(0.05, min(SILENCE, deadline - time.monotonic())))
                line = response.readline()
                if not line:
                    return
                text = line.decode("utf-8").rstrip("\r\n")
                if not text:
                    if data:
                        yield name, "\n".join(data)
                        if deadline is not None and time.monotonic() >= deadline:
                            return  # they may come faster than the socket's timeout
                    name, data = "message", []
                    continue
                key, _, value = text.partition(":")  # a comment has no key
                value = value[1:] if value.startswith(" ") else value
                if key == "event":
                    name = value
                elif key == "data":
                    data.append(value)
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error, timeout) from error
        finally:
            response.close()
            sock.close()
