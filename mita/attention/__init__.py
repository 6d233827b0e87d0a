"""The attention core: tensors in, tensors out."""

from .functional import mita_attention
from .problem import Problem, Routing

__all__ = ["Problem", "Routing", "mita_attention"]
