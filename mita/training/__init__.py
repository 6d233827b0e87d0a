"""Training, whatever the model: recipes, the loop, run folders, evaluation."""

from .evaluation import evaluate
from .loggers import build_loggers
from .recipe import Machine, Recipe
from .run_folder import RunFolder, load_checkpoint
from .tasks import build_task
from .trainer import NonFiniteLoss, Result, Trainer, device_name, fit, make_fabric

__all__ = [
    "Machine",
    "NonFiniteLoss",
    "Recipe",
    "Result",
    "RunFolder",
    "Trainer",
    "build_loggers",
    "build_task",
    "device_name",
    "evaluate",
    "fit",
    "load_checkpoint",
    "make_fabric",
]
