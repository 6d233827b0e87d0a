"""Semantic segmentation: a backbone on the shared trunk with the CBT head (Table 4)."""

from .backbone import Backbone
from .cbt_head import CBTHead
from .segmenter import Segmenter
from .weights import LoadReport, load_backbone

__all__ = ["Backbone", "CBTHead", "LoadReport", "Segmenter", "load_backbone"]
