"""Nyströmformer: softmax attention through landmarks and the pseudo-inverse of their own attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import cost
from ..attention.precision import no_autocast
from ..landmarks import average_pool
from ..layout import TokenLayout
from .base import Mechanism


class Nystromformer(Mechanism):
    """softmax(q K̃^T) softmax(Q̃ K̃^T)^+ softmax(Q̃ k^T) v, logits by 1 / sqrt(d), plus a convolution of v (Xiong et al., 2021,
    arXiv:2102.03902).

    Q̃ and K̃ are means over m segments of the real tokens, in the order of the sequence whatever its layout. The inverse is
    iterated in float32, from a start of each matrix's own, so that no sequence depends on the others of its batch.

    Args:
        num_landmarks: m.
        kernel_size: odd width of the depth-wise convolution along the sequence, one filter a head; 0 for none.
        iterations: steps of the third-order iteration for the inverse (Eq. 11).

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self, num_heads: int, head_dim: int, num_landmarks: int = 64, kernel_size: int = 35, iterations: int = 6
    ) -> None:
        super().__init__(num_heads, head_dim)
        if num_landmarks < 1 or iterations < 1:
            raise ValueError(f"num_landmarks and iterations are at least 1, got {num_landmarks} and {iterations}")
        if kernel_size < 0 or kernel_size and not kernel_size % 2:
            raise ValueError(f"kernel_size is odd, or 0 for no convolution, got {kernel_size}")
        self.num_landmarks, self.iterations = num_landmarks, iterations
        self.conv = None
        if kernel_size:
            shape, padding = (kernel_size, 1), (kernel_size // 2, 0)
            self.conv = nn.Conv2d(num_heads, num_heads, shape, padding=padding, groups=num_heads, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout, key_mask: Tensor | None) -> Tensor:
        sequence = TokenLayout((q.shape[2],))
        wide = torch.promote_types(q.dtype, torch.float32)
        with no_autocast(q.device.type):
            q_, k_, v_ = (t.to(wide) for t in (q * self.head_dim**-0.5, k, v))
            q_landmarks, _ = average_pool(q_, sequence, (self.num_landmarks,), key_mask)
            k_landmarks, _ = average_pool(k_, sequence, (self.num_landmarks,), key_mask)
            scores = q_landmarks @ k_.mT
            if key_mask is not None:
                readable = key_mask | ~key_mask.any(1, keepdim=True)
                scores = scores.masked_fill(~readable[:, None, None, :], -torch.inf)
            inner = pseudo_inverse((q_landmarks @ k_landmarks.mT).softmax(-1), self.iterations)
            o = (q_ @ k_landmarks.mT).softmax(-1) @ (inner @ (scores.softmax(-1) @ v_))
        o = o.to(q.dtype)
        return o if self.conv is None else o + self.conv(v)

    def multiply_adds(self, layout: TokenLayout) -> int:
        N, m, d = layout.num_tokens, self.num_landmarks, self.head_dim
        landmarks = 4 * cost.matmul(N, d, m) + cost.matmul(m, d, m)  # two N x m score matrices and their two products
        inverse = 4 * self.iterations * cost.matmul(m, m, m) + cost.matmul(m, m, d)
        convolution = 0 if self.conv is None else N * d * self.conv.kernel_size[0]
        return self.num_heads * (landmarks + inverse + convolution)


def pseudo_inverse(A: Tensor, iterations: int) -> Tensor:
    """Moore-Penrose inverse of (..., m, m) matrices with positive rows that sum to 1, by repeating

    Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4.
    """
    Z = A.mT / A.sum(-2, keepdim=True).amax(-1, keepdim=True)  # |A|_1 |A|_inf, and the latter is 1
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    for _ in range(iterations):
        AZ = A @ Z
        Z = Z @ (13 * identity - AZ @ (15 * identity - AZ @ (7 * identity - AZ))) / 4
    return Z
