"""What a person sees of a run: a bar on a terminal, one line a round elsewhere."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm


class Progress:
    """A bar with loss, learning rate and time left; where there is no terminal, a line a round."""

    def __init__(self, total: int, start: int, show: bool = True) -> None:
        self.total, self.show = total, show
        self.began, self.start, self.step, self.loss = time.perf_counter(), start, start, float("nan")
        terminal = show and sys.stderr.isatty()
        self.bar = tqdm(total=total, initial=start, unit="step", dynamic_ncols=True) if terminal else None

    def update(self, step: int, loss: float, lr: float) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {loss:.3f} lr {lr:.2e}")
            self.bar.update(step - self.step)
        self.step, self.loss = step, loss

    def round(self, values: dict, metric: str, is_best: bool) -> None:
        """One line for a finished round."""
        if not self.show:
            return
        each = (time.perf_counter() - self.began) / max(1, self.step - self.start)
        left = max(0, round(each * (self.total - self.step)))
        text = (
            f"epoch {values['epoch']:g}  step {self.step}/{self.total}  loss {values['train_loss']:.4f}  "
            f"{metric} {values[metric]:.2f}{' (best)' if is_best else ''}  {left // 60}:{left % 60:02d} left"
        )
        if self.bar is not None:
            self.bar.write(text)
        else:
            print(text, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
