from skindx.api.model import Answer as Answer
from skindx.api.model import Model as Model
from skindx.api.model import load as load
from skindx.core.errors import UserError as UserError
from skindx.diagnosis.photo_checks import Refused as Refused

__version__: str
__all__: list[str]
