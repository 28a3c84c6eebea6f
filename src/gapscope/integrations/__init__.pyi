from . import lightning as lightning
from . import mlflow as mlflow
from . import tensorboard as tensorboard
from . import transformers as transformers
from . import wandb as wandb
from .memorization_monitor import MemorizationMonitor as MemorizationMonitor
from .memorization_monitor import add_memorization_monitor as add_memorization_monitor
from .model_cards import model_card as model_card
