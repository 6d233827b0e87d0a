"""The five data sets of Long Range Arena (Tay et al., ICLR 2021)."""

from .image import image
from .listops import listops, padded_length
from .pathfinder import pathfinder
from .retrieval import retrieval
from .text import text

__all__ = ["image", "listops", "padded_length", "pathfinder", "retrieval", "text"]
