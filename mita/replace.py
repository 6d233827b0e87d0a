"""Another attention inside timm's vision transformers, with the weights they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .layout import TokenLayout
from .mechanisms import build


def replace_attention(model: nn.Module, mechanism: str | Callable[[int, int], nn.Module], **options: Any) -> nn.Module:
    """Put a mechanism in the place of softmax in every self-attention of a timm `VisionTransformer`, in place.

    Projections, norms, gates and dropouts stay the modules they were, so weights, optimizers and `state_dict` keys do too; only
    a mechanism that has parameters of its own adds theirs, under `blocks.<i>.attn.mechanism`. Prefix tokens (class,
    distillation, registers) are the model's `num_prefix_tokens`; the grid is that of the images of each forward, so
    non-square and dynamic sizes work; threads with images of different sizes need a copy of the model each, as the grid is
    kept in the model during a forward. Attention pooling after the blocks stays as it is. A model may be given again, to
    change the mechanism.

    Args:
        model: a `timm.models.vision_transformer.VisionTransformer` (ViT, DeiT, DeiT-III, DINOv2, ...), or a module that
            holds some, as the one `timm.create_model(..., features_only=True)` returns. Gradient checkpointing and
            `torch.compile` work; replace before compiling.
        mechanism: a name of `mita.mechanisms.MECHANISMS`, or (num_heads, head_dim) -> module called as
            module(q, k, v, layout, key_mask) with q, k, v of shape (B, H, N, d).
        options: of the mechanism named, as `num_landmarks=25, top_k=25`.

    Returns:
        The model given.

    Raises:
        ValueError: the model holds no VisionTransformer, or something that a mechanism cannot carry (other attention
            classes, attention dropout, patch dropout, hooks on an attention); or a name or an option is unknown. The model
            is then as it was. Later, in a forward: an attention mask or causal attention is asked for, the tokens are no
            longer those of the grid, or checkpointing is reentrant.
    """
    from timm.models.vision_transformer import VisionTransformer

    if isinstance(mechanism, str):
        mechanism = partial(build, mechanism, **options)
    elif options:
        raise ValueError(
            f"options ({', '.join(options)}) go with the name of a mechanism, but a factory was given; set them in the factory"
        )
    transformers = [module for module in model.modules() if isinstance(module, VisionTransformer)]
    if not transformers:
        raise ValueError(
            f"replace_attention needs a timm VisionTransformer or a module that holds one, but {type(model).__name__} is "
            "none; in a model of your own, use mita.MultiHeadAttention"
        )
    # All is checked and built before anything is changed.
    found = [(transformer, _attentions(transformer)) for transformer in transformers]
    ready = [(*pair, [_of(attention, mechanism) for attention in pair[1].values()]) for pair in found]
    for transformer, attentions, mechanisms in ready:
        grids = [a.grid for a in attentions.values() if isinstance(a, TimmAttention)]
        grid = grids[0] if grids else _Grid.of(transformer)
        for (name, attention), module in zip(attentions.items(), mechanisms):
            transformer.blocks.set_submodule(name, TimmAttention(attention, module, grid))
    return model


class TimmAttention(nn.Module):
    """timm's `Attention` with a mechanism for its softmax: the same modules under the same names, called in the same order.

    Args:
        attention: a timm `Attention`, whose modules are taken over, or a TimmAttention.
        mechanism: module called as mechanism(q, k, v, layout, key_mask).
        grid: what knows the grid of the images under way.
    """

    def __init__(self, attention: nn.Module, mechanism: nn.Module, grid: _Grid) -> None:
        super().__init__()
        self.num_heads = attention.num_heads
        self.head_dim = attention.head_dim
        self.qkv = attention.qkv
        self.q_norm = attention.q_norm
        self.k_norm = attention.k_norm
        self.mechanism = mechanism
        self.norm = getattr(attention, "norm", nn.Identity())  # these two are younger than the rest of the class
        self.gate = getattr(attention, "gate", None)
        self.proj = attention.proj
        self.proj_drop = attention.proj_drop
        self.grid = grid
        self.train(attention.training)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attention of all tokens to all tokens.

        Args:
            x: (B, N, C), prefix tokens first, then the grid.
            attn_mask, is_causal: timm's; refused when given.

        Returns:
            (B, N, C).

        Raises:
            ValueError: a mask or causal attention is asked for, or the tokens do not fit the grid of the model's images.
        """
        if attn_mask is not None:
            raise ValueError("the attention put in by replace_attention takes no attn_mask; call the model without it")
        if is_causal:
            raise ValueError(
                "the attention put in by replace_attention is not causal; call the model without is_causal"
            )
        B, N, _ = x.shape
        layout = self.grid.layout()
        layout.check(N)
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        q, k = q.to(v.dtype), k.to(v.dtype)  # autocast leaves what the norms return in float32
        o = self.norm(self.mechanism(q, k, v, layout, None).transpose(1, 2).flatten(2))
        if self.gate is not None:
            o = o * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(o))


class _Grid:
    """The grid of the images that a VisionTransformer is at, for all of its attentions; timm hands them tokens alone.

    Its hooks are bound methods, so that a copy of a model (`copy.deepcopy`, a pickle) gets a grid of its own.
    """

    def __init__(self, num_prefix: int) -> None:
        self.num_prefix = num_prefix
        self.sides: tuple[int, int] | None = None

    @classmethod
    def of(cls, transformer: nn.Module) -> _Grid:
        grid = cls(transformer.num_prefix_tokens)
        transformer.patch_embed.register_forward_hook(grid.read)
        for block in transformer.blocks.children():
            block.register_forward_hook(grid.keep)
        return grid

    def layout(self) -> TokenLayout:
        if self.sides is None:
            raise ValueError(
                "the grid of patches is not known yet: call the whole model on images, not its blocks on tokens"
            )
        return TokenLayout(self.sides, self.num_prefix)

    def read(self, patch_embed: nn.Module, args: tuple, patches: Tensor) -> None:
        """After the patch embedding, which gives (B, h, w, C) when sizes are dynamic, else (B, h w, C)."""
        h, w = patches.shape[1:3] if patches.dim() == 4 else patch_embed.dynamic_feat_size(args[0].shape[-2:])
        self.sides = (h, w)

    def keep(self, block: nn.Module, args: tuple, output: Tensor) -> None:
        """After a block: have the grid of this forward again when its backward comes to the block.

        Gradient checkpointing then runs the block once more, maybe after a forward of images of another size.
        """
        if torch.compiler.is_compiling():  # a compiled backward keeps its own numbers
            return
        if output.requires_grad:
            output.register_hook(partial(self._return_to, self.sides))
        elif args[0].requires_grad and _reentrant_checkpointing():
            raise ValueError(
                "reentrant checkpointing loses the grid of patches; turn it off with timm.layers.set_reentrant_ckpt(False)"
            )

    def _return_to(self, sides: tuple[int, int], gradient: Tensor) -> None:
        self.sides = sides


def _reentrant_checkpointing() -> bool:
    """Whether timm's checkpoints are reentrant; before timm could be asked, they were."""
    from timm import layers

    return getattr(layers, "use_reentrant_ckpt", lambda: True)()


def _attentions(transformer: nn.Module) -> dict[str, nn.Module]:
    """Every self-attention in the transformer's blocks, by its name in `blocks`.

    Raises:
        ValueError: what a replacement would have to leave out, and what to do.
    """
    from timm.models.vision_transformer import Attention

    if not isinstance(transformer.patch_drop, nn.Identity):
        raise ValueError("patch dropout leaves no grid of patches; make the model with patch_drop_rate=0")
    if not hasattr(transformer.patch_embed, "dynamic_feat_size"):
        raise ValueError(
            f"the patch embedding {type(transformer.patch_embed).__name__} does not say its grid; it needs timm's "
            "method dynamic_feat_size((height, width)) -> (h, w)"
        )
    attentions = {}
    for i, block in transformer.blocks.named_children():
        inside = dict(_outermost_attentions(i, block))
        known = {name: module for name, module in inside.items() if type(module) in (Attention, TimmAttention)}
        if not known or len(known) < len(inside):
            other = ", ".join(sorted({type(m).__name__ for n, m in inside.items() if n not in known}))
            raise ValueError(
                f"blocks.{i} ({type(block).__name__}) has {other or 'its attention within itself'}, but replace_attention "
                "knows timm's Attention alone; choose a model whose blocks have it"
            )
        attentions |= known
    for name, attention in attentions.items():
        reason = _cannot_carry(attention)
        if reason:
            raise ValueError(f"blocks.{name} {reason}")
    return attentions


def _outermost_attentions(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Named modules whose class calls itself an attention, not those within another (a mechanism put in before)."""
    if "Attention" in type(module).__name__:
        yield name, module
        return
    for child, inner in module.named_children():
        yield from _outermost_attentions(f"{name}.{child}", inner)


def _cannot_carry(attention: nn.Module) -> str | None:
    if isinstance(attention, TimmAttention):
        return None
    if attention.attn_drop.p:
        return (
            f"drops attention weights (rate {attention.attn_drop.p}), which a mechanism has not; set attn_drop_rate=0"
        )
    if attention.scale != attention.head_dim**-0.5:
        return (
            f"scales its logits by {attention.scale}, but a mechanism scales by head_dim ** -0.5; set its scale to that"
        )
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, kind) for module in (attention, attention.attn_drop) for kind in kinds):
        return "has hooks, which would be lost with it; remove them, and register them after the replacement"
    return None


def _of(attention: nn.Module, mechanism: Callable[[int, int], nn.Module]) -> nn.Module:
    """A mechanism for the heads of `attention`, on its device and in its type."""
    return mechanism(attention.num_heads, attention.head_dim).to(attention.proj.weight)
