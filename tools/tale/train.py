"""Trains one of the models within a wall-clock budget.

The schedule follows the elapsed share of `--minutes`, so training ends in time however busy the
machine is: warm-up, a steady part, then a linear decay to zero; the last part of the time uses
rows of 1024 tokens. Checkpoints are written every few minutes and `--resume` goes on from one.

On a CPU, `--threads` Python threads each take one row after another from the step's batch, with
one torch thread each (set OMP_NUM_THREADS=1): a core that is busy with other work then only
takes fewer rows, where a parallel matrix product would wait for it every time.
"""

from __future__ import annotations

import argparse
import copy
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from tools.tale.data import Rows
from tools.tale.model import SHAPES, Llama
from tools.tale.muon import Muon

WARMUP, STEADY, LONG = 0.02, 0.72, 0.92


def rate(share: float) -> float:
    """Learning-rate factor at an elapsed share of the time."""
    if share < WARMUP:
        return max(share / WARMUP, 0.02)
    return min(1.0, max(0.0, (1.0 - share) / (1.0 - STEADY)))


def has_bfloat16(device: str) -> bool:
    """Whether the processor or the accelerator multiplies bfloat16 in hardware."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    try:
        return any(f in Path("/proc/cpuinfo").read_text() for f in ("avx512_bf16", "amx_bf16"))
    except OSError:
        return False


class Workers:
    """Threads that share the weights and add up the gradients of single rows."""

    def __init__(self, model: Llama, count: int, device: str, half: bool) -> None:
        self.device, self.half = device, half
        self.replicas = [model] + [copy.deepcopy(model) for _ in range(count - 1)]
        self.pool = ThreadPoolExecutor(count)
        for replica in self.replicas[1:]:
            for p, shared in zip(replica.parameters(), model.parameters(), strict=True):
                p.data = shared.data

    def _work(self, model: Llama, rows: list[Tensor], count: int) -> float:
        total = 0.0
        while True:
            try:
                ids = rows.pop()
            except IndexError:
                return total
            with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
                loss = model.loss(ids) / count
            torch.autograd.backward(loss)
            total += loss.item()

    def gradients(self, ids: Tensor) -> float:
        """Leave the gradients of a batch in the first replica; return the loss."""
        single = len(self.replicas) == 1
        rows = [ids] if single else [ids[i : i + 1] for i in range(len(ids))]
        count = len(rows)
        jobs = [self.pool.submit(self._work, r, rows, count) for r in self.replicas]
        total = sum(job.result() for job in jobs)
        for replica in self.replicas[1:]:
            for p, q in zip(self.replicas[0].parameters(), replica.parameters(), strict=True):
                if q.grad is not None:
                    p.grad = q.grad if p.grad is None else p.grad.add_(q.grad)
                    q.grad = None
        return total


@torch.no_grad()
def heldout_loss(model: Llama, path: Path, documents: int, device: str) -> float:
    """Mean next-token loss over whole held-out documents, weighted by tokens."""
    stored = np.load(path)
    ends = np.cumsum(stored["lengths"])[:documents]
    total, count, start = 0.0, 0, 0
    for end in ends.tolist():
        ids = torch.from_numpy(stored["ids"][start : min(end, start + 1025)].astype(np.int64))
        start = end
        loss = model.loss(ids[None].to(device)).item()
        total, count = total + loss * (len(ids) - 1), count + len(ids) - 1
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="tale")
    parser.add_argument("--data", type=Path, required=True, help="training .npz from tools.tale.data")
    parser.add_argument("--heldout", type=Path, required=True, help="held-out .npz")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint to write")
    parser.add_argument("--minutes", type=float, default=50.0, help="wall-clock budget")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens a step")
    parser.add_argument("--muon-lr", type=float, default=0.012)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    parser.add_argument("--save-minutes", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    half = has_bfloat16(device)
    model = Llama(SHAPES[args.model]).to(device)
    named = dict(model.named_parameters())
    matrices = [p for n, p in named.items() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in named.items() if p.ndim != 2 or "embed" in n]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=args.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    muon.buffers = [b.to(device) for b in muon.buffers]
    spent, step, seen, at = 0.0, 0, 0, 0
    if args.resume and args.out.exists():
        state = torch.load(args.out, map_location=device)
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        muon.buffers = state["muon"]
        spent, step, seen, at = state["spent"], state["step"], state["seen"], state["at"]
    workers = Workers(model, args.threads if device == "cpu" else 1, device, half)
    rows = Rows(args.data, args.seed, at)

    def save() -> None:
        part = args.out.with_suffix(".part")
        torch.save(
            {
                "model": model.state_dict(),
                "adam": adam.state_dict(),
                "muon": muon.buffers,
                "spent": spent,
                "step": step,
                "seen": seen,
                "at": rows.next,
            },
            part,
        )
        part.replace(args.out)

    params = sum(p.numel() for p in named.values())
    print(f"{args.model}: {params} parameters, {device}, bfloat16 {half}", flush=True)
    budget, saved, last, smooth = args.minutes * 60, spent, time.monotonic(), 0.0
    bar = tqdm(total=int(budget), initial=int(spent), unit="s", mininterval=10)
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    while spent < budget and not stop:
        share = spent / budget
        length = 1024 if share >= LONG else 512
        ids = rows.batch(max(2, args.tokens // length), length + 1).to(device)
        loss = workers.gradients(ids)
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        factor = rate(share)
        for group in adam.param_groups:
            group["lr"] = args.adam_lr * factor
        adam.step()
        muon.step(args.muon_lr * factor, workers.pool)
        model.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + ids.numel() - len(ids)
        smooth = loss if smooth == 0.0 else 0.98 * smooth + 0.02 * loss
        now = time.monotonic()
        spent, last = spent + now - last, now
        bar.n = int(spent)
        bar.update(0)
        if step % 50 == 0 or step in (1, 10):
            bar.write(
                f"step {step} loss {smooth:.4f} tokens {seen} speed {seen / spent:.0f}/s lr {factor:.3f}"
            )
        if spent - saved > args.save_minutes * 60:
            save()
            saved = spent
    save()
    if stop:
        raise SystemExit(f"stopped at step {step}; go on with --resume")
    model.eval()
    print(
        f"done: steps {step}, tokens {seen}, minutes {spent / 60:.1f}, "
        f"held-out loss {heldout_loss(model, args.heldout, 400, device):.4f}"
    )


if __name__ == "__main__":
    main()
