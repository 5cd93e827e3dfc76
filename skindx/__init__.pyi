from skindx.api.dataset import Dataset as Dataset
from skindx.api.dataset import open_dataset as open_dataset
from skindx.api.model import Answer as Answer
from skindx.api.model import Model as Model
from skindx.api.model import load as load
from skindx.api.predictions import PhotoFeatures as PhotoFeatures
from skindx.api.verbs import EvaluationReport as EvaluationReport
from skindx.api.verbs import build as build
from skindx.api.verbs import evaluate as evaluate
from skindx.api.verbs import train as train
from skindx.core.errors import JobError as JobError
from skindx.core.errors import UserError as UserError
from skindx.data.recipe import BuildSettings as BuildSettings
from skindx.diagnosis.photo_checks import Refused as Refused
from skindx.training.config.run import TrainSettings as TrainSettings

__version__: str
__all__: list[str]
