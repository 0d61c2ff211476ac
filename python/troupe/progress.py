"""How far a job is: a line in terminals, a bar with the newest preview in notebooks, nothing elsewhere."""
from __future__ import annotations

import html
import sys
from typing import Any, Optional

from . import images
from .client import JobInfo

WIDTH = 30


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell else None
    return instance is not None and "IPKernelApp" in instance.config


def _line(info: JobInfo) -> str:
    if info.state == "queued":
        return "queued" if info.queue_position is None else f"queued, {info.queue_position} before it"
    words = info.phase or info.state
    if info.ended:
        words = f"{info.state} in {info.seconds:.1f} s"
    elif info.seconds_per_step:
        left = (info.steps - info.step) * info.seconds_per_step
        words += f", {info.seconds_per_step:.2f} s/step, {left:.0f} s left"
    return f"{info.step}/{info.steps} {words}"


class Bar:
    """Shows one job. `description` stands before it."""

    def __init__(self, description: str = "", disable: bool = False) -> None:
        self._description = f"{description}: " if description else ""
        self._disable = disable
        self._notebook = not disable and _in_notebook()
        self._terminal = not disable and not self._notebook and sys.stderr.isatty()
        self._handle: Any = None
        self._last = 0

    def show(self, info: JobInfo, preview: Optional[bytes] = None) -> None:
        part = info.step / info.steps if info.steps else 0.0
        if self._terminal:
            filled = int(part * WIDTH)
            line = f"{self._description}{part:4.0%} |{'█' * filled}{' ' * (WIDTH - filled)}| {_line(info)}"
            # Spaces over what the line before had more.
            sys.stderr.write("\r" + line.ljust(self._last))
            sys.stderr.flush()
            self._last = len(line)
        elif self._notebook:
            self._show_html(f'{html.escape(self._description)}<progress value="{part}" max="1"></progress> '
                            f"{html.escape(_line(info))}" + (images.html([preview]) if preview else ""))

    def _show_html(self, text: str) -> None:
        from IPython.display import HTML, display  # a notebook has it

        if self._handle is None:
            self._handle = display(HTML(text), display_id=True)
        else:
            self._handle.update(HTML(text))

    def close(self) -> None:
        if self._last:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._last = 0
