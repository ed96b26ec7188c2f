"""Checks inside of traced functions: errors as values. JAX's names."""

from xcube.transforms.checkify.check import Error as Error
from xcube.transforms.checkify.check import check as check
from xcube.transforms.checkify.check import check_error as check_error
from xcube.transforms.checkify.check import debug_check as debug_check
from xcube.transforms.checkify.check import init_error as init_error
from xcube.transforms.checkify.errors import BatchedError as BatchedError
from xcube.transforms.checkify.errors import CheckError as CheckError
from xcube.transforms.checkify.errors import DivisionByZeroError as DivisionByZeroError
from xcube.transforms.checkify.errors import ErrorCategory as ErrorCategory
from xcube.transforms.checkify.errors import FailedCheckError as FailedCheckError
from xcube.transforms.checkify.errors import JaxRuntimeError as JaxRuntimeError
from xcube.transforms.checkify.errors import NaNError as NaNError
from xcube.transforms.checkify.errors import OOBError as OOBError
from xcube.transforms.checkify.errors import all_checks as all_checks
from xcube.transforms.checkify.errors import automatic_checks as automatic_checks
from xcube.transforms.checkify.errors import div_checks as div_checks
from xcube.transforms.checkify.errors import float_checks as float_checks
from xcube.transforms.checkify.errors import index_checks as index_checks
from xcube.transforms.checkify.errors import nan_checks as nan_checks
from xcube.transforms.checkify.errors import user_checks as user_checks
from xcube.transforms.checkify.programs import checkify as checkify
