"""The simulator runs federated rounds on one machine, with exact metrics.

Names that need torch are imported from their own modules: `kvib.sim.engines.torch_engine`,
`kvib.sim.engines.reference`, `kvib.sim.models`.
"""

from kvib.sim.data import ClientData
from kvib.sim.engines.linear import LinearEngine
from kvib.sim.local import LocalSGD
from kvib.sim.records import Record
from kvib.sim.server import ServerAdam, ServerSGD, ServerYogi
from kvib.sim.simulation import Simulation
from kvib.sim.synthetic import synthetic
from kvib.sim.task import SoftmaxRegression, Task
from kvib.sim.training import DivergedError

__all__ = [
    "ClientData",
    "DivergedError",
    "LinearEngine",
    "LocalSGD",
    "Record",
    "ServerAdam",
    "ServerSGD",
    "ServerYogi",
    "Simulation",
    "SoftmaxRegression",
    "Task",
    "synthetic",
]
