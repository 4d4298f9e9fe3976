"""The start of an engine process."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from headrace.serving.client.child import Child

SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")


def test_a_start_that_is_cancelled_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the start of the process and the end of `Child.start`."""
    started: list[asyncio.subprocess.Process] = []
    connecting = asyncio.Event()
    create = asyncio.create_subprocess_exec

    async def noted(*command: str, **options: object) -> asyncio.subprocess.Process:
        started.append(await create(*command, **options))  # type: ignore[arg-type]
        return started[-1]

    async def never(**_: object) -> None:
        connecting.set()
        await asyncio.Event().wait()

    async def cancelled() -> None:
        starting = asyncio.create_task(Child.start(SLEEPS))
        await connecting.wait()
        os.kill(started[0].pid, 0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert started[0].returncode is not None

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    monkeypatch.setattr(asyncio, "open_unix_connection", never)
    asyncio.run(asyncio.wait_for(cancelled(), 60))
