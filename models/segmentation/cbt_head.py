"""The CBT head: class tokens and patches through contract-and-broadcast attention, then their cosines."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from mita import cost


class ContractBroadcast(nn.Module):
    """Tokens contracted to a few representatives, which attend to each other, and broadcast back by the same weights.

    One projection W serves as queries, keys and values. Per head of width d, with R0 the average of W's patch rows over the
    cells of a grid:
        A = softmax(R0 W^T / sqrt(d)),  R = R0 + step_rep A W,  G = softmax(R R^T / sqrt(d)) R,  y = step_x A^T G.
    The columns of A are not normalised again.

    Args:
        dim: C.
        num_heads, head_dim: H and d; W is C -> H d without bias.
        representatives: sides of the grid of representatives.
    """

    def __init__(self, dim: int, num_heads: int, head_dim: int, representatives: tuple[int, int]) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.representatives = num_heads, head_dim, representatives
        self.proj = nn.Linear(dim, num_heads * head_dim, bias=False)
        self.step_rep = nn.Parameter(torch.randn(num_heads, 1, 1))
        self.step_x = nn.Parameter(torch.randn(num_heads, 1, 1))
        self.to_out = nn.Linear(num_heads * head_dim, dim)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, n, C), of which the first h * w are the patches of `grid` = (h, w) -> (B, n, C)."""
        projected = self.proj(x)
        patches = projected[:, : math.prod(grid)].mT.unflatten(2, grid)
        R0 = self._heads(F.adaptive_avg_pool2d(patches, self.representatives).flatten(2).mT)
        W = self._heads(projected)
        scale = self.head_dim**-0.5
        A = (scale * R0 @ W.mT).softmax(-1)
        R = R0 + self.step_rep * (A @ W)
        G = (scale * R @ R.mT).softmax(-1) @ R
        y = self.step_x * (A.mT @ G)
        return self.to_out(y.transpose(1, 2).flatten(2))

    def multiply_adds(self, num_tokens: int) -> int:
        """Multiply-adds for n tokens (convention: `mita.cost`)."""
        r, n, d = math.prod(self.representatives), num_tokens, self.head_dim
        per_head = 3 * cost.matmul(r, d, n) + 2 * cost.matmul(r, d, r)
        return cost.linear(self.proj, n) + self.num_heads * per_head + cost.linear(self.to_out, n)

    def _heads(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)


class Residual(nn.Module):
    """x + fn(norm(x), grid)."""

    def __init__(self, dim: int, fn: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return x + self.fn(self.norm(x), grid)


class CBTHead(nn.Module):
    """A feature map to class scores on its grid: the decoder of the contract-and-broadcast transformer (arXiv:2509.16875),
    as the authors' segmenters have it. State-dict keys are those of the released decoder.

    A learned embedding of each class joins the patches; all go through `depth` layers of x + ContractBroadcast(norm(x)),
    without MLP or positions. Scores are the cosines of patches and classes, with a LayerNorm over the classes.

    Args:
        in_channels: C of the feature map.
        num_classes: K.
        depth: number of layers. The paper's FLOPs agree with 3 for Seg-T and Seg-S, 6 for Seg-B and 9 for Seg-L; the
            released configurations all say 3.
        num_heads, head_dim, representatives: see `ContractBroadcast`; (3, 100, (10, 10)) as released.

    Raises:
        ValueError: a number below 1.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        depth: int = 3,
        num_heads: int = 3,
        head_dim: int = 100,
        representatives: tuple[int, int] = (10, 10),
    ) -> None:
        super().__init__()
        representatives = tuple(representatives)
        if min(num_classes, depth, num_heads, head_dim, *representatives) < 1 or len(representatives) != 2:
            raise ValueError(
                "a CBT head has at least 1 class, layer and head, head_dim of at least 1 and a grid (a, b) of representatives, "
                f"got {num_classes}, {depth}, {num_heads}, {head_dim} and {representatives}"
            )
        self.cls_emb = nn.Parameter(torch.empty(1, num_classes, in_channels))
        layers = [
            Residual(in_channels, ContractBroadcast(in_channels, num_heads, head_dim, representatives))
            for _ in range(depth)
        ]
        self.net = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        self.decoder_norm = nn.LayerNorm(in_channels)
        self.mask_norm = nn.LayerNorm(num_classes)

        trunc_normal_(self.cls_emb, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, h, w) -> class scores (B, K, h, w)."""
        grid = tuple(features.shape[-2:])
        x = torch.cat([features.flatten(2).mT, self.cls_emb.expand(len(features), -1, -1)], dim=1)
        for layer in self.net["layers"]:
            x = layer(x, grid)
        x = F.normalize(self.decoder_norm(x), dim=-1)
        patches, classes = x.split([math.prod(grid), self.cls_emb.shape[1]], dim=1)
        return self.mask_norm(patches @ classes.mT).mT.unflatten(2, grid)

    def no_weight_decay(self) -> set[str]:
        """Parameters, besides biases and norms, that weight decay leaves alone."""
        return {"cls_emb"}

    def multiply_adds(self, grid: tuple[int, int]) -> int:
        """Multiply-adds for one feature map of (h, w) (convention: `mita.cost`)."""
        patches, classes = math.prod(grid), self.cls_emb.shape[1]
        layers = sum(layer.fn.multiply_adds(patches + classes) for layer in self.net["layers"])
        return layers + cost.matmul(patches, self.cls_emb.shape[2], classes)
