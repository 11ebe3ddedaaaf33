"""The list of kvib's policies, one line each.

Everything else follows from this list: `kvib.X`, `kvib.policies.X`, the names in state files and
experiments, the tests that every policy must pass, and the reference page.
"""

from kvib.policies.aocs import AOCS as AOCS
from kvib.policies.avare import Avare as Avare
from kvib.policies.by_size import BySize as BySize
from kvib.policies.forecast import Forecast as Forecast
from kvib.policies.kvib import KVib as KVib
from kvib.policies.mabs import Mabs as Mabs
from kvib.policies.optimal import Optimal as Optimal
from kvib.policies.osmd import OSMD as OSMD
from kvib.policies.uniform import Uniform as Uniform
from kvib.policies.vrb import Vrb as Vrb
