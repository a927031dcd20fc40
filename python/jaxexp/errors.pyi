# Made from the table in errors.py: run `make format` after a change there.
from ._errors import BusyError as BusyError
from ._errors import ChangedArtifactError as ChangedArtifactError
from ._errors import DeserializationError as DeserializationError
from ._errors import ExecutablesError as ExecutablesError
from ._errors import ExportBufferError as ExportBufferError
from ._errors import ExportError as ExportError
from ._errors import ExportPicklingError as ExportPicklingError
from ._errors import ExportRuntimeError as ExportRuntimeError
from ._errors import ExportTypeError as ExportTypeError
from ._errors import FatalArtifactError as FatalArtifactError
from ._errors import ForeignModuleError as ForeignModuleError
from ._errors import JournalError as JournalError
from ._errors import ModuleError as ModuleError
from ._errors import PolicyError as PolicyError
from ._errors import RunError as RunError
from ._errors import SerializationError as SerializationError
from ._errors import SerializationKeyError as SerializationKeyError
from ._errors import SerializationTypeError as SerializationTypeError
from ._errors import SignatureError as SignatureError
from ._errors import TooOldReaderError as TooOldReaderError
from ._errors import UnfitWorkerError as UnfitWorkerError
from ._errors import UnsupportedArtifactError as UnsupportedArtifactError
from ._errors import UnsupportedError as UnsupportedError
from ._errors import UnsupportedModuleError as UnsupportedModuleError
from ._errors import UnsupportedSerializationError as UnsupportedSerializationError
from ._errors import WeightsError as WeightsError
from ._errors import WorkerError as WorkerError
from ._kernel.function.specs import UnexpectedDimError as UnexpectedDimError
from ._kernel.module.custom_calls import UnknownCustomCallError as UnknownCustomCallError
from ._readback.refused import RefusedError as RefusedError

__all__ = [
    "BusyError",
    "ChangedArtifactError",
    "DeserializationError",
    "ExecutablesError",
    "ExportBufferError",
    "ExportError",
    "ExportPicklingError",
    "ExportRuntimeError",
    "ExportTypeError",
    "FatalArtifactError",
    "ForeignModuleError",
    "JournalError",
    "ModuleError",
    "PolicyError",
    "RefusedError",
    "RunError",
    "SerializationError",
    "SerializationKeyError",
    "SerializationTypeError",
    "SignatureError",
    "TooOldReaderError",
    "UnexpectedDimError",
    "UnfitWorkerError",
    "UnknownCustomCallError",
    "UnsupportedArtifactError",
    "UnsupportedError",
    "UnsupportedModuleError",
    "UnsupportedSerializationError",
    "WeightsError",
    "WorkerError",
]
