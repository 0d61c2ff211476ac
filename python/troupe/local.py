"""A cluster of the program's own: `troupe serve` as a child process."""
from __future__ import annotations

import atexit
import difflib
import inspect
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, List, Optional, Sequence, Union

from .arguments import Path, path, texts, whole
from .client import Client
from .errors import BadRequestError, InternalServerError, TroupeError
from .pipeline import TroupePipeline

# Options of `troupe serve` that `local` has arguments for.
_ARGUMENTS = {"--actors": "actors", "--allow-models": "allow_models", "--device": "device", "--model": "model"}
# Longer than a cluster needs to end by itself.
END_SECONDS = 30.0


class LocalCluster:
    """What `local()` makes. `with` gives a pipeline; the end of the block, or of the program, ends the cluster.

    `url` is the server's, as for a browser; `process` is `troupe serve`.
    """

    def __init__(self, command: List[str], model: str, start_timeout: float, defaults: Any) -> None:
        self._command = command
        self._model = model
        self._start_timeout = start_timeout
        self._defaults = defaults
        self._folder: Optional[pathlib.Path] = None
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.url = ""

    def start(self) -> TroupePipeline:
        """Starts the cluster and returns a pipeline once it can be spoken to. `stop()` ends it."""
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-"))
        atexit.register(self.stop)
        try:
            with open(self._folder / "log", "wb") as log:
                try:
                    # The pipe closes with this process, however it ends, and the server with the pipe.
                    self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=log,
                                                    stderr=subprocess.STDOUT)
                except OSError as error:
                    raise TroupeError(f"{self._command[0]} cannot be started: {error.strerror}") from error
            self.url = self._await_url()
            self._await_cluster()
            pipe = self._connect()
            pipe.client.words["`--allow-models DIR` of `troupe start`, or of `troupe serve` for requests over HTTP,"] = (
                "troupe.local(…, allow_models=[DIR])")
            return pipe
        except BaseException:
            self.stop()
            raise

    def _connect(self) -> TroupePipeline:
        try:
            # A name or a file became another folder, which is the cluster's.
            own = self._model if os.path.isdir(self._model) else None
            return TroupePipeline.connect(self.url, own, **self._defaults)
        except BadRequestError as error:
            meant = difflib.get_close_matches(error.param or "", inspect.signature(local).parameters, 1)
            if error.code == "unknown_field" and meant:
                error.message = f"{error.param}: neither an argument of local() nor a field of requests; did you mean {meant[0]}?"
                error.args = (error.message,)
            raise

    def _await_url(self) -> str:
        """The address that the server prints when it listens."""
        assert self.process is not None
        deadline = time.monotonic() + self._start_timeout
        while True:
            found = re.search(r"http://[^/\s]+(?=[/\s])", self.log())  # to its end: it may still be written
            if found:
                return found.group()
            if self.process.poll() is not None:
                raise TroupeError(f"troupe serve ended with {self.process.returncode}: {self._said() or 'it said nothing'}")
            if time.monotonic() > deadline:
                raise TroupeError(f"troupe serve was not ready within {self._start_timeout:g} s: {self._said()}")
            time.sleep(0.02)

    def _await_cluster(self) -> None:
        """Waits until the server is connected to its cluster."""
        deadline = time.monotonic() + self._start_timeout
        while True:
            try:
                Client(self.url).health()
                return
            except InternalServerError as error:
                if time.monotonic() > deadline:
                    raise TroupeError(f"troupe serve was not ready within {self._start_timeout:g} s: {error}") from error
            time.sleep(0.02)

    def _said(self) -> str:
        """The log with arguments of `local` for the command's options."""
        def argument(found: "re.Match[str]") -> str:
            option = found.group()
            return option if option[0] == "`" else _ARGUMENTS.get(option, f'arguments=["{option}", …]')

        # Not within paths ("models--ORG--NAME") and commands of the hub's.
        return re.sub(r"`hf [^`]*`|(?<![\w/.-])--[a-z][a-z-]*", argument, self.log().strip())

    def __repr__(self) -> str:
        return f"<troupe.LocalCluster {'at ' + self.url if self.url else 'that has not started'}: {self._model}>"

    def log(self) -> str:
        """What `troupe serve` wrote so far."""
        return (self._folder / "log").read_text(errors="replace") if self._folder else ""

    def stop(self) -> None:
        """Ends the cluster; done at once where it has ended."""
        atexit.unregister(self.stop)
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            if self.process.stdin is not None:
                self.process.stdin.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> TroupePipeline:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.stop()


def local(model: Path, actors: int = 1, device: str = "cpu", arguments: Optional[Sequence[str]] = None,
          allow_models: Union[None, Path, Sequence[Path]] = None,
          executable: Optional[str] = None, start_timeout: float = 120.0, **defaults: Any) -> LocalCluster:
    """A cluster on this machine for a model's folder, or a name of the hub whose files its cache has, without anything to set up:

        with troupe.local(model="examples/demo/model", actors=2) as pipe:
            pipe("a blue star on a white background").images[0].save("star.png")

    `device` is cpu or cuda; `allow_models` are folders that hold further models, LoRAs and embeddings for its requests; `arguments` are
    further ones of `troupe serve`; `executable` is the command's path, by default TROUPE, the one that was installed with this
    package, or the `troupe` on the PATH; `defaults` are fields of every request. Raises TroupeError with what the command wrote
    where it does not start.
    """
    installed = shutil.which("troupe", path=os.path.join(os.path.dirname(__file__), "bin"))
    command = executable or os.environ.get("TROUPE") or installed or shutil.which("troupe")
    if not command:
        raise TroupeError("there is no command `troupe` on the PATH; install or build it (docs/install.md), or name it: executable=…")
    model = path("model", model)
    if os.path.exists(model) or os.path.isabs(model):  # else it is a name of the hub
        model = os.path.abspath(model)
    folders = [allow_models] if isinstance(allow_models, (str, os.PathLike)) else list(allow_models or [])
    further = texts("arguments", arguments) if arguments else []
    return LocalCluster([command, "serve", "--model", model, "--actors", str(whole("actors", actors)), "--device", device, "--http",
                         "127.0.0.1:0", "--end-with-stdin", *(word for one in folders for word in ("--allow-models", path("allow_models", one))),
                         *further], model, start_timeout, defaults)
