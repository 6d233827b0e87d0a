"""MiTA attention: the core op, its mechanisms, and the layer around them."""

from .attention import mita_attention
from .layer import MultiHeadAttention
from .layout import TokenLayout
from .replace import replace_attention

__all__ = ["MultiHeadAttention", "TokenLayout", "mita_attention", "replace_attention"]
