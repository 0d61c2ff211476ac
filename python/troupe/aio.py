"""The asynchronous twin of the pipeline. Each call waits in a thread of its own, so nothing blocks the event loop."""
from __future__ import annotations

import asyncio
import copy
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, AsyncIterator, Awaitable, Callable, Optional

from .arguments import Prompt
from .client import Job, JobEvent, JobInfo
from .pipeline import TroupePipeline

# As many as the cluster's queue holds.
MOST_CALLS = 64


class AsyncJob:
    """A job's handle: `Job` with calls that are awaited."""

    def __init__(self, job: Job, run: Callable[..., Awaitable[Any]]) -> None:
        self.job = job
        self._run = run

    def __repr__(self) -> str:
        return repr(self.job).replace("Job", "AsyncJob", 1)

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def state(self) -> str:
        return self.job.state

    async def refresh(self) -> JobInfo:
        await self._run(self.job.refresh)
        return self.job.info

    async def cancel(self) -> bool:
        return bool(await self._run(self.job.cancel))

    async def wait(self, timeout: Optional[float] = None) -> JobInfo:
        await self._run(self.job.wait, timeout)
        return self.job.info

    async def result(self, output_type: str = "pil", timeout: Optional[float] = None) -> Any:
        return await self._run(self.job.result, output_type, timeout)

    async def report(self) -> Any:
        return await self._run(self.job.report)

    async def events(self, timeout: Optional[float] = None) -> AsyncIterator[JobEvent]:
        events = self.job.events(timeout)
        while True:
            event = await self._run(next, events, None)
            if event is None:
                return
            yield event


class AsyncTroupePipeline:
    """`TroupePipeline` with calls that are awaited; a task that is cancelled cancels its job.

        pipe = await AsyncTroupePipeline.connect(url)
        one, two = await asyncio.gather(pipe("a red circle"), pipe("a blue star"))

    Callbacks come in other threads than the event loop's. LoRAs and settings are those of `pipe.pipeline`, whose other
    methods and attributes are here, too.
    """

    def __init__(self, pipeline: TroupePipeline) -> None:
        self.__dict__.update(pipeline=pipeline, _threads=ThreadPoolExecutor(MOST_CALLS, "troupe"))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.pipeline!r}>"

    def __getattr__(self, name: str) -> Any:
        if name in ("pipeline", "_threads"):
            raise AttributeError(name)
        return getattr(self.pipeline, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_interrupt":
            raise AttributeError("_interrupt: cancel the task that awaits the call")
        setattr(self.pipeline, name, value)

    def to(self, *args: Any, **kwargs: Any) -> "AsyncTroupePipeline":
        self.pipeline.to(*args, **kwargs)
        return self

    @classmethod
    async def connect(cls, *args: Any, **kwargs: Any) -> "AsyncTroupePipeline":
        return cls(await asyncio.to_thread(functools.partial(TroupePipeline.connect, *args, **kwargs)))

    async def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(function, *args, **kwargs))

    async def __call__(self, prompt: Optional[Prompt] = None, **arguments: Any) -> Any:
        # A pipeline of its own, since what may be cancelled is this call. Bars of several calls would overwrite each other.
        call = copy.copy(self.pipeline)
        call._jobs, call._bar = set(), {"disable": True}
        waiting = asyncio.ensure_future(self._run(call, prompt, **arguments))
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            # More than once: the call may just be about to begin.
            while not (await asyncio.wait([waiting], timeout=0.1))[0]:
                await self._run(setattr, call, "_interrupt", True)
            waiting.exception()
            raise

    async def submit(self, prompt: Optional[Prompt] = None, **arguments: Any) -> AsyncJob:
        return AsyncJob(await self._run(self.pipeline.submit, prompt, **arguments), self._run)
